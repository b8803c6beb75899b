/** One kernel's timeline, indexed: what happens at a moment, and what stands where. */
import type { Op, Part, Recording, Region, SpanColumn, Timeline, Unit } from "./contract";
import { lastAtMost, records } from "./tables";

export interface Span {
  index: number;
  track: number;
  unit: Unit;
  op: number;
  start: number;
  end: number;
  iteration: number;
  tile: number;
  wait: string;
  bytes: number;
  reads: number[];
  writes: number[];
}

export interface Flip {
  time: number;
  barrier: string;
  slot: number;
  phase: number;
}

/** All that begins, or is told, at one time: a step of the page. */
export interface Moment {
  time: number;
  spans: number[];
  flips: number[];
}

export interface Row {
  track: number;
  unit: Unit;
  spans: Span[];
}

export const UNITS: Unit[] = ["threads", "waits", "tensor core", "copies", "stores"];

/** Iterations before a gap that tell what was left out. */
const SEEN = 4;

export type SlotState = "empty" | "filling" | "full" | "read" | "free";

export interface SlotChange {
  time: number;
  state: SlotState;
  tile: string;
  iteration: number;
  span: number;
}

export interface Slot {
  buffer: string;
  slot: number;
  bytes: number;
  changes: SlotChange[];
}

/** Regions of global tensors and when they are touched. */
export interface Visit {
  region: number;
  span: number;
  /** A load is on its way until this time; a store from `start`. */
  start: number;
  end: number;
  kind: "load" | "store" | "use";
}

export function regionText([name, starts, extents]: Region): string {
  if (!starts.length) return name;
  const axes = starts.map((start, i) =>
    extents[i] === 1 ? `${start}` : `${start}:${start + extents[i]!}`,
  );
  return `${name}[${axes.join(", ")}]`;
}

