/** The timeline on a canvas: a lane for each unit of a role. Knows no signals. */
import { fill, ink } from "../color";
import type { Measured } from "../contract";
import { cycles } from "../format";
import { type Folded, type Model, type Span } from "../model";
import type { Look } from "../names";
import { lastAtMost, records } from "../tables";
import type { Brush } from "../ui";

export const GUTTER = 132;
const AXIS = 36;
const LANE = 19;
const GAP = 7;

export interface View {
  from: number;
  to: number;
}

export interface Lane {
  y: number;
  label: string;
  track: number;
  head: string;
  spans: Span[];
  measured?: MeasuredSpan[];
}

interface MeasuredSpan {
  role: string;
  start: number;
  end: number;
  waits: boolean;
  for: string;
}

const LABELS: Record<string, string> = {
  threads: "threads",
  "tensor core": "tensor core",
  copies: "copies",
  stores: "stores",
};

/** Threads and what they wait for take turns, so they share a lane. */
export function lanesOf(
  model: Model,
  measured: Measured | null,
): { lanes: Lane[]; height: number } {
  const lanes: Lane[] = [];
  let y = AXIS;
  const told = measured?.parts.find((p) => p.kernel === model.part.name);
  const clocked = told ? records<MeasuredSpan>(told.spans) : [];
  const several = model.timeline.tracks.some((t) => t.block > 0);
  model.timeline.tracks.forEach((track, number) => {
    const own = model.rows.filter((r) => r.track === number);
    const head = several ? `b${track.block} ${track.role}` : track.role;
    const push = (label: string, spans: Span[], more?: MeasuredSpan[]) => {
      const first = !lanes.some((lane) => lane.track === number);
      lanes.push({ y, label, track: number, head: first ? head : "", spans, measured: more });
      y += LANE;
    };
    const threads = own
      .filter((r) => r.unit === "threads" || r.unit === "waits")
      .flatMap((r) => r.spans);
    if (threads.length)
      push(
        LABELS.threads!,
        threads.sort((a, b) => a.start - b.start),
      );
    for (const row of own)
      if (row.unit !== "threads" && row.unit !== "waits") push(LABELS[row.unit]!, row.spans);
    const mine = clocked.filter((s) => s.role === track.role);
    if (mine.length && track.block === 0) push("measured", [], mine);
    y += GAP;
  });
  return { lanes, height: y + 4 };
}

/** Where measured iterations are drawn: over the middle one of those that are modelled. */
function origin(model: Model): number {
  const first = model.spans.find((s) => s.iteration >= 0)?.track;
  const own = model.spans.filter((s) => s.track === first && s.iteration >= 0);
  const shown = [...new Set(own.map((s) => s.iteration))].sort((a, b) => a - b);
  const middle = shown[Math.floor(shown.length / 3)] ?? 0;
  return own.find((s) => s.iteration === middle)?.start ?? 0;
}

export interface Drawn {
  model: Model;
  fold: Folded;
  view: View;
  now: number;
  looks: Look[];
  line: number | null;
  current: Span | null;
  lanes: Lane[];
  flags: { time: number; track: number; text: string }[];
}

/** What a step changes is drawn over what stays: the playhead, and what it points at. */
export function paint(brush: Brush, d: Drawn): void {
  const { context: c, width, height, css } = brush;
  const { fold, view } = d;
  const plot = width - GUTTER - 6;
  const x = (time: number) =>
    GUTTER + ((fold.fold(time) - view.from) / (view.to - view.from)) * plot;
  const key = [d.model, fold, view, d.looks, d.lanes, d.flags];
  brush.layer(key, (layer, fresh) => fresh && ground({ ...brush, context: layer }, d, x));
  c.save();
  c.beginPath();
  c.rect(GUTTER, 0, plot + 6, height);
  c.clip();
  for (const lane of d.lanes) marks(c, d, lane, x, css);
  if (d.now >= 0) {
    const head = x(d.now);
    c.fillStyle = css("--accent");
    c.fillRect(head - 0.75, 14, 1.5, height);
    c.beginPath();
    c.moveTo(head - 5, 12);
    c.lineTo(head + 5, 12);
    c.lineTo(head, 20);
    c.fill();
  }
  c.restore();
}

