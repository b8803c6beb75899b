/** Where tensors are drawn: side by side at one scale. */

export interface Place {
  name: string;
  rows: number;
  columns: number;
  x: number;
  y: number;
  w: number;
  h: number;
  /** How wide its title may be: as far as the next one, or the edge. */
  room: number;
}

const TITLE = 15;
const GAP = 14;

/** A name in bold, and the shape after it: about as wide as they are drawn. */
const titled = (name: string, shape: number[]) =>
  8 * name.length + 6 + 6 * shape.join(" × ").length;

/** Tensors side by side at one scale, in as many rows as use the room best; a vector is a line that one can see. */
export function placed(shapes: [string, number[]][], width: number, height: number): Place[] {
  const sizes = shapes.map(([name, shape]) => ({
    name,
    rows: shape.length > 1 ? shape.at(-2)! : 1,
    columns: shape.at(-1) ?? 1,
    title: titled(name, shape),
  }));
  let best: Place[] = [];
  let most = 0;
  for (let across = 1; across <= sizes.length; across++) {
    const lines = [...Array(Math.ceil(sizes.length / across)).keys()].map((i) =>
      sizes.slice(i * across, (i + 1) * across),
    );
    const wide = Math.max(...lines.map((l) => l.reduce((sum, s) => sum + s.columns, 0)));
    const tall = lines.reduce((sum, l) => sum + Math.max(...l.map((s) => s.rows)), 0);
    const scale = Math.min(
      (width - 8 - GAP * across) / wide,
      (height - 6 - (TITLE + 8) * lines.length) / tall,
    );
    if (scale <= most) continue;
    most = scale;
    let y = 2;
    best = lines.flatMap((l) => {
      let x = 4;
      const w = (s: { columns: number }) => Math.max(10, s.columns * scale);
      // titles with shapes, where the line has room for them
      const roomy = l.reduce((sum, s) => sum + Math.max(w(s), s.title) + GAP, 0) <= width;
      const made = l.map(({ title, ...s }, i) => {
        const step = Math.max(w(s), roomy ? title : 8 * s.name.length) + GAP;
        const room = i + 1 < l.length ? step - GAP / 2 : width - x;
        const place = { ...s, x, y: y + TITLE, w: w(s), h: Math.max(6, s.rows * scale), room };
        x += step;
        return place;
      });
      y += TITLE + 8 + Math.max(...made.map((m) => m.h));
      return made;
    });
  }
  return best;
}
