/** Which thread and register, or which bank, holds each element of a tile. */
import { computed, signal } from "@preact/signals";
import { colour, ink } from "../color";
import type { Access, Layout } from "../contract";
import { buffer, goLine, part } from "../store";
import { bytes, words16, words32 } from "../tables";
import { type Brush, Canvas, Empty, Line, spot } from "../ui";

const by = signal<"thread" | "warp" | "register">("thread");
const zoomed = signal(false);
const hover = signal<[number, number] | null>(null);

const layout = computed<Layout | null>(() => {
  const all = part.value?.layouts ?? [];
  return all.find((l) => l.buffer === buffer.value) ?? all[0] ?? null;
});

interface Cells {
  rows: number;
  columns: number;
  first: Uint16Array | Uint8Array;
  second: Uint16Array | Uint32Array;
}

const cells = computed<Cells | null>(() => {
  const l = layout.value;
  if (!l) return null;
  const columns = l.window.at(-1) ?? 1;
  const rows = l.window.slice(0, -1).reduce((a, b) => a * b, 1);
  if (l.thread && l.register)
    return { rows, columns, first: words16(l.thread), second: words16(l.register) };
  if (l.bank && l.address)
    return { rows, columns, first: bytes(l.bank.b64), second: words32(l.address) };
  return null;
});

/** Lightness steps within a hue: neighbours of a group are told apart without it, by number. */
function shade(index: number, steps: number, level: number): string {
  const base = colour(index);
  const part = 0.45 * (level / Math.max(1, steps - 1));
  const [r, g, b] = [1, 3, 5].map((at) =>
    Math.round(parseInt(base.slice(at, at + 2), 16) * (1 - part) + 255 * part),
  );
  return `#${[r, g, b].map((v) => v!.toString(16).padStart(2, "0")).join("")}`;
}

function cellColour(l: Layout, first: number, second: number): string {
  if (l.kind === "shared") return shade(first >> 2, 4, first & 3);
  if (by.value === "warp") return shade(first >> 5, 1, 0);
  if (by.value === "register") return shade(second >> 3, 8, second & 7);
  return shade((first & 31) >> 2, 4, first & 3);
}

const worst = (a: Access) => (a.ideal ? a.wavefronts / a.ideal : 1);

function side(width: number, height: number, { rows, columns }: Cells): number {
  return zoomed.value ? Math.max(22, width / 16) : Math.min(width / columns, height / rows);
}

function draw({ context: c, width, height, css }: Brush): void {
  const l = layout.value;
  const known = cells.value;
  if (!l || !known) return;
  const size = side(width, height, known);
  const [rows, columns] = [
    Math.min(known.rows, Math.ceil(height / size)),
    Math.min(known.columns, Math.ceil(width / size)),
  ];
  const at = hover.value;
  const mark = at ? known.first[at[0] * known.columns + at[1]] : undefined;
  const big = size >= 20;
  c.font = `${Math.min(11, size / 2.6)}px ${css("--sans")}`;
  c.textAlign = "center";
  c.textBaseline = "middle";
  for (let r = 0; r < rows; r++)
    for (let k = 0; k < columns; k++) {
      const i = r * known.columns + k;
      const [first, second] = [known.first[i]!, known.second[i]!];
      const base = cellColour(l, first, second);
      c.fillStyle = base;
      const inset = size > 5 ? 0.6 : 0;
      c.fillRect(k * size, r * size, size - inset, size - inset);
      if (big) {
        c.fillStyle = ink(base);
        c.fillText(
          l.kind === "shared" ? `${first}` : `${first}.${second}`,
          (k + 0.5) * size,
          (r + 0.5) * size,
        );
      }
      if (mark === first) {
        c.strokeStyle = css("--text");
        c.lineWidth = Math.max(1, size / 8);
        c.strokeRect(k * size + 0.5, r * size + 0.5, size - 1, size - 1);
      }
    }
  if (l.kind === "fragment" && !big && by.value !== "warp") edges(c, known, size, css("--text"));
}

/** Lines between warps, so that a warp's part shows without colours. */
function edges(c: CanvasRenderingContext2D, known: Cells, size: number, line: string): void {
  c.strokeStyle = line;
  c.lineWidth = 1;
  const warp = (r: number, k: number) => known.first[r * known.columns + k]! >> 5;
  c.beginPath();
  for (let r = 0; r < known.rows; r++)
    for (let k = 0; k < known.columns; k++) {
      if (k + 1 < known.columns && warp(r, k) !== warp(r, k + 1)) {
        c.moveTo((k + 1) * size, r * size);
        c.lineTo((k + 1) * size, (r + 1) * size);
      }
      if (r + 1 < known.rows && warp(r, k) !== warp(r + 1, k)) {
        c.moveTo(k * size, (r + 1) * size);
        c.lineTo((k + 1) * size, (r + 1) * size);
      }
    }
  c.stroke();
}

