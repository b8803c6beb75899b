/** The memory hierarchy at the playhead: what is on its way, what stands where, and how full it is. */
import type { ComponentChildren } from "preact";
import { ink } from "../color";
import { bytesOf, cycles, percent, short } from "../format";
import { type Slot, type Span, regionText } from "../model";
import { bufferLook, statements } from "../names";
import { buffer, go, model, now, recording } from "../store";
import { Empty, Panel } from "../ui";

const SIGN = { empty: "○", free: "○", filling: "↓", full: "■", read: "▶" } as const;
const WORD = {
  empty: "empty",
  free: "free",
  filling: "filling",
  full: "full",
  read: "read",
} as const;

export function MemoryView() {
  const known = model.value;
  return (
    <Panel title="Memory" name="memory">
      {known ? (
        <Hierarchy />
      ) : (
        <Empty>The memory levels are drawn where there is a timeline.</Empty>
      )}
    </Panel>
  );
}

function Band(props: { name: string; facts: string; children: ComponentChildren; busy?: boolean }) {
  return (
    <div class={`band${props.busy ? " busy" : ""}`}>
      <div class="what">
        <b>{props.name}</b>
        <span>{props.facts}</span>
      </div>
      <div class="content">{props.children}</div>
    </div>
  );
}

const level = (name: string) => recording.value?.chip?.levels.find((l) => l.name === name);

