/** The data that the server and exports hand to the page. Unknown keys are ignored. */

export interface Table<Column extends string = string> {
  columns: Column[];
  rows: unknown[][];
}

export interface Packed {
  b64: string;
}

export type Unit = "threads" | "tensor core" | "copies" | "stores" | "waits";

export interface Op {
  text: string;
  kind: string;
  line: number | null;
  lines: number[];
}

export type Region = [buffer: string, starts: number[], extents: number[]];

export type SpanColumn =
  | "track"
  | "unit"
  | "op"
  | "start"
  | "end"
  | "iteration"
  | "tile"
  | "wait"
  | "bytes"
  | "reads"
  | "writes";

export interface Timeline {
  cycles: number;
  walked: { iterations: number; of: number; tiles: number; complete: boolean };
  elided: { start: number; end: number; iterations: [number, number] }[];
  loop: { var: string; line: number | null; iterations: number } | null;
  interval: number | null;
  steady: boolean | null;
  blocks: number;
  busy: Record<string, number> | null;
  limit: string | null;
  notes: string[] | null;
  agents: { role: string; computes: number; waits: Record<string, number> }[] | null;
  bytes: number | null;
  tracks: { role: string; block: number }[];
  /** Agents that wait for what never comes. */
  standing?: { track: number; line: number | null; text: string }[];
  ops: Op[];
  regions: Region[];
  spans: Table<SpanColumn>;
  latency: number;
  flips: Table<"time" | "barrier" | "slot" | "phase">;
  phases: { name: string; start: number; end: number }[];
}

export interface Decision {
  line: number | null;
  op: string;
  text: string;
  choices: Record<string, string>;
  minor: boolean;
}

export interface Ring {
  buffer: string;
  slots: number;
  slot_bytes: number;
  full: string | null;
  free: string | null;
}

export interface BufferInfo {
  space: "shared" | "fragment" | "global" | "local" | "barrier";
  dtype: string;
  bits: number;
  shape: number[];
  line: number | null;
  label: string;
  tensor: string | null;
  layout: string | null;
}

export interface ChipLevel {
  name: string;
  bytes?: number | null;
  bytes_per_cycle?: number | null;
  latency?: number | null;
  products_per_cycle?: number | null;
  /** By benchmarks/memory_levels.py; null where nothing was. */
  measured?: { bytes?: number; bytes_per_cycle?: number; latency?: number } | null;
}

export interface Chip {
  name: string;
  multiprocessors: number;
  levels: ChipLevel[];
  measured?: { device: string; date: string; file: string } | null;
}

export interface Access {
  line: number | null;
  instruction: string;
  writes: boolean;
  width: number;
  requests: number;
  wavefronts: number;
  ideal: number;
  words: string;
}

export interface Layout {
  buffer: string;
  kind: "fragment" | "shared";
  line: number | null;
  formula: string;
  shape: number[];
  window: number[];
  threads?: number;
  registers?: number;
  replicas?: number;
  thread?: Packed;
  register?: Packed;
  bytes_each?: number;
  bank?: Packed;
  address?: Packed;
  accesses?: Access[];
}

export interface SharedBuffer {
  buffer: string;
  start: number;
  bytes: number;
  line: number | null;
  first_use: number | null;
  last_use: number | null;
  shares_with: string[];
}

export interface Part {
  name: string;
  grid: (number | string)[];
  threads: number;
  cluster: number;
  roles: {
    name: string;
    first_warp: number;
    warps: number;
    registers: number | null;
    instances: number;
  }[];
  why: Record<string, string>;
  decisions: Decision[];
  costs: { line: number | null; text: string }[];
  takes: Record<string, number>;
  registers: {
    binary: number | null;
    fragments: {
      role: string;
      registers: number;
      line: number | null;
      live?: Record<string, number>;
    }[];
  } | null;
  shared: { bytes: number; why: string; buffers: SharedBuffer[] } | null;
  buffers: Record<string, BufferInfo>;
  timeline: Timeline | null;
  rings: Ring[];
  layouts: Layout[] | null;
}

