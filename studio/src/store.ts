/** What the views share. A click in one view writes a signal here; the others read it. */
import { batch, computed, effect, signal } from "@preact/signals";
import type { Boot, Comparison, Failure, Recording, Request } from "./contract";
import { Folded, Model, type Span } from "./model";

export const boot = signal<Boot | null>(null);
export const recording = signal<Recording | null>(null);
export const comparison = signal<Comparison | null>(null);
export const failure = signal<Failure | null>(null);
/** "" or what the server is at. */
export const busy = signal("");

export type Screen = "kernel" | "gallery";
export const screen = signal<Screen>("kernel");

export const partIndex = signal(0);
export const part = computed(() => recording.value?.parts[partIndex.value] ?? null);
export const model = computed(() => {
  const timeline = part.value?.timeline;
  return part.value && timeline?.spans.rows.length
    ? new Model(part.value, timeline, recording.value?.source)
    : null;
});
export const folded = computed(() => (model.value ? new Folded(model.value.timeline) : null));

/** The playhead, in cycles. */
export const now = signal(0);
/** A span that was clicked, while it is under way. */
const picked = signal(-1);
/** A line that was clicked, until the playhead moves by itself. */
const pinned = signal<number | null>(null);
export const buffer = signal<string | null>(null);

export const moment = computed(() => model.value?.momentAt(now.value) ?? 0);

/** What the page is about at this time: the span that was clicked, or the one that began last. */
export const current = computed<Span | null>(() => {
  const known = model.value;
  if (!known) return null;
  const chosen = known.spans[picked.value];
  if (chosen && chosen.start <= now.value && now.value <= chosen.end) return chosen;
  for (let i = moment.value; i >= 0 && i > moment.value - 40; i--) {
    const spans = known.moments[i]!.spans.map((s) => known.spans[s]!);
    const work = spans.find((s) => s.unit !== "waits") ?? spans[0];
    if (work) return work;
  }
  return null;
});

/** The line of the source text that all views mark. */
export const line = computed<number | null>(() => {
  if (pinned.value !== null) return pinned.value;
  const span = current.value;
  if (span) return model.value!.op(span).line;
  return (
    recording.value?.values?.steps[valueStep.value]?.line ??
    recording.value?.errors[0]?.line ??
    null
  );
});

// values follow the timeline until a person steps through them alone
export const follow = signal(true);
const ownStep = signal(0);

/** Steps of the small run by line, those of one turn of its loops together. */
const turns = computed(() => {
  const found = new Map<number, { key: string; steps: number[] }[]>();
  const steps = recording.value?.values?.steps ?? [];
  const name = steps.some((s) => s.kernel === part.value?.name) ? part.value?.name : null;
  steps.forEach((step, i) => {
    if (step.line === null || (name && step.kernel !== name)) return;
    const list = found.get(step.line) ?? [];
    found.set(step.line, list);
    const key = JSON.stringify(step.env);
    if (list.at(-1)?.key === key) list.at(-1)!.steps.push(i);
    else list.push({ key, steps: [i] });
  });
  return found;
});

/** The small run at the iteration that the timeline is at, or at its last one. */
export const valueStep = computed<number>(() => {
  const values = recording.value?.values;
  if (!values?.steps.length) return 0;
  if (!follow.value || !model.value) return Math.min(ownStep.value, values.steps.length - 1);
  if (now.value >= model.value.timeline.cycles) return values.steps.length - 1;
  const span = current.value;
  const op = span && model.value.op(span);
  for (const wanted of op ? [op.line, ...op.lines] : []) {
    const list = wanted === null ? undefined : turns.value.get(wanted);
    if (!list?.length) continue;
    const { steps } = list[Math.min(Math.max(0, span!.iteration), list.length - 1)]!;
    const telling = steps.filter((i) => Object.keys(values.steps[i]!.changed).length);
    return (
      telling.findLast((i) => values.steps[i]!.op.startsWith(op!.kind)) ??
      telling.at(-1) ??
      steps[0]!
    );
  }
  return 0;
});

export function goValue(step: number): void {
  const values = recording.value?.values;
  if (!values) return;
  batch(() => {
    follow.value = false;
    ownStep.value = Math.max(0, Math.min(values.steps.length - 1, step));
    pinned.value = values.steps[ownStep.value]?.line ?? null;
  });
}

export function go(time: number, span = -1): void {
  batch(() => {
    now.value = Math.max(0, Math.min(model.value?.timeline.cycles ?? 0, time));
    picked.value = span;
    pinned.value = null;
    follow.value = true;
  });
}