function facts(name: string): string {
  const found = level(name);
  if (!found) return "";
  const size = found.bytes ?? found.measured?.bytes;
  return [
    size ? bytesOf(size) : "",
    found.bytes_per_cycle ? `${short(found.bytes_per_cycle)} B/cycle` : "",
    found.latency ? `${short(found.latency)} cycles` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

function Hierarchy() {
  const known = model.value!;
  const time = now.value;
  const active = known.active(time);
  const flying = known.inFlight(time);
  const storing = active.filter((s) => s.unit === "stores");
  const loaded = known.bytesMoved("copies", time);
  const stored = known.bytesMoved("stores", time);
  return (
    <div class="hierarchy">
      <Band name="HBM" facts={facts("HBM")} busy={flying.length > 0 || storing.length > 0}>
        <span class="num">
          loaded <b data-total="loaded">{bytesOf(loaded)}</b>, stored{" "}
          <b data-total="stored">{bytesOf(stored)}</b> by {blocks()}
        </span>
      </Band>
      <Flow spans={[...flying, ...storing]} />
      <Band name="L2" facts={facts("L2")}>
        <span class="num">
          {known.timeline.bytes && known.timeline.interval
            ? `${bytesOf(known.timeline.bytes)} an iteration: ${short(known.timeline.bytes / known.timeline.interval)} B/cycle`
            : ""}
        </span>
      </Band>
      <Occupancy />
      <Shared time={time} />
      <Registers active={active} />
      <Units active={active} flying={flying} />
    </div>
  );
}

const blocks = () =>
  (model.value?.timeline.blocks ?? 1) > 1 ? `${model.value!.timeline.blocks} blocks` : "this block";

/** How much of a multiprocessor is in use. */
function Occupancy() {
  const { threads, blocks_per_sm: blocks, occupancy } = model.value!.part.takes;
  if (!blocks || occupancy === undefined) return null;
  return (
    <div class="occupancy num" data-total="occupancy">
      occupancy <b>{percent(occupancy)}</b>: {blocks} × {threads} threads a multiprocessor
      {recording.value?.draft ? ", if registers let it" : ""}
    </div>
  );
}

function Flow({ spans }: { spans: Span[] }) {
  const known = model.value!;
  const sum = spans.reduce((total, s) => total + s.bytes, 0);
  return (
    <div class="flow">
      <span class="num">{spans.length ? `${bytesOf(sum)} on the way` : "nothing on the way"}</span>
      <div class="chips">
        {spans.slice(0, 4).map((s) => {
          const up = s.unit === "stores";
          const region = (up ? s.writes : s.reads)
            .map((r) => known.region(r))
            .find(([n]) => known.isGlobal(n));
          const look = bufferLook(region?.[0] ?? "");
          return (
            <button
              type="button"
              key={s.index}
              class="chip"
              title={region ? regionText(region) : ""}
              onClick={() => go(s.start, s.index)}
            >
              <i
                class={`key hatch${look.hatch}`}
                style={{ background: look.colour, color: ink(look.colour) }}
              >
                {up ? "↑" : "↓"}
              </i>
              {region ? `${region[0]} ${corner(regionText(region))}` : known.label(s)}
            </button>
          );
        })}
        {spans.length > 4 ? <span class="muted">+{spans.length - 4}</span> : null}
      </div>
    </div>
  );
}

function Shared({ time }: { time: number }) {
  const known = model.value!;
  const own = new Map<string, Slot[]>();
  for (const slot of known.slots) own.set(slot.buffer, [...(own.get(slot.buffer) ?? []), slot]);
  const filled = known.slots.filter((s) =>
    ["full", "read", "filling"].includes(known.slotAt(s, time)?.state ?? "empty"),
  );
  const used = filled.reduce((sum, s) => sum + s.bytes, 0);
  const taken = known.part.shared?.bytes ?? known.slots.reduce((sum, s) => sum + s.bytes, 0);
  const size = level("shared")?.bytes;
  return (
    <Band name="shared" facts={facts("shared")} busy={used > 0}>
      <div class="meter" role="img" aria-label={`${bytesOf(used)} of ${bytesOf(taken)} hold tiles`}>
        <i style={{ width: `${(100 * used) / (size ?? taken)}%` }} />
        <u style={{ left: `${(100 * taken) / (size ?? taken)}%` }} />
      </div>
      <span class="num">
        {bytesOf(used)} of {bytesOf(taken)} hold tiles
        {size && taken ? `, ${percent(taken / size)} of the multiprocessor's` : ""}
      </span>
      {[...own].map(([name, slots]) => (
        <Ring key={name} name={name} slots={slots} time={time} />
      ))}
    </Band>
  );
}

/** Where a tile begins: "A[0:128, 64:128]" at 0, 64. */
const corner = (tile: string) => (tile.match(/\[(.*)\]/)?.[1] ?? tile).replace(/(\d+):\d+/g, "$1");

function Ring({ name, slots, time }: { name: string; slots: Slot[]; time: number }) {
  const known = model.value!;
  const ring = known.part.rings.find((r) => r.buffer === name);
  const look = bufferLook(name);
  const info = known.part.buffers[name];
  return (
    <div class="ring">
      <button
        type="button"
        class={buffer.value === name ? "ringname on" : "ringname"}
        onClick={() => (buffer.value = name)}
        title={`${name}: ${info?.dtype} ${info?.shape.join("×")}`}
      >
        <i
          class={`key hatch${look.hatch}`}
          style={{ background: look.colour, color: ink(look.colour) }}
        >
          {look.letter}
        </i>
        {name}
        {info?.tensor ? <em> {info.tensor}</em> : null}
      </button>
      <div class="slots">
        {slots.map((slot) => {
          const at = known.slotAt(slot, time);
          const state = at?.state ?? "empty";
          const phase = (barrier: string | null | undefined) =>
            barrier ? known.phaseAt(barrier, slot.slot, time) : null;
          const [full, free] = [phase(ring?.full), phase(ring?.free)];
          return (
            <button
              type="button"
              key={slot.slot}
              class={`slot ${state}`}
              style={{ "--own": look.colour }}
              data-slot={`${name}[${slot.slot}]`}
              data-state={WORD[state]}
              title={`${name}[${slot.slot}] is ${WORD[state]}${at?.tile ? `: ${at.tile}` : ""}${at && at.iteration >= 0 ? `, iteration ${at.iteration}` : ""}`}
              onClick={() => {
                buffer.value = name;
                if (at && at.span >= 0) go(known.spans[at.span]!.start, at.span);
              }}
            >
              <span>
                <b>{SIGN[state]}</b> {WORD[state]}
              </span>
              <span class="tile">
                {state === "empty" || state === "free" ? bytesOf(slot.bytes) : corner(at!.tile)}
              </span>
              {ring?.full ? (
                <span class="phase">
                  φ {full?.phase ?? "–"}
                  {ring.free ? ` / ${free?.phase ?? "–"}` : ""}
                </span>
              ) : null}
            </button>
          );
        })}
      </div>
    </div>
  );
}

function Registers({ active }: { active: Span[] }) {
  const known = model.value!;
  const touched = new Map<string, string>();
  for (const span of active) {
    for (const r of span.reads) touched.set(known.region(r)[0], "read");
    for (const r of span.writes) touched.set(known.region(r)[0], "written");
  }
  const tiles = Object.entries(known.part.buffers).filter(([, b]) => b.space === "fragment");
  const roles = known.part.roles.filter((r) => r.registers !== null);
  const told =
    roles.map((r) => `${r.name} ${r.registers}`).join(", ") ||
    (known.part.takes.registers ? `${known.part.takes.registers} of a thread` : "");
  const fragments = known.part.registers?.fragments ?? [];
  const held =
    fragments.length > 0 && `tiles hold at most ${Math.max(...fragments.map((f) => f.registers))}`;
  return (
    <Band
      name="registers"
      facts={facts("registers")}
      busy={[...touched.keys()].some((n) => known.part.buffers[n]?.space === "fragment")}
    >
      <span class="num">{[told, held].filter(Boolean).join("; ")}</span>
      <div class="chips">
        {tiles.map(([name, info]) => {
          const state = touched.get(name);
          const look = bufferLook(name);
          return (
            <button
              type="button"
              key={name}
              class={`chip ${state ? "live" : ""} ${buffer.value === name ? "on" : ""}`}
              onClick={() => (buffer.value = name)}
              title={`${info.dtype} ${info.shape.join("×")}`}
            >
              <i
                class={`key hatch${look.hatch}`}
                style={{ background: look.colour, color: ink(look.colour) }}
              >
                {look.letter}
              </i>
              {name}
              {state ? <em> {state}</em> : null}
            </button>
          );
        })}
      </div>
    </Band>
  );
}

const SHOWN = ["tensor core", "threads", "copies", "stores"] as const;

function Units({ active, flying }: { active: Span[]; flying: Span[] }) {
  const known = model.value!;
  return (
    <div class="units">
      {SHOWN.map((unit) => {
        const own = active.filter((s) => s.unit === unit);
        const span = own[0];
        const look = span ? statements.value.of[span.op] : undefined;
        const part = known.timeline.busy?.[unit];
        return (
          <button
            type="button"
            key={unit}
            class={span ? "unit busy" : "unit"}
            onClick={() => span && go(span.start, span.index)}
          >
            <b>{unit}</b>
            <span>{part === undefined ? "" : `${percent(part)} busy`}</span>
            <span class="doing">
              {span && look ? (
                <i
                  class={`key hatch${look.hatch}`}
                  style={{ background: look.colour, color: ink(look.colour) }}
                >
                  {look.letter}
                </i>
              ) : null}
              {span
                ? known.label(span)
                : unit === "copies" && flying.length
                  ? `${flying.length} arriving`
                  : "idle"}
            </span>
            {span ? (
              <span class="meter">
                <i
                  style={{
                    width: `${(100 * (now.value - span.start)) / Math.max(1, span.end - span.start)}%`,
                  }}
                />
              </span>
            ) : null}
          </button>
        );
      })}
      <Waiting active={active} />
    </div>
  );
}

function Waiting({ active }: { active: Span[] }) {
  const known = model.value!;
  const own = active.filter((s) => s.unit === "waits");
  return (
    <div class="waiting">
      {own.map((s) => (
        <button type="button" key={s.index} onClick={() => go(s.start, s.index)}>
          <b>{known.timeline.tracks[s.track]?.role}</b> waits for {s.wait},{" "}
          {cycles(now.value - s.start)} of {cycles(s.end - s.start)} cycles
        </button>
      ))}
    </div>
  );
}