function ground(
  { context: c, width, height, ratio, css }: Brush,
  d: Drawn,
  x: (time: number) => number,
): void {
  const plot = width - GUTTER - 6;
  const [text, muted, lineColour] = ["--text", "--muted", "--line"].map(css) as [
    string,
    string,
    string,
  ];
  c.font = `11px ${css("--sans")}`;
  c.textBaseline = "middle";
  c.save();
  c.beginPath();
  c.rect(GUTTER, 0, plot + 6, height);
  c.clip();
  phases(c, d, x, height, css);
  ticks(c, d, x, plot, height, muted, lineColour);
  for (const lane of d.lanes) {
    c.fillStyle = css("--raised");
    c.fillRect(GUTTER, lane.y, plot + 6, LANE - 2);
    if (lane.measured) clocked(c, d, lane, x, css, ratio);
    else spans(c, d, lane, x, css, ratio);
  }
  gaps(c, d, x, height, css);
  flips(c, d, x, css);
  for (const flag of d.flags) {
    const at = x(flag.time);
    c.fillStyle = css("--bad");
    c.fillRect(at - 1, AXIS - 6, 2, height);
    c.beginPath();
    c.moveTo(at, AXIS - 8);
    c.lineTo(at + 12, AXIS - 3);
    c.lineTo(at, AXIS + 2);
    c.fill();
    const late = at + 16 + c.measureText(flag.text).width > width;
    c.textAlign = late ? "right" : "left";
    c.fillText(flag.text, late ? at - 6 : at + 16, AXIS - 3);
    c.textAlign = "left";
  }
  c.restore();
  c.textAlign = "left";
  for (const lane of d.lanes) {
    const middle = lane.y + LANE / 2 - 1;
    if (lane.head) {
      c.fillStyle = lineColour;
      c.fillRect(0, lane.y - 4, width, 1);
    }
    c.fillStyle = text;
    c.font = `600 11px ${css("--sans")}`;
    const heads = lane.head ? fit(c, lane.head, lane.label ? 84 : GUTTER) : "";
    if (heads) c.fillText(heads, 2, middle);
    c.font = `10px ${css("--sans")}`;
    c.fillStyle = muted;
    c.textAlign = "right";
    if (!lane.head || c.measureText(heads).width + c.measureText(lane.label).width < GUTTER - 16)
      c.fillText(lane.label, GUTTER - 6, middle);
    else c.fillText(lane.label.replace(/,.*/, ""), GUTTER - 6, middle);
    c.textAlign = "left";
  }
}

function fit(c: CanvasRenderingContext2D, text: string, width: number): string {
  if (c.measureText(text).width <= width) return text;
  let out = text;
  while (out && c.measureText(`${out}…`).width > width) out = out.slice(0, -1);
  return out ? `${out}…` : "";
}

function phases(
  c: CanvasRenderingContext2D,
  d: Drawn,
  x: (t: number) => number,
  height: number,
  css: (n: string) => string,
): void {
  c.font = `10px ${css("--sans")}`;
  d.model.timeline.phases.forEach((phase, i) => {
    const [a, b] = [x(phase.start), x(phase.end)];
    c.fillStyle = css(i % 2 ? "--raised" : "--accent-soft");
    c.fillRect(a, 20, Math.max(1, b - a), 12);
    c.fillStyle = css("--line-strong");
    c.fillRect(a, 20, 1, height);
    c.fillStyle = css("--muted");
    const left = Math.max(a, GUTTER) + 4;
    const label = fit(c, phase.name, b - left - 4);
    if (label.length > 2) c.fillText(label, left, 26);
  });
}

