/** What tiles hold at this moment, in a small run of the interpreter, as a heat map. */
import { computed, signal } from "@preact/signals";
import { heat } from "../color";
import type { Frame } from "../contract";
import { short } from "../format";
import { buffer, follow, goValue, recording, valueStep } from "../store";
import { bytes } from "../tables";
import { Canvas, Empty, spot } from "../ui";

const chosen = signal<string | null>(null);
const hover = signal<[number, number] | null>(null);

/** Name to frame, before and after the step. */
const held = computed(() => {
  const values = recording.value?.values;
  const found = new Map<string, number>(Object.entries(values?.initial ?? {}));
  values?.steps.slice(0, valueStep.value + 1).forEach((s) => {
    for (const [name, frame] of Object.entries(s.changed)) found.set(name, frame);
  });
  // the tensors that a run leaves: those of all blocks
  if (values && valueStep.value === values.steps.length - 1)
    for (const [name, { frame }] of Object.entries(values.result)) found.set(name, frame);
  return found;
});

const decoded = new WeakMap<Frame, Uint8Array>();
function levels(frame: Frame): Uint8Array {
  const found = decoded.get(frame) ?? bytes(frame.b64);
  decoded.set(frame, found);
  return found;
}

const name = computed<string | null>(() => {
  const step = recording.value?.values?.steps[valueStep.value];
  const changed = Object.keys(step?.changed ?? {});
  for (const wanted of [chosen.value, buffer.value, changed[0], [...held.value.keys()].at(-1)])
    if (wanted && held.value.has(wanted)) return wanted;
  return null;
});

/** The place of a cell in the tile. */
function element(frame: Frame, [row, column]: [number, number]): string {
  const outer = frame.shape.slice(0, -1);
  let left = row * frame.step[0];
  const place = outer.map((_, i) => {
    const inner = outer.slice(i + 1).reduce((a, b) => a * b, 1);
    const at = Math.floor(left / inner);
    left -= at * inner;
    return at;
  });
  return [...place, column * frame.step[1]].join(", ");
}

export function ValuesView() {
  const values = recording.value?.values;
  if (!values?.steps.length)
    return (
      <Empty>
        No values:{" "}
        {recording.value?.notes.find((n) => /value|run/.test(n)) ??
          "the small run was not recorded"}
        .
      </Empty>
    );
  const at = valueStep.value;
  const step = values.steps[at]!;
  const frame = name.value ? values.frames[held.value.get(name.value)!] : undefined;
  return (
    <div class="values">
      <div class="row-tools">
        <button
          type="button"
          onClick={() => goValue(at - 1)}
          aria-label="value step back"
          title="["
        >
          ◀
        </button>
        <input
          type="range"
          min={0}
          max={values.steps.length - 1}
          value={at}
          aria-label="step of the small run"
          onInput={(event) => goValue(Number(event.currentTarget.value))}
        />
        <button type="button" onClick={() => goValue(at + 1)} aria-label="value step" title="]">
          ▶
        </button>
        <span class="num" data-total="valuestep">
          {at + 1} / {values.steps.length}
        </span>
        <label>
          <input
            type="checkbox"
            checked={follow.value}
            onInput={(e) => (follow.value = e.currentTarget.checked)}
          />{" "}
          follow the timeline
        </label>
      </div>
      <p class="caption mono">
        {step.role ? `${step.role}: ` : ""}
        {step.text || step.op}
      </p>
      <p class="caption">
        {[
          ...Object.entries(values.sizes).map(([n, s]) => `${n} = ${s}`),
          `first block of ${step.kernel}`,
        ].join(", ")}{" "}
        {Object.entries(step.env).map(([n, v]) => (
          <span key={n} class="pill">
            {n} = {v}
          </span>
        ))}
      </p>
      <div class="chips" role="group" aria-label="tiles">
        {[...held.value.keys()].map((n) => (
          <button
            key={n}
            type="button"
            aria-pressed={n === name.value}
            class={`chip ${n === name.value ? "on" : ""} ${n in step.changed ? "live" : ""}`}
            onClick={() => (chosen.value = n)}
          >
            {n}
            {n in step.changed ? <em> written</em> : null}
          </button>
        ))}
      </div>
      {frame ? <Heat frame={frame} name={name.value!} /> : <Empty>No tile yet.</Empty>}
    </div>
  );
}

function Heat({ frame, name }: { frame: Frame; name: string }) {
  const { low, high } = frame;
  const [rows, columns] = frame.rows;
  const known = low !== null && high !== null;
  const { colours, signed } = heat(low ?? 0, high ?? 0);
  const ends = [colours[0]!, colours[127]!, colours[254]!].map((c) => `rgb(${c.join(" ")})`);
  const cell = hover.value;
  const level = cell ? levels(frame)[cell[0] * columns + cell[1]] : undefined;
  return (
    <>
      <div class="scale">
        <span class="num">{known ? short(low) : "–"}</span>
        <i style={{ background: `linear-gradient(90deg, ${ends.join(", ")})` }} />
        <span class="num">{known ? short(high) : "–"}</span>
        <span class="muted">
          {name}: {frame.dtype} {frame.shape.join(" × ")}
          {signed ? ", signed" : ""}, sum{" "}
          <b data-total="sum" data-name={name}>
            {frame.sum === null ? "–" : short(frame.sum)}
          </b>
          {frame.nan ? <b class="bad">, {frame.nan} are not a number</b> : null}
          {frame.inf ? <b class="bad">, {frame.inf} infinite</b> : null}
        </span>
      </div>
      <Canvas
        class="heatbox"
        label={`values of ${name}: ${frame.shape.join(" × ")}, from ${low} to ${high}`}
        again={frame}
        cells={{ at: hover, rows, columns }}
        form={columns / Math.max(rows, columns / 8)}
        onPointerMove={(event) => {
          const box = event.currentTarget as HTMLElement;
          const size = cells(rows, columns, box.clientWidth, box.clientHeight);
          const [x, y] = spot(event);
          const [r, c] = [Math.floor(y / size[1]), Math.floor(x / size[0])];
          hover.value = r < rows && c < columns ? [r, c] : null;
        }}
        onPointerLeave={() => (hover.value = null)}
        draw={({ context: c, width, height, css }) => {
          const small = document.createElement("canvas");
          [small.width, small.height] = [columns, rows];
          const inner = small.getContext("2d")!;
          const image = inner.createImageData(columns, rows);
          levels(frame).forEach((l, i) => {
            const [r, g, b] = l === 255 ? [214, 0, 120] : colours[l]!;
            image.data.set([r, g, b, 255], 4 * i);
          });
          inner.putImageData(image, 0, 0);
          c.imageSmoothingEnabled = false;
          const [w, h] = cells(rows, columns, width, height);
          c.drawImage(small, 0, 0, columns * w, rows * h);
          c.strokeStyle = css("--line-strong");
          c.strokeRect(0.5, 0.5, columns * w - 1, rows * h - 1);
        }}
      />
      <p class="caption mono" aria-live="polite">
        {cell && level !== undefined && known
          ? `${name}[${element(frame, cell)}] ≈ ${level === 255 ? "not a number" : short(low + ((high - low) * level) / 254)}`
          : "hover an element, or walk by arrow keys"}
      </p>
    </>
  );
}

function cells(rows: number, columns: number, width: number, height: number): [number, number] {
  const side = Math.min(width / columns, Math.max(1, height / rows));
  return rows === 1 ? [width / columns, Math.min(28, height)] : [side, side];
}
