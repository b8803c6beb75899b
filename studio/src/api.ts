/** Recordings: from the server, or from those in the page. */
import { batch } from "@preact/signals";
import type { Boot, Comparison, Failure, Recording, Request } from "./contract";
import {
  boot,
  busy,
  comparison,
  failure,
  recording,
  request,
  screen,
  show,
  variants,
} from "./store";

class Refused extends Error {
  constructor(readonly failure: Failure) {
    super(failure.message);
  }
}

const lost = (message: string): Failure => ({
  stage: "server",
  kind: "connection",
  message,
  line: null,
  column: null,
  expected: "",
  got: "",
  fix: "look at the terminal in which `tilewright studio` runs, and start it again",
  notes: [],
  text: message,
});

const token = () => (boot.value?.mode === "live" ? boot.value.token : "");
export const live = () => boot.value?.mode === "live";

let latest: AbortController | null = null;

async function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  let reply: Response;
  try {
    reply = await fetch(`api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Studio-Token": token() },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(lost("the server does not answer"));
  }
  if (reply.ok) return reply;
  const told = (await reply.json().catch(() => null)) as { error?: Failure } | null;
  throw new Refused(told?.error ?? lost(`the server answers ${reply.status}`));
}

/** Runs `work`; a later call takes over, and what this one brings is dropped. */
async function asked(what: string, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  latest?.abort();
  const mine = (latest = new AbortController());
  busy.value = what;
  try {
    await work(mine.signal);
  } catch (error) {
    if (!mine.signal.aborted)
      failure.value = error instanceof Refused ? error.failure : lost(String(error));
  } finally {
    if (latest === mine) busy.value = "";
  }
}

/** What is asked for, one after the other, with what the page says meanwhile. */
const SECTIONS: [told: string, want: string[]][] = [
  ["compiling", []],
  ["running on small data", ["values", "layouts"]],
  ["assembling", ["levels"]],
];

/** What was not asked for stands as it was, where it is the same kernel. */
function filled(next: Recording, before: Recording | null, want: string[]): Recording {
  if (!before || before.kernel !== next.kernel || before.file !== next.file) return next;
  const failed = next.errors.length > 0 && !next.parts.length;
  const known = new Map(before.parts.map((p) => [p.name, p.layouts]));
  const ran = before.errors.filter((e) => e.stage !== "compile");
  return {
    ...next,
    values: next.values ?? (failed || want.includes("values") ? null : before.values),
    levels: next.levels?.length || failed ? next.levels : before.levels,
    parts: next.parts.map((p) =>
      p.layouts?.length ? p : { ...p, layouts: known.get(p.name) ?? p.layouts },
    ),
    errors: want.includes("levels") ? [...next.errors, ...ran] : next.errors,
  };
}

const PAUSE = 300; // milliseconds

const pause = (time: number, signal: AbortSignal) =>
  new Promise<void>((done, dropped) => {
    setTimeout(done, time);
    signal.addEventListener("abort", () => dropped(signal.reason));
  });

const same = (a: Request, b: Request) => JSON.stringify(a) === JSON.stringify(b);

/** The timeline first, then what takes longer. */
export function record(wanted: Request, keepTime = false): Promise<void> {
  if (!live()) {
    const found = variants.value.find((r) => same(r.request, wanted));
    if (found)
      batch(() => ((request.value = wanted), (screen.value = "kernel"), show(found, keepTime)));
    return Promise.resolve();
  }
  const from = screen.value;
  return asked("compiling", async (signal) => {
    for (const [told, want] of SECTIONS) {
      busy.value = told;
      if (want.length) await pause(PAUSE, signal); // somebody may choose something else
      const reply = await post("record", { ...wanted, want }, signal);
      const next = (await reply.json()) as Recording;
      batch(() => {
        if (!want.length) {
          request.value = { ...wanted, ...next.request, text: wanted.text ?? null };
          if (screen.value === from) screen.value = "kernel"; // nobody has gone elsewhere
          comparison.value = null;
        }
        show(filled(next, recording.value, want), keepTime || want.length > 0);
      });
      if (want.length && !next.parts.length) break; // nothing that the assembler could take
    }
  });
}

export function compare(a: Request, b: Request): Promise<void> {
  const known = boot.value;
  if (known?.mode === "static") {
    const found = known.comparisons.find((c) => same(c.a.request, a) && same(c.b.request, b));
    if (found) comparison.value = found;
    return Promise.resolve();
  }
  return asked("comparing", async (signal) => {
    for (const want of [[], ["levels"]]) {
      const pair = { a: { ...a, want }, b: { ...b, want } };
      comparison.value = (await (await post("compare", pair, signal)).json()) as Comparison;
    }
  });
}

export function exported(requests: Request[]): Promise<void> {
  return asked("exporting", async (signal) => {
    const page = await (await post("export", { requests }, signal)).blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(page);
    link.download = `${recording.value?.kernel ?? "kernel"}.html`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

/** The data of the page: packed where the page is a file of its own. */
function told(): Promise<string> {
  const script = document.getElementById("studio-data") as HTMLScriptElement | null;
  const text = script?.textContent ?? "null";
  if (script?.type !== "application/gzip") return Promise.resolve(text);
  const packed = new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

export async function start(): Promise<void> {
  const data = JSON.parse(await told()) as Boot | null;
  boot.value = data;
  if (!data) {
    failure.value = lost("this page holds no recording");
    return Promise.resolve();
  }
  if (data.mode === "static") {
    variants.value = data.recordings;
    const first = data.recordings[0];
    if (first) batch(() => ((request.value = first.request), show(first)));
    if (data.recordings.length > 1 && data.gallery.length > 1) screen.value = "gallery";
    return Promise.resolve();
  }
  return record(data.request);
}