function ticks(
  c: CanvasRenderingContext2D,
  d: Drawn,
  x: (t: number) => number,
  plot: number,
  height: number,
  muted: string,
  line: string,
): void {
  const span = d.view.to - d.view.from;
  const rough = (span / plot) * 90;
  const power = 10 ** Math.floor(Math.log10(rough));
  const stepSize = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? 10 * power;
  const [from, to] = [d.fold.unfold(d.view.from), d.fold.unfold(d.view.to)];
  c.textAlign = "center";
  let last = -Infinity;
  for (let t = Math.ceil(from / stepSize) * stepSize; t <= to; t += stepSize) {
    const at = x(t);
    if (at - last < 70) continue;
    last = at;
    c.fillStyle = line;
    c.fillRect(at, AXIS, 1, height);
    c.fillStyle = muted;
    c.fillText(cycles(t), Math.max(at, GUTTER + 14), 7);
  }
  c.textAlign = "left";
}

function spans(
  c: CanvasRenderingContext2D,
  d: Drawn,
  lane: Lane,
  x: (t: number) => number,
  css: (n: string) => string,
  ratio: number,
): void {
  const [from, to] = [d.fold.unfold(d.view.from), d.fold.unfold(d.view.to)];
  let i = Math.max(0, lastAtMost(lane.spans, from, (s) => s.start) - 3);
  const h = LANE - 4;
  for (; i < lane.spans.length; i++) {
    const span = lane.spans[i]!;
    if (span.start > to) break;
    if (span.end < from) continue;
    const [a, b] = [x(span.start), x(span.end)];
    const wide = Math.max(1.2, b - a - (b - a > 4 ? 1 : 0));
    c.font = `10px ${css("--sans")}`;
    if (span.unit === "waits") {
      c.fillStyle = fill(c, css("--wait-soft"), 1, ratio);
      c.fillRect(a, lane.y + 4, wide, h - 6);
      if (wide > 34) {
        const left = Math.max(a, GUTTER);
        const words = fit(c, `waits: ${span.wait}`, b - left - 8);
        if (words.length > 5) {
          const size = c.measureText(words).width;
          c.fillStyle = css("--raised");
          c.fillRect(left + 2, lane.y + 2, size + 5, h - 2);
          c.fillStyle = css("--muted");
          c.fillText(words, left + 4, lane.y + h / 2 + 1);
        }
      }
    } else {
      const look = d.looks[span.op];
      const base = look?.colour ?? "#8C8C8C";
      c.fillStyle = fill(c, base, look?.hatch ?? 0, ratio);
      c.fillRect(a, lane.y + 1, wide, h);
      if (wide > 11) {
        c.fillStyle = ink(base);
        c.font = `600 10px ${css("--sans")}`;
        const words =
          wide > 60
            ? fit(c, `${look?.letter ?? ""}  ${d.model.label(span)}`, wide - 6)
            : (look?.letter ?? "");
        c.fillText(words, a + 3, lane.y + 1 + h / 2);
      }
    }
  }
}

/** Outlines of the spans of the current line, and of the one that is under way. */
function marks(
  c: CanvasRenderingContext2D,
  d: Drawn,
  lane: Lane,
  x: (t: number) => number,
  css: (n: string) => string,
): void {
  const [from, to] = [d.fold.unfold(d.view.from), d.fold.unfold(d.view.to)];
  const own = d.line === null ? null : d.model.opsOf(d.line);
  let i = Math.max(0, lastAtMost(lane.spans, from, (s) => s.start) - 3);
  for (; i < lane.spans.length; i++) {
    const span = lane.spans[i]!;
    if (span.start > to) break;
    if (span.end < from || (span !== d.current && !own?.has(span.op))) continue;
    const [a, b] = [x(span.start), x(span.end)];
    const wide = Math.max(1.2, b - a - (b - a > 4 ? 1 : 0));
    c.strokeStyle = span === d.current ? css("--text") : css("--mark-edge");
    c.lineWidth = span === d.current ? 2 : 1.25;
    c.strokeRect(a + 0.5, lane.y + 1, Math.max(1, wide - 1), LANE - 4);
  }
}