/** One moment further, or back. */
export function step(by: number): void {
  const known = model.value;
  if (!known) {
    goValue(valueStep.value + by);
    return;
  }
  const here = moment.value;
  const between = by < 0 && now.value > known.moments[here]!.time;
  const next = between ? here : Math.max(0, Math.min(known.moments.length - 1, here + by));
  go(known.moments[next]!.time);
}

/** A line was clicked: the next time that it runs, or the first. */
export function goLine(wanted: number): void {
  const known = model.value;
  const own =
    known?.spans.filter((s) => s.unit !== "waits" && known.op(s).lines.includes(wanted)) ?? [];
  const next = own.filter((s) => s.start > now.value).sort((a, b) => a.start - b.start)[0];
  const first = next ?? [...own].sort((a, b) => a.start - b.start)[0];
  batch(() => {
    if (first) go(first.start, first.index);
    pinned.value = wanted;
  });
}

export type Jump =
  "wait" | "flip" | "iteration" | "phase" | "store" | "longest wait" | "start" | "end";

/** The next event of a kind; from the start again after the last one. */
export function jump(kind: Jump): void {
  const known = model.value;
  if (!known) {
    goValue(kind === "start" ? 0 : kind === "end" ? 1e9 : valueStep.value + 1);
    return;
  }
  const spans = known.spans.filter((s) =>
    kind === "store" ? s.unit === "stores" : s.unit === "waits",
  );
  if (kind === "start") return go(0);
  if (kind === "end") return go(known.timeline.cycles);
  if (kind === "longest wait") {
    const longest = spans.reduce<Span | null>(
      (a, b) => (a && a.end - a.start >= b.end - b.start ? a : b),
      null,
    );
    return longest ? go(longest.start, longest.index) : undefined;
  }
  const firsts = new Map<number, number>();
  for (const s of known.spans)
    if (s.iteration >= 0)
      firsts.set(s.iteration, Math.min(firsts.get(s.iteration) ?? Infinity, s.start));
  const times: Record<typeof kind, () => [number, number][]> = {
    wait: () => spans.map((s) => [s.start, s.index]),
    store: () => spans.map((s) => [s.start, s.index]),
    flip: () => known.flips.map((f) => [f.time, -1]),
    iteration: () => [...firsts.values()].map((t) => [t, -1]),
    phase: () => known.timeline.phases.map((p) => [p.start, -1]),
  };
  const found = times[kind]().sort((a, b) => a[0] - b[0]);
  const next = found.find(([time]) => time > now.value) ?? found[0];
  if (next) go(...next);
}

const most = (numbers: number[]) => Math.max(0, numbers.indexOf(Math.max(...numbers)));

/** Another recording: the same place in it where there is one, or its longest kernel. */
export function show(next: Recording, keepTime = false): void {
  batch(() => {
    const source = next.source ??
      recording.value?.source ?? { first: 1, lines: [], kernel: [1, 1] };
    recording.value = { ...next, source };
    const longest = most(next.parts.map((p) => p.timeline?.cycles ?? 0));
    partIndex.value = keepTime && next.parts[partIndex.value] ? partIndex.value : longest;
    failure.value = null;
    const cycles = model.value?.timeline.cycles ?? 0;
    go(keepTime ? Math.min(now.value, cycles) : 0);
    if (buffer.value && !part.value?.buffers[buffer.value]) buffer.value = null;
  });
}

// what a person asks for: the request that the controls write
export const request = signal<Request>({});
export const variants = signal<Recording[]>([]);

// playing
export const playing = signal(false);
/** Cycles of the folded time in a second. */
export const speed = signal(1000);
let last = 0;

effect(() => {
  if (!playing.value) return;
  const tick = (time: number) => {
    if (!playing.value) return;
    const fold = folded.value;
    if (!fold) {
      if (time - last > 400) {
        goValue(valueStep.peek() + 1);
        last = time;
      }
    } else if (last) {
      const place = fold.fold(now.peek()) + ((time - last) / 1000) * speed.peek();
      go(fold.unfold(place));
      last = time;
      if (place >= fold.length) playing.value = false;
    } else last = time;
    requestAnimationFrame(tick);
  };
  last = 0;
  requestAnimationFrame(tick);
});

// looks
export type Theme = "auto" | "light" | "dark";
export const theme = signal<Theme>("auto");
