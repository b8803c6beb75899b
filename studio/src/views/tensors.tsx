/** Global tensors to one scale, with the tiles that are loaded, used and stored. */
import { computed } from "@preact/signals";
import { fill, ink } from "../color";
import type { Region } from "../contract";
import { type Model, regionText } from "../model";
import { bufferLook } from "../names";
import { buffer, go, model, now } from "../store";
import { lastAtMost } from "../tables";
import { type Place, placed } from "./scale";
import { type Brush, Canvas, Empty, Panel, spot } from "../ui";

const tensors = computed<[string, number[]][]>(() =>
  Object.entries(model.value?.part.buffers ?? {})
    .filter(
      ([name, b]) =>
        b.space === "global" &&
        b.shape.every((s) => typeof s === "number") &&
        model.value!.visits.has(name),
    )
    .map(([name, b]) => [name, b.shape]),
);

/** Rows and columns of a region, and where it is along the other axes. */
function flat([, starts, extents]: Region): { r: number; c: number; rs: number; cs: number } {
  const n = starts.length;
  return {
    r: n > 1 ? starts[n - 2]! : 0,
    rs: n > 1 ? extents[n - 2]! : 1,
    c: starts[n - 1] ?? 0,
    cs: extents[n - 1] ?? 1,
  };
}

function box(place: Place, region: Region): [number, number, number, number] {
  const { r, c, rs, cs } = flat(region);
  return [
    place.x + (c / place.columns) * place.w,
    place.y + (r / place.rows) * place.h,
    Math.max(1.5, (cs / place.columns) * place.w),
    Math.max(1.5, (rs / place.rows) * place.h),
  ];
}

function outer([, starts]: Region): string {
  return starts.slice(0, -2).join(",");
}

/** Of each tensor, how many visits are drawn already, and where along its outer axes. */
let drawn: { time: number; turn: number; of: unknown; counts: number[] } = {
  time: 0,
  turn: 0,
  of: null,
  counts: [],
};

/** Where the last visit is along the outer axes. */
function here(known: Model, name: string, time: number): string {
  const visits = known.visits.get(name) ?? [];
  const last = visits[lastAtMost(visits, time, (v) => v.start)];
  return last ? outer(known.region(last.region)) : "";
}

/** Tiles that were visited: each is drawn once, as the playhead passes its end. */
function drawVisited(brush: Brush, places: Place[], time: number): void {
  const known = model.value!;
  if (time < drawn.time || drawn.of !== known)
    drawn = { time, turn: drawn.turn + 1, of: known, counts: [] };
  drawn.time = time;
  const at = places.map((place) => here(known, place.name, time));
  brush.layer([known, drawn.turn, ...at], (c, fresh) => {
    if (fresh) drawn.counts = places.map(() => 0);
    places.forEach((place, i) => {
      if (fresh) {
        c.fillStyle = brush.css("--raised");
        c.fillRect(place.x, place.y, place.w, place.h);
      }
      const visits = known.ended.get(place.name)?.visits ?? [];
      const done = lastAtMost(visits, time, (v) => v.end) + 1;
      c.globalAlpha = 0.3;
      c.fillStyle = bufferLook(place.name).colour;
      for (let n = drawn.counts[i]!; n < done; n++) {
        const region = known.region(visits[n]!.region);
        if (outer(region) === at[i]) c.fillRect(...box(place, region));
      }
      drawn.counts[i] = Math.max(drawn.counts[i]!, done);
      c.globalAlpha = 1;
    });
  });
}

