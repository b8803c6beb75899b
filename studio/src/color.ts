/** Colours that colour-blind readers tell apart (Okabe and Ito), each with a pattern of its own. */

export const PALETTE = [
  "#0072B2",
  "#E69F00",
  "#009E73",
  "#CC79A7",
  "#56B4E9",
  "#D55E00",
  "#F0E442",
  "#8C8C8C",
];
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

export const colour = (i: number): string =>
  PALETTE[((i % PALETTE.length) + PALETTE.length) % PALETTE.length]!;
export const letter = (i: number): string => LETTERS[i % LETTERS.length]!;

/** Dark or light text, by which is easier to read on the colour. */
export function ink(hex: string): string {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const c = parseInt(hex.slice(at, at + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (light + 0.05) / 0.053 > 1.05 / (light + 0.05) ? "#0c1116" : "#ffffff";
}

const patterns = new WeakMap<CanvasRenderingContext2D, Map<string, CanvasPattern | string>>();

/** The colour with one of six hatchings, for a canvas. */
export function fill(
  context: CanvasRenderingContext2D,
  base: string,
  kind: number,
  ratio: number,
): CanvasPattern | string {
  const known = patterns.get(context) ?? new Map<string, CanvasPattern | string>();
  patterns.set(context, known);
  const key = `${base} ${kind % 6} ${ratio}`;
  const found = known.get(key);
  if (found) return found;
  const made = kind % 6 === 0 ? base : hatched(context, base, kind % 6, ratio);
  known.set(key, made);
  return made;
}

function hatched(
  context: CanvasRenderingContext2D,
  base: string,
  kind: number,
  ratio: number,
): CanvasPattern | string {
  const size = Math.round(8 * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const draw = tile.getContext("2d")!;
  draw.fillStyle = base;
  draw.fillRect(0, 0, size, size);
  draw.strokeStyle = draw.fillStyle =
    ink(base) === "#ffffff" ? "rgb(255 255 255 / 34%)" : "rgb(0 0 0 / 26%)";
  draw.lineWidth = Math.max(1, 1.4 * ratio);
  const lines: Record<number, [number, number, number, number][]> = {
    1: [
      [-1, size + 1, size + 1, -1],
      [-1, 1, 1, -1],
      [size - 1, size + 1, size + 1, size - 1],
    ],
    2: [[0, size / 2, size, size / 2]],
    3: [[size / 2, 0, size / 2, size]],
    4: [
      [-1, -1, size + 1, size + 1],
      [size - 1, -1, size + 1, 1],
      [-1, size - 1, 1, size + 1],
    ],
  };
  for (const [x0, y0, x1, y1] of lines[kind] ?? []) {
    draw.beginPath();
    draw.moveTo(x0, y0);
    draw.lineTo(x1, y1);
    draw.stroke();
  }
  if (kind === 5) draw.fillRect(size / 4, size / 4, size / 2, size / 2);
  return context.createPattern(tile, "repeat") ?? base;
}

type Stop = [number, number, number];
// cividis and a diverging scale whose ends differ in lightness order for everyone
const CIVIDIS: Stop[] = [
  [0, 34, 78],
  [40, 60, 108],
  [87, 92, 109],
  [124, 123, 120],
  [166, 157, 117],
  [210, 193, 101],
  [254, 232, 56],
];
const SIGNED: Stop[] = [
  [5, 68, 122],
  [52, 130, 184],
  [150, 199, 228],
  [243, 243, 240],
  [249, 190, 124],
  [222, 120, 37],
  [138, 59, 4],
];

function ramp(stops: Stop[], at: number): Stop {
  const place = Math.max(0, Math.min(1, at)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [stops[i]!, stops[i + 1]!];
  return [0, 1, 2].map((c) => Math.round(a[c]! + (b[c]! - a[c]!) * (place - i))) as Stop;
}

/** The colours of the 255 levels of a frame: signed where its values are. */
export function heat(low: number, high: number): { colours: Stop[]; signed: boolean } {
  const signed = low < 0 && high > 0;
  const reach = Math.max(-low, high) || 1;
  const colours = Array.from({ length: 255 }, (_, level) => {
    const value = low + ((high - low) * level) / 254;
    return signed
      ? ramp(SIGNED, (value / reach + 1) / 2)
      : ramp(CIVIDIS, high > low ? level / 254 : 0.5);
  });
  return { colours, signed };
}
