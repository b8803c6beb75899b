/** Where tensors are drawn: side by side at one scale. */

export interface Place {
  name: string;
  rows: number;
  columns: number;
  x: number;
  y: number;
  w: number;
  h: number;
}

const TITLE = 15;

/** Tensors side by side at one scale, in as many rows as use the room best; a vector is a line that one can see. */
export function placed(shapes: [string, number[]][], width: number, height: number): Place[] {
  const sizes = shapes.map(([name, shape]) => ({
    name,
    rows: shape.length > 1 ? shape.at(-2)! : 1,
    columns: shape.at(-1) ?? 1,
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
      (width - 8 - 14 * across) / wide,
      (height - 6 - (TITLE + 8) * lines.length) / tall,
    );
    if (scale <= most) continue;
    most = scale;
    let y = 2;
    best = lines.flatMap((l) => {
      let x = 4;
      const made = l.map((s) => {
        const place = {
          ...s,
          x,
          y: y + TITLE,
          w: Math.max(10, s.columns * scale),
          h: Math.max(6, s.rows * scale),
        };
        x += Math.max(place.w, 8 * s.name.length) + 14;
        return place;
      });
      y += TITLE + 8 + Math.max(...made.map((m) => m.h));
      return made;
    });
  }
  return best;
}
