/** The timeline panel: lanes, zoom, legend, and what measured runs say. */
import { computed, effect, signal } from "@preact/signals";
import { ink } from "../color";
import { cycles, percent, signed } from "../format";
import { type Span, regionText } from "../model";
import { statements } from "../names";
import { current, folded, go, goLine, line, model, now, recording } from "../store";
import { Canvas, Panel, spot, zoomOf } from "../ui";
import { StepsView } from "./steps";
import { GUTTER, type View, hit, lanesOf, paint, timeAt } from "./draw_timeline";

export const view = signal<View>({ from: 0, to: 1 });
const hover = signal<{ span: Span; x: number; y: number } | null>(null);

const lanes = computed(() =>
  model.value ? lanesOf(model.value, recording.value?.measured ?? null) : { lanes: [], height: 0 },
);

export function fitView(): void {
  view.value = { from: 0, to: Math.max(1, folded.value?.length ?? 1) };
}

let seen: unknown = null;
effect(() => {
  if (folded.value === seen) return;
  seen = folded.value;
  fitView();
});

// the playhead stays in sight
effect(() => {
  const place = folded.value?.fold(now.value) ?? 0;
  const { from, to } = view.peek();
  const size = to - from;
  const most = (folded.peek()?.length ?? 1) - size;
  if (place > to - size * 0.02 || place < from)
    view.value = at(Math.max(0, Math.min(most, place - size * 0.15)), size);
});

function at(from: number, size: number): View {
  return { from, to: from + size };
}

export function zoom(by: number, around?: number): void {
  const length = folded.value?.length ?? 1;
  const { from, to } = view.value;
  const size = Math.max(20, Math.min(length, (to - from) * by));
  const middle = around ?? Math.max(from, Math.min(to, folded.value?.fold(now.value) ?? from));
  const part = (middle - from) / (to - from || 1);
  view.value = at(Math.max(0, Math.min(length - size, middle - part * size)), size);
}

function pan(by: number): void {
  const length = folded.value?.length ?? 1;
  const { from, to } = view.value;
  view.value = at(Math.max(0, Math.min(length - (to - from), from + by)), to - from);
}

/** Two iterations around the playhead. */
export function zoomLoop(): void {
  const known = model.value?.timeline;
  if (!known?.interval) return;
  const size = 2.2 * known.interval;
  const place = folded.value!.fold(now.value);
  view.value = at(Math.max(0, Math.min(folded.value!.length - size, place - 0.1 * size)), size);
}

/** Where errors stand in time: at the first op of their lines. */
const flags = computed(() => {
  const known = model.value;
  if (!known) return [];
  const stuck = known.timeline.standing?.[0];
  const found = stuck
    ? [{ time: known.timeline.cycles, track: stuck.track, text: "nobody goes on" }]
    : [];
  for (const error of recording.value?.errors ?? []) {
    const lines = [error.line, ...(error.accesses ?? []).map((a) => a.line)];
    const first = known.spans.find((s) => known.op(s).lines.some((l) => lines.includes(l)));
    const text = error.kind || error.stage;
    found.push({ time: first?.start ?? known.timeline.cycles, track: first?.track ?? 0, text });
  }
  return found;
});

function drawn() {
  return {
    model: model.value!,
    fold: folded.value!,
    view: view.value,
    now: now.value,
    looks: statements.value.of,
    line: line.value,
    current: current.value,
    lanes: lanes.value.lanes,
    flags: flags.value,
  };
}

let drag: { x: number; moved: boolean } | null = null;