function clocked(
  c: CanvasRenderingContext2D,
  d: Drawn,
  lane: Lane,
  x: (t: number) => number,
  css: (n: string) => string,
  ratio: number,
): void {
  const from = origin(d.model);
  c.font = `10px ${css("--sans")}`;
  for (const span of lane.measured!) {
    const [a, b] = [x(from + span.start), x(from + span.end)];
    if (b < GUTTER) continue;
    const base = span.waits ? css("--wait-soft") : "#8C8C8C";
    c.fillStyle = fill(c, base, span.waits ? 1 : 0, ratio);
    c.fillRect(a, lane.y + 2, Math.max(1, b - a - 1), LANE - 6);
    const words = fit(c, span.for, b - a - 6);
    c.fillStyle = span.waits ? css("--text") : ink(base);
    if (words.length > 3) c.fillText(words, a + 3, lane.y + LANE / 2 - 1);
  }
}

function gaps(
  c: CanvasRenderingContext2D,
  d: Drawn,
  x: (t: number) => number,
  height: number,
  css: (n: string) => string,
): void {
  for (const gap of d.model.timeline.elided) {
    const [a, b] = [x(gap.start), x(gap.end)];
    if (b < GUTTER) continue;
    c.fillStyle = css("--panel");
    c.globalAlpha = 0.88;
    c.fillRect(a, AXIS - 2, b - a, height);
    c.globalAlpha = 1;
    c.strokeStyle = css("--line-strong");
    c.lineWidth = 1;
    for (const edge of [a, b]) {
      c.beginPath();
      for (let y = AXIS - 2; y < height; y += 8)
        c.lineTo(edge + (((y - AXIS + 2) / 8) % 2 ? 3 : -3), y);
      c.stroke();
    }
    c.save();
    c.translate((Math.max(a, GUTTER) + b) / 2, (AXIS + height) / 2);
    const upright = b - a >= 120;
    if (!upright) c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillStyle = css("--muted");
    c.font = `10px ${css("--sans")}`;
    const which = `${gap.iterations[0]}–${gap.iterations[1] - 1}`;
    const words = [`iterations ${which} repeat`, `${which} repeat`, which];
    const room = upright ? b - a : height - AXIS;
    c.fillText(words.find((each) => c.measureText(each).width < room - 4) ?? "", 0, 0);
    c.restore();
    c.textAlign = "left";
  }
}

/** A phase of a barrier that completes: a small triangle under the axis. */
function flips(
  c: CanvasRenderingContext2D,
  d: Drawn,
  x: (t: number) => number,
  css: (n: string) => string,
): void {
  const full = new Set(d.model.part.rings.map((r) => r.full));
  for (const flip of d.model.flips) {
    const at = x(flip.time);
    if (at < GUTTER) continue;
    const down = full.has(flip.barrier);
    c.fillStyle = css(down ? "--good" : "--muted");
    c.beginPath();
    const y = AXIS - 3;
    c.moveTo(at - 3, down ? y - 4 : y);
    c.lineTo(at + 3, down ? y - 4 : y);
    c.lineTo(at, down ? y : y - 4);
    c.fill();
  }
}

/** The span under a point. */
export function hit(
  d: Pick<Drawn, "model" | "fold" | "view" | "lanes">,
  px: number,
  py: number,
  width: number,
): Span | null {
  const lane = d.lanes.find((l) => py >= l.y && py < l.y + LANE);
  if (!lane || px < GUTTER) return null;
  const time = timeAt(d, px, width);
  const slack = ((d.view.to - d.view.from) / (width - GUTTER)) * 3;
  let best: Span | null = null;
  for (const span of lane.spans) {
    if (span.start - slack > time) break;
    if (span.end + slack >= time && (!best || span.start <= time)) best = span;
  }
  return best;
}

export function timeAt(d: Pick<Drawn, "fold" | "view">, px: number, width: number): number {
  const part = (px - GUTTER) / (width - GUTTER - 6);
  return d.fold.unfold(d.view.from + part * (d.view.to - d.view.from));
}