export function LayoutsView() {
  const all = part.value?.layouts ?? [];
  const l = layout.value;
  if (!l) return <Empty>No layouts were recorded for this kernel.</Empty>;
  return (
    <div class="layouts">
      <div class="row-tools">
        <select
          aria-label="tile"
          value={l.buffer}
          onChange={(e) => (buffer.value = e.currentTarget.value)}
        >
          {all.map((a) => (
            <option key={a.buffer} value={a.buffer}>
              {a.buffer} ({a.kind})
            </option>
          ))}
        </select>
        {l.kind === "fragment" ? (
          <select
            aria-label="coloured by"
            value={by.value}
            onChange={(e) => (by.value = e.currentTarget.value as "thread")}
          >
            <option value="thread">by thread</option>
            <option value="warp">by warp</option>
            <option value="register">by register</option>
          </select>
        ) : (
          <span class="muted">by bank</span>
        )}
        <button
          type="button"
          aria-pressed={zoomed.value}
          onClick={() => (zoomed.value = !zoomed.value)}
        >
          numbers
        </button>
        <Line number={l.line} go={goLine} />
      </div>
      <p class="caption mono" title={l.formula}>
        {l.formula}
      </p>
      <p class="caption">
        {l.shape.join(" × ")}
        {l.window.join() !== l.shape.join() ? `, of which ${l.window.join(" × ")}` : ""}
        {l.kind === "fragment"
          ? `: ${l.registers} registers of ${l.threads} threads${(l.replicas ?? 1) > 1 ? `, ${l.replicas} replicas` : ""}`
          : ": 32 banks of 4 bytes"}
      </p>
      <Canvas
        class="heatbox"
        label={`layout of ${l.buffer}: ${l.formula}`}
        again={l}
        cells={cells.value ? { at: hover, ...cells.value } : undefined}
        form={cells.value ? cells.value.columns / Math.max(cells.value.rows, 1) : 1}
        draw={draw}
        onPointerMove={(event) => {
          const known = cells.value!;
          const box = event.currentTarget as HTMLElement;
          const size = side(box.clientWidth, box.clientHeight, known);
          const [x, y] = spot(event);
          const [r, k] = [Math.floor(y / size), Math.floor(x / size)];
          hover.value = r < known.rows && k < known.columns ? [r, k] : null;
        }}
        onPointerLeave={() => (hover.value = null)}
      />
      <p class="caption mono" data-layout="hover" aria-live="polite">
        {words(l)}
      </p>
      {l.accesses?.length ? <Accesses all={l.accesses} /> : null}
    </div>
  );
}

function words(l: Layout): string {
  const known = cells.value;
  const at = hover.value;
  if (!known || !at) return "hover an element, or walk by arrow keys";
  const i = at[0] * known.columns + at[1];
  const [first, second] = [known.first[i]!, known.second[i]!];
  const where = `${l.buffer}[${known.rows > 1 ? `${at[0]}, ` : ""}${at[1]}]`;
  return l.kind === "shared"
    ? `${where}: bank ${first}, byte ${second}`
    : `${where}: thread ${first} (warp ${first >> 5}, lane ${first & 31}), register ${second}`;
}

function Accesses({ all }: { all: Access[] }) {
  return (
    <table class="plain">
      <thead>
        <tr>
          <th>access</th>
          <th>by</th>
          <th class="r">wavefronts</th>
          <th class="r">at best</th>
          <th>conflicts</th>
        </tr>
      </thead>
      <tbody>
        {all.map((a, i) => (
          <tr
            key={i}
            class={worst(a) > 1 ? "fault" : ""}
            onClick={() => a.line !== null && goLine(a.line)}
          >
            <td>
              {a.writes ? "write" : "read"}
              {a.line !== null ? `, line ${a.line}` : ""}
            </td>
            <td class="mono" title={a.words}>
              {a.instruction} {a.width} B
            </td>
            <td class="r">{a.wavefronts}</td>
            <td class="r">{a.ideal}</td>
            <td>{worst(a) > 1 ? <b class="bad">✕ {worst(a).toFixed(1)} ways</b> : "none"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
