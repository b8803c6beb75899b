/** Numbers as a reader wants them. */

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function cycles(value: number): string {
  return grouped.format(value).replaceAll(",", "\u202f");
}

export function bytesOf(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) [left, at] = [left / 1024, at + 1];
  return `${short(left)} ${units[at]}`;
}

/** Three figures that count, at most. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${Number(value.toFixed(size < 1 ? 3 : digits))}`;
}

/** With the prefix of its size: 6.7e14 "FLOP/s" is 670 TFLOP/s. */
export function rate(value: number, unit: string): string {
  const prefixes = ["", "K", "M", "G", "T", "P"];
  let at = 0;
  let left = value;
  while (left >= 1000 && at < prefixes.length - 1) [left, at] = [left / 1000, at + 1];
  return `${short(left)} ${prefixes[at]}${unit}`;
}

export const percent = (part: number): string => `${Math.round(part * 100)} %`;

export const signed = (part: number): string => `${part > 0 ? "+" : ""}${percent(part)}`;

export function time(us: number): string {
  return us >= 1000
    ? `${short(us / 1000)} ms`
    : us >= 1
      ? `${short(us)} µs`
      : `${short(us * 1000)} ns`;
}

/** "-arch=sm_90a" of a target is known to the reader from the chip. */
export const shown = (value: unknown): string =>
  value === null || value === undefined
    ? "none"
    : typeof value === "boolean"
      ? value
        ? "on"
        : "off"
      : String(value);
