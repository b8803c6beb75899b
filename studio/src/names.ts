/** Which colour, letter and hatching a statement or a buffer has: the same one in all views. */
import { computed } from "@preact/signals";
import { colour, letter } from "./color";
import type { Unit } from "./contract";
import type { Model } from "./model";
import { model, part } from "./store";

export interface Look {
  colour: string;
  letter: string;
  hatch: number;
}

const look = (i: number): Look => ({
  colour: colour(i),
  letter: letter(i),
  hatch: Math.floor(i / 8) + (i % 8 > 3 ? 1 : 0),
});

/** Statements that look the same without their indices share a look. */
export function looksOf(known: Model | null) {
  const keys = new Map<string, { look: Look; text: string; line: number | null; unit: Unit }>();
  const of: Look[] = [];
  if (!known) return { of, legend: [] };
  const used = new Map<number, Unit>();
  for (const span of known.spans) if (span.unit !== "waits") used.set(span.op, span.unit);
  known.timeline.ops.forEach((op, i) => {
    const unit = used.get(i);
    if (!unit) return;
    const text = known.labels[i]!;
    const key = `${op.line} ${unit} ${text.replace(/_\d+\b/g, "")}`;
    const entry = keys.get(key) ?? { look: look(keys.size), text, line: op.line, unit };
    keys.set(key, entry);
    of[i] = entry.look;
  });
  return { of, legend: [...keys.values()] };
}

export const statements = computed(() => looksOf(model.value));

/** Tensors first, then what holds tiles of them. */
export const buffers = computed(() => {
  const found = new Map<string, Look>();
  const all = Object.entries(part.value?.buffers ?? {});
  for (const [name, info] of all) if (info.space === "global") found.set(name, look(found.size));
  for (const [name, info] of all)
    if (info.tensor && found.has(info.tensor)) found.set(name, found.get(info.tensor)!);
  for (const [name, info] of all)
    if (!found.has(name) && (info.space === "shared" || info.space === "fragment"))
      found.set(name, look(found.size));
  return found;
});

export const bufferLook = (name: string): Look => buffers.value.get(name) ?? look(7);

/** What a reader knows a buffer by. */
export function bufferName(name: string): string {
  const info = part.value?.buffers[name];
  return info?.tensor ? `${name} (${info.tensor})` : name;
}