function drawTensor({ context: c, css, ratio }: Brush, place: Place, time: number): void {
  const known = model.value!;
  const look = bufferLook(place.name);
  const at = here(known, place.name, time);
  const under = known
    .visiting(place.name, time)
    .filter((v) => outer(known.region(v.region)) === at);
  for (const visit of under) {
    const area = box(place, known.region(visit.region));
    const [x, y, w, h] = area;
    c.fillStyle = fill(
      c,
      look.colour,
      visit.kind === "load" ? 1 : visit.kind === "store" ? 2 : 0,
      ratio,
    );
    c.fillRect(...area);
    c.strokeStyle = css("--text");
    c.lineWidth = visit.kind === "use" ? 2 : 1;
    c.setLineDash(visit.kind === "use" ? [] : [3, 2]);
    c.strokeRect(x, y, w, h);
    c.setLineDash([]);
    if (visit.kind === "use") {
      c.fillStyle = css("--text");
      c.globalAlpha = 0.25;
      c.fillRect(place.x, y + h / 2, place.w, 1);
      c.fillRect(x + w / 2, place.y, 1, place.h);
      c.globalAlpha = 1;
    }
    if (w > 16 && h > 12) {
      c.fillStyle = ink(look.colour);
      c.fillText({ load: "↓", store: "↑", use: "▶" }[visit.kind], x + 3, y + h / 2);
    }
  }
  c.strokeStyle = buffer.value === place.name ? css("--accent") : css("--line-strong");
  c.lineWidth = buffer.value === place.name ? 2 : 1;
  c.strokeRect(place.x - 0.5, place.y - 0.5, place.w + 1, place.h + 1);
  c.fillStyle = css("--text");
  c.font = `600 11px ${css("--sans")}`;
  c.fillText(place.name, place.x, place.y - 8);
  const used = c.measureText(place.name).width;
  c.fillStyle = css("--muted");
  c.font = `10px ${css("--sans")}`;
  const words = `${known.part.buffers[place.name]!.shape.join(" × ")}${at ? `, at [${at}]` : ""}`;
  if (used + 6 + c.measureText(words).width <= place.room)
    c.fillText(words, place.x + used + 6, place.y - 8);
}

export function TensorsView() {
  const known = model.value;
  if (!known || !tensors.value.length)
    return (
      <Panel title="Matrices" name="tensors">
        <Empty>No regions of global tensors are known for this kernel.</Empty>
      </Panel>
    );
  const click = (event: PointerEvent) => {
    const canvas = event.currentTarget as HTMLElement;
    const [x, y] = spot(event);
    const place = placed(tensors.value, canvas.clientWidth, canvas.clientHeight).find(
      (p) => x >= p.x && x <= p.x + p.w && y >= p.y && y <= p.y + p.h,
    );
    if (!place) return;
    buffer.value = place.name;
    const visits = known.visits.get(place.name) ?? [];
    const inside = visits.filter((v) => {
      const [bx, by, w, h] = box(place, known.region(v.region));
      return x >= bx && x <= bx + w && y >= by && y <= by + h;
    });
    const next = inside.find((v) => v.start > now.value) ?? inside[0];
    if (next) go(next.start, next.span);
  };
  return (
    <Panel
      title="Matrices"
      name="tensors"
      flush
      tools={
        <span class="keys">
          {(["seen loaded", "flying on its way", "used used", "stored stored"] as const).map(
            (each) => {
              const [kind, ...words] = each.split(" ");
              return (
                <span key={kind}>
                  <i class={`box ${kind}`} /> {words.join(" ")}
                </span>
              );
            },
          )}
        </span>
      }
    >
      <Canvas
        class="fillbox"
        label={`tensors to scale: ${tensors.value.map(([n, s]) => `${n} ${s.join(" × ")}`).join(", ")}`}
        again={known}
        onPointerDown={click}
        draw={(brush) => {
          brush.context.textBaseline = "middle";
          const places = placed(tensors.value, brush.width, brush.height);
          drawVisited(brush, places, now.value);
          for (const place of places) drawTensor(brush, place, now.value);
        }}
      />
      <Now />
    </Panel>
  );
}

/** The same in words. */
function Now() {
  const known = model.value!;
  const words: string[] = [];
  for (const [name] of tensors.value) {
    const own = known.visiting(name, now.value);
    for (const kind of ["load", "use", "store"] as const) {
      const found = own.filter((v) => v.kind === kind);
      if (found.length)
        words.push(
          `${{ load: "loading", use: "using", store: "storing" }[kind]} ${regionText(known.region(found[0]!.region))}${found.length > 1 ? ` +${found.length - 1}` : ""}`,
        );
    }
  }
  return <p class="caption mono">{words.join(" · ") || "no tile is under way"}</p>;
}
