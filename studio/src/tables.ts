/** Compact tables and packed arrays, as objects. */
import type { Packed, Table } from "./contract";

export function records<Row>(table: Table): Row[] {
  return table.rows.map(
    (row) => Object.fromEntries(table.columns.map((name, i) => [name, row[i]])) as Row,
  );
}

export function bytes(text: string): Uint8Array {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

export const words16 = (packed: Packed): Uint16Array => new Uint16Array(bytes(packed.b64).buffer);
export const words32 = (packed: Packed): Uint32Array => new Uint32Array(bytes(packed.b64).buffer);

/** The index of the last entry whose key is at most `wanted`, or -1. */
export function lastAtMost<T>(
  sorted: readonly T[],
  wanted: number,
  key: (entry: T) => number,
): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(sorted[middle]!) <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