export interface Frame {
  shape: number[];
  /** Rows and columns of the bytes: of the tile, its first axes as one, each `step`-th. */
  rows: [number, number];
  dtype: string;
  step: [number, number];
  low: number | null;
  high: number | null;
  sum: number | null;
  nan: number;
  inf: number;
  b64: string;
}

export interface ValueStep {
  kernel: string;
  line: number | null;
  text: string;
  op: string;
  role: string;
  env: Record<string, number>;
  changed: Record<string, number>;
}

export interface Values {
  sizes: Record<string, number>;
  seed: number;
  steps: ValueStep[];
  initial: Record<string, number>;
  frames: Frame[];
  truncated: boolean;
  result: Record<string, { sum: number | null; frame: number }>;
}

export interface Level {
  name: string;
  language: string;
  lines: string[];
  links: number[][];
}

export interface Roofline {
  flops: number;
  bytes: number;
  intensity: number;
  kind: string;
  peak_flops: number;
  peak_bytes: number;
  compute_us: number;
  memory_us: number;
  bound: string;
  modelled_us: number | null;
  modelled_flops?: number | null;
  modelled_bytes?: number | null;
  measured: { name: string; us: number; file: string; date: string }[];
  why: string;
}

export interface Failure {
  stage: string;
  kind: string;
  message: string;
  line: number | null;
  column: number | null;
  expected: string;
  got: string;
  fix: string;
  notes: string[];
  text: string;
  accesses?: { line: number | null; text: string; what: string }[];
  waiting?: { role: string; line: number | null; text: string }[];
  step?: number | null;
}

export interface Measured {
  file: string;
  date: string;
  device: string;
  kernel: string;
  parts: {
    kernel: string;
    interval: number | null;
    modelled: number | null;
    /** By how much of the model's iteration the measured one differs. */
    off: number;
    /** What is off by more than 15 % of an iteration, in sentences. */
    differs: string[];
    roles: {
      role: string;
      measured: { computes: number; waits: Record<string, number> };
      modelled: { computes: number; waits: Record<string, number> };
      /** Cycles of an iteration by what it does: measured, modelled. */
      spent: Record<string, [number, number]>;
    }[];
    spans: Table<"role" | "start" | "end" | "waits" | "for">;
    length: number;
    differences: { role: string; what: string; modelled: number; measured: number }[];
  }[];
}

export interface Request {
  gallery?: string | null;
  text?: string | null;
  kernel?: string | null;
  sizes?: Record<string, number>;
  args?: Record<string, unknown>;
  schedule?: Record<string, unknown>;
  target?: string;
  /** Sizes of the run for values. */
  small?: Record<string, number>;
  want?: string[] | null;
}

export interface Choices {
  fields: { name: string; value: unknown; values: unknown[]; help?: string }[];
  tiles: { loop: string; size: number; given: boolean }[];
  threads: number | null;
  threads_given: boolean;
  runners_up: {
    text: string;
    us: number;
    limit: string;
    tiles: Record<string, number>;
    threads: number;
    cluster: number;
  }[];
  targets: string[];
  options?: Record<string, unknown>;
}

export interface Recording {
  version: number;
  title: string;
  lesson: { title?: string; text: string; try: string; change: Request | null } | null;
  file: string;
  kernel: string;
  names: string[];
  target: string;
  arch: string;
  clock_hz: number;
  request: Request;
  source: { file?: string; first: number; lines: string[]; kernel: [number, number] };
  choices: Choices | null;
  parts: Part[];
  values: Values | null;
  levels: Level[] | null;
  roofline: Roofline | null;
  chip: Chip | null;
  errors: Failure[];
  measured: Measured | null;
  notes: string[];
  /** Told before the assembler has run: registers of the binary are not known. */
  draft?: boolean;
}

export interface Comparison {
  a: Recording;
  b: Recording;
  sentences: string[];
  rows: { what: string; a: number | string | null; b: number | string | null; unit: string }[];
  faster: "a" | "b" | null;
  ratio: number | null;
}

export interface GalleryEntry {
  name: string;
  title: string;
  text: string;
  try?: string;
  request?: Request;
}

export type Boot =
  | { mode: "live"; token: string; edit: boolean; request: Request; gallery: GalleryEntry[] }
  | { mode: "static"; recordings: Recording[]; comparisons: Comparison[]; gallery: GalleryEntry[] };