export function TimelineView() {
  const known = model.value;
  const tools = (
    <>
      <Busy />
      <Clocked />
      <button type="button" onClick={() => zoom(1 / 1.6)} title="zoom in (+)" aria-label="zoom in">
        +
      </button>
      <button type="button" onClick={() => zoom(1.6)} title="zoom out (-)" aria-label="zoom out">
        −
      </button>
      <button type="button" onClick={zoomLoop} title="two iterations (2)">
        2 iterations
      </button>
      <button type="button" onClick={fitView} title="all (0)">
        all
      </button>
    </>
  );
  if (!known)
    return (
      <Panel title="Timeline" name="timeline" flush>
        <StepsView />
      </Panel>
    );
  const panel = (
    <Panel title="Timeline" name="timeline" tools={tools} flush>
      <div class="lanes">
        <Canvas
          label={`timeline of ${known.part.name}: ${cycles(known.timeline.cycles)} cycles, ${known.timeline.limit ?? ""}`}
          height={lanes.value.height}
          again={known}
          draw={(brush) => model.value && paint(brush, drawn())}
          onPointerDown={(event) => {
            drag = { x: event.clientX, moved: false };
            (event.target as HTMLElement).setPointerCapture(event.pointerId);
            const up = () => {
              if (drag && !drag.moved) {
                const [x, y] = spot(event);
                const { clientWidth } = event.target as HTMLElement;
                const span = hit(drawn(), x, y, clientWidth);
                if (span) go(span.start, span.index);
                else if (x >= GUTTER) go(timeAt(drawn(), x, clientWidth));
              }
              drag = null;
            };
            (event.target as HTMLElement).addEventListener("pointerup", up, { once: true });
          }}
          onPointerMove={(event) => {
            const canvas = event.currentTarget as HTMLElement;
            if (drag) {
              const by = drag.x - event.clientX;
              if (Math.abs(by) > 3 || drag.moved) {
                pan((by / (canvas.clientWidth - GUTTER)) * (view.value.to - view.value.from));
                drag = { x: event.clientX, moved: true };
              }
              return;
            }
            const [x, y] = spot(event);
            const span = hit(drawn(), x, y, canvas.clientWidth);
            hover.value = span ? { span, x: event.clientX, y: event.clientY } : null;
          }}
          onPointerLeave={() => (hover.value = null)}
          onWheel={(event) => {
            if (!event.ctrlKey && !event.metaKey && !event.shiftKey && Math.abs(event.deltaX) < 1)
              return;
            event.preventDefault();
            const size = view.value.to - view.value.from;
            if (event.ctrlKey || event.metaKey) {
              const [x] = spot(event);
              const { clientWidth } = event.currentTarget as HTMLElement;
              zoom(
                event.deltaY > 0 ? 1.25 : 0.8,
                folded.value!.fold(timeAt(drawn(), x, clientWidth)),
              );
            } else pan(((event.deltaX || event.deltaY) / 800) * size);
          }}
        />
      </div>
      <Legend />
    </Panel>
  );
  return (
    <>
      {panel}
      <Tip />
    </>
  );
}

function Busy() {
  const t = model.value?.timeline;
  if (!t) return null;
  return (
    <span class="facts" data-total="busy">
      <b data-total="cycles">{cycles(t.cycles)}</b> cycles
      {t.interval ? (
        <>
          {" "}
          · <b data-total="interval">{cycles(t.interval)}</b> an iteration
        </>
      ) : null}
      {Object.entries(t.busy ?? {}).map(([unit, part]) => (
        <span key={unit} class="part">
          {" "}
          · {unit} {percent(part)}
        </span>
      ))}
    </span>
  );
}

function Clocked() {
  const told = recording.value?.measured?.parts.find((p) => p.kernel === model.value?.part.name);
  if (!told) return <span class="facts whole">· not measured</span>;
  const { differs, interval, off } = told;
  return (
    <span class={differs.length ? "flag bad" : "flag good"} title={differs.join("\n")}>
      measured {interval === null ? "" : `${cycles(interval)}, ${signed(off)}`}
      {differs.length ? " ✕" : ""}
    </span>
  );
}

function Legend() {
  const t = model.value!.timeline;
  return (
    <div class="legend">
      {statements.value.legend.map((entry) => (
        <button
          key={entry.look.letter + entry.text}
          type="button"
          class={entry.line !== null && entry.line === line.value ? "on" : ""}
          onClick={() => entry.line !== null && goLine(entry.line)}
          title={`line ${entry.line}: ${entry.unit}`}
        >
          <i
            class={`key hatch${entry.look.hatch}`}
            style={{ background: entry.look.colour, color: ink(entry.look.colour) }}
          >
            {entry.look.letter}
          </i>
          {entry.text}
        </button>
      ))}
      {[t.limit ?? "", ...(t.notes ?? [])].map((text) => (
        <span key={text} class="limit">
          {text}
        </span>
      ))}
    </div>
  );
}

function Tip() {
  const found = hover.value;
  const known = model.value;
  if (!found || !known) return null;
  const { span } = found;
  const scale = zoomOf(document.querySelector(".app")!);
  const left = Math.min(found.x + 14, window.innerWidth - 380);
  return (
    <div class="tip" style={{ left: `${left / scale}px`, top: `${(found.y + 16) / scale}px` }}>
      <b>{known.label(span)}</b>
      <div>
        {known.timeline.tracks[span.track]?.role} · {span.unit} · line {known.op(span).line}
        {span.iteration >= 0 ? ` · iteration ${span.iteration}` : ""}
      </div>
      <div>
        {cycles(span.start)} – {cycles(span.end)}: {cycles(span.end - span.start)} cycles
        {span.bytes ? ` · ${cycles(span.bytes)} bytes` : ""}
      </div>
      {span.reads.length ? (
        <div class="mono">
          reads{" "}
          {span.reads
            .slice(0, 3)
            .map((r) => regionText(known.region(r)))
            .join(", ")}
        </div>
      ) : null}
      {span.writes.length ? (
        <div class="mono">
          writes{" "}
          {span.writes
            .slice(0, 3)
            .map((r) => regionText(known.region(r)))
            .join(", ")}
        </div>
      ) : null}
    </div>
  );
}