/** A statement without its indices: "copy A → tile". */
export function brief(text: string): string {
  let out = text.replace(/ \w+=("[^"]*"|\S+)/g, "").replace(/ phase .*/, "");
  for (let before = ""; before !== out;) [before, out] = [out, out.replace(/\[[^[\]]*\]/g, "")];
  for (let before = ""; before !== out;) [before, out] = [out, out.replace(/ in \([^()]*\)/g, "")];
  return out.replace(" -> ", " → ");
}

export class Model {
  readonly part: Part;
  readonly timeline: Timeline;
  readonly spans: Span[];
  readonly flips: Flip[];
  readonly moments: Moment[];
  readonly rows: Row[];
  readonly slots: Slot[];
  readonly visits: Map<string, Visit[]>;
  /** Loads and stores of a tensor as they end, and its longest visit. */
  readonly ended: Map<string, { visits: Visit[]; longest: number }>;
  /** Of each op, as a reader knows it. */
  readonly labels: string[];
  private readonly phases = new Map<string, Flip[]>();
  private readonly byLine = new Map<number, Set<number>>();
  private readonly moved: { copies: Running; stores: Running };

  constructor(part: Part, timeline: Timeline, source?: Recording["source"]) {
    this.part = part;
    this.timeline = timeline;
    this.labels = timeline.ops.map((op) => {
      const text = op.line === null ? undefined : source?.lines[op.line - source.first]?.trim();
      return (op.kind === "map" && text) || brief(op.text);
    });
    this.spans = records<Span>(timeline.spans as typeof timeline.spans & { columns: SpanColumn[] });
    this.spans.forEach((span, index) => (span.index = index));
    this.flips = records<Flip>(timeline.flips).sort((a, b) => a.time - b.time);
    this.rows = this.makeRows();
    this.moments = this.makeMoments();
    this.slots = this.makeSlots();
    this.visits = this.makeVisits();
    this.ended = new Map();
    for (const [name, all] of this.visits) {
      const visits = all.filter((v) => v.kind !== "use").sort((a, b) => a.end - b.end);
      const longest = Math.max(0, ...all.map((v) => v.end - v.start));
      this.ended.set(name, { visits, longest });
    }
    for (const flip of this.flips) {
      const key = `${flip.barrier} ${flip.slot}`;
      this.phases.set(key, [...(this.phases.get(key) ?? []), flip]);
    }
    timeline.ops.forEach((op, i) => {
      for (const line of op.lines) {
        const ops = this.byLine.get(line) ?? new Set();
        this.byLine.set(line, ops.add(i));
      }
    });
    this.moved = { copies: this.running("copies"), stores: this.running("stores") };
  }

  label(span: Span): string {
    return span.unit === "waits" ? `waits for ${span.wait}` : this.labels[span.op]!;
  }

  op(span: Span): Op {
    return this.timeline.ops[span.op]!;
  }

  /** The ops of a line. */
  opsOf(line: number): Set<number> | null {
    return this.byLine.get(line) ?? null;
  }

  region(index: number): Region {
    return this.timeline.regions[index]!;
  }

  momentAt(time: number): number {
    return Math.max(
      0,
      lastAtMost(this.moments, time, (m) => m.time),
    );
  }

  /** Spans that are under way, a few at most. */
  active(time: number): Span[] {
    const found: Span[] = [];
    for (const row of this.rows) {
      const at = lastAtMost(row.spans, time, (s) => s.start);
      for (let i = at; i >= 0 && i > at - 8; i--) {
        const span = row.spans[i]!;
        if (span.end > time) found.push(span);
      }
    }
    return found;
  }

  /** Copies whose bytes have not arrived. */
  inFlight(time: number): Span[] {
    const found: Span[] = [];
    for (const row of this.rows) {
      if (row.unit !== "copies") continue;
      for (let i = lastAtMost(row.spans, time, (s) => s.start); i >= 0; i--) {
        const span = row.spans[i]!;
        if (span.end + this.timeline.latency > time) found.push(span);
        else if (span.start + 4 * this.timeline.latency < time) break;
      }
    }
    return found;
  }

  /** Bytes that a unit has moved up to a time, those of iterations left out included. */
  bytesMoved(unit: "copies" | "stores", time: number): number {
    return this.moved[unit].at(time) + (unit === "copies" ? this.leftOut(time) : 0);
  }

  /** Visits of a tensor that are under way. */
  visiting(name: string, time: number): Visit[] {
    const visits = this.visits.get(name) ?? [];
    const since = time - (this.ended.get(name)?.longest ?? 0);
    const found: Visit[] = [];
    for (let i = lastAtMost(visits, time, (v) => v.start); i >= 0; i--) {
      const visit = visits[i]!;
      if (visit.start < since) break;
      if (visit.end > time) found.push(visit);
    }
    return found.reverse();
  }

  slotAt(slot: Slot, time: number): SlotChange | null {
    return slot.changes[lastAtMost(slot.changes, time, (c) => c.time)] ?? null;
  }

  phaseAt(barrier: string, slot: number, time: number): Flip | null {
    const own = this.phases.get(`${barrier} ${slot}`) ?? [];
    return own[lastAtMost(own, time, (f) => f.time)] ?? null;
  }

  /** The name of the tensor's own shape, and what a tile of it is called. */
  isGlobal(name: string): boolean {
    return this.part.buffers[name]?.space === "global";
  }

  private makeRows(): Row[] {
    const rows: Row[] = [];
    for (let track = 0; track < this.timeline.tracks.length; track++)
      for (const unit of UNITS) {
        const spans = this.spans.filter((s) => s.track === track && s.unit === unit);
        spans.sort((a, b) => a.start - b.start || a.end - b.end);
        if (spans.length) rows.push({ track, unit, spans });
      }
    return rows;
  }

  private makeMoments(): Moment[] {
    const found = new Map<number, Moment>();
    const at = (time: number) => {
      const moment = found.get(time) ?? { time, spans: [], flips: [] };
      found.set(time, moment);
      return moment;
    };
    for (const span of this.spans) at(span.start).spans.push(span.index);
    this.flips.forEach((flip, i) => at(flip.time).flips.push(i));
    at(0);
    at(this.timeline.cycles);
    return [...found.values()].sort((a, b) => a.time - b.time);
  }

  private makeSlots(): Slot[] {
    const slots = new Map<string, Slot>();
    const changes = (name: string, slot: number) => slots.get(`${name} ${slot}`)?.changes;
    const { rings, buffers } = this.part;
    const ringOf = new Map(rings.map((ring) => [ring.buffer, ring]));
    for (const [name, info] of Object.entries(buffers)) {
      if (info.space !== "shared") continue;
      const ring = ringOf.get(name);
      const whole = (info.shape.reduce((a, b) => a * b, 1) * info.bits) / 8;
      for (let slot = 0; slot < (ring?.slots ?? 1); slot++)
        slots.set(`${name} ${slot}`, {
          buffer: name,
          slot,
          bytes: ring?.slot_bytes ?? whole,
          changes: [],
        });
    }
    const slotOf = ([name, starts]: Region) => (ringOf.has(name) ? (starts[0] ?? 0) : 0);
    for (const span of this.spans) {
      if (this.timeline.tracks[span.track]?.block) continue; // a neighbour has tiles of its own
      const from = span.reads.map((r) => this.region(r)).find(([name]) => this.isGlobal(name));
      const tile = from ? regionText(from) : "";
      const asynchronous = span.unit === "copies";
      for (const r of span.writes) {
        const region = this.region(r);
        const list = changes(region[0], slotOf(region));
        const entry = {
          tile: tile || this.labels[span.op]!,
          iteration: span.iteration,
          span: span.index,
        };
        list?.push({ time: span.start, state: "filling", ...entry });
        const ring = ringOf.get(region[0]);
        if (!ring?.full) {
          const there = span.end + (asynchronous ? this.timeline.latency : 0);
          list?.push({ time: there, state: "full", ...entry });
        }
      }
      for (const r of span.reads) {
        const region = this.region(r);
        const list = changes(region[0], slotOf(region));
        const entry = { tile: "", iteration: span.iteration, span: span.index };
        list?.push(
          { time: span.start, state: "read", ...entry },
          { time: span.end, state: "full", ...entry },
        );
      }
    }
    for (const flip of this.flips)
      for (const ring of rings) {
        const state =
          flip.barrier === ring.full ? "full" : flip.barrier === ring.free ? "free" : null;
        if (state) {
          const entry = { tile: "", iteration: -1, span: -1 };
          changes(ring.buffer, flip.slot)?.push({ time: flip.time, state, ...entry });
        }
      }
    for (const slot of slots.values()) settle(slot);
    return [...slots.values()];
  }

  private makeVisits(): Map<string, Visit[]> {
    const visits = new Map<string, Visit[]>();
    const push = (region: number, visit: Omit<Visit, "region">) => {
      const name = this.region(region)[0];
      const list = visits.get(name) ?? [];
      visits.set(name, list);
      list.push({ region, ...visit });
    };
    for (const span of this.spans) {
      const late = span.unit === "copies" ? this.timeline.latency : 0;
      const common = { span: span.index, start: span.start, end: span.end + late };
      for (const r of span.reads)
        if (this.isGlobal(this.region(r)[0])) push(r, { kind: "load", ...common });
      for (const r of span.writes)
        if (this.isGlobal(this.region(r)[0])) push(r, { kind: "store", ...common });
    }
    // what a slot holds is used while it is read
    for (const slot of this.slots) {
      let source = -1;
      for (const change of slot.changes) {
        const span = this.spans[change.span];
        if (change.state === "filling" && span)
          source = span.reads.find((r) => this.isGlobal(this.region(r)[0])) ?? -1;
        if (change.state === "read" && span && source >= 0)
          push(source, { kind: "use", span: span.index, start: span.start, end: span.end });
      }
    }
    for (const list of visits.values()) list.sort((a, b) => a.start - b.start);
    return visits;
  }

  private running(unit: Unit): Running {
    return new Running(this.spans.filter((s) => s.unit === unit));
  }

  /** A gap repeats what is before it: as many bytes in as many cycles. */
  private leftOut(time: number): number {
    return this.timeline.elided.reduce((sum, gap) => {
      const length = gap.end - gap.start;
      const turn = length / Math.max(1, gap.iterations[1] - gap.iterations[0]);
      const window = Math.min(SEEN, Math.floor(gap.start / turn)) * turn;
      const bytes = this.moved.copies.at(gap.start) - this.moved.copies.at(gap.start - window);
      const done = Math.min(length, Math.max(0, time - gap.start));
      return sum + (window ? (bytes / window) * done : 0);
    }, 0);
  }
}

/** Changes in their order, each with the tile that the slot holds. A read that ends leaves the slot
 * as it was: empty for the producer only once its barrier says so. */
function settle(slot: Slot): void {
  const rank: Record<SlotState, number> = { full: 0, free: 1, filling: 2, read: 3, empty: 4 };
  slot.changes.sort((a, b) => a.time - b.time || rank[a.state] - rank[b.state]);
  let tile = "";
  let iteration = -1;
  let before: SlotState = "empty";
  slot.changes = slot.changes.filter((change) => {
    if (change.state === "filling") ({ tile, iteration } = change);
    else
      [change.tile, change.iteration] = [tile, change.iteration < 0 ? iteration : change.iteration];
    if (change.state === "full" && before === "free") return false;
    before = change.state;
    return true;
  });
}

/** The sum of what spans have moved so far; a span under way counts in part. */
class Running {
  private readonly spans: Span[];
  private readonly sums: number[];

  constructor(spans: Span[]) {
    this.spans = [...spans].sort((a, b) => a.start - b.start);
    let sum = 0;
    this.sums = this.spans.map((span) => (sum += span.bytes));
  }

  at(time: number): number {
    const last = lastAtMost(this.spans, time, (s) => s.start);
    if (last < 0) return 0;
    const span = this.spans[last]!;
    const done =
      span.end > span.start ? Math.min(1, (time - span.start) / (span.end - span.start)) : 1;
    return this.sums[last]! - span.bytes * (1 - done);
  }
}

/** Time with the gaps folded: what was left out takes `FOLD` cycles of the drawing. */
export class Folded {
  readonly length: number;
  private readonly gaps: { start: number; end: number; cut: number }[];

  constructor(timeline: Pick<Timeline, "elided" | "cycles" | "interval">) {
    const kept = timeline.interval ?? timeline.cycles / 20;
    this.gaps = timeline.elided
      .filter((gap) => gap.end - gap.start > kept)
      .map(({ start, end }) => ({ start, end, cut: end - start - kept }));
    this.length = this.fold(timeline.cycles);
  }

  fold(time: number): number {
    let out = time;
    for (const { start, end, cut } of this.gaps) {
      if (time >= end) out -= cut;
      else if (time > start) out -= (cut * (time - start)) / (end - start);
    }
    return out;
  }

  unfold(place: number): number {
    let out = place;
    for (const { start, end, cut } of this.gaps) {
      const kept = end - start - cut;
      if (out <= start) break;
      if (out >= start + kept) out += cut;
      else out = start + ((out - start) / kept) * (end - start);
    }
    return out;
  }
}
