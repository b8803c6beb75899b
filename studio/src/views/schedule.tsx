/** What can be chosen: sizes, tiles, the fields of a schedule, the target. */
import { signal } from "@preact/signals";
import { compare, exported, live, record } from "../api";
import type { Recording, Request } from "../contract";
import { shown, time } from "../format";
import { boot, busy, comparison, model, recording, request, variants } from "../store";
import { Empty } from "../ui";
import { CompareView } from "./compare";

/** The variant that others are compared with. */
const kept = signal<Request | null>(null);
const FIRST = ["stages", "roles", "persistent", "order", "cluster", "ping_pong", "skew"];

export function ScheduleView() {
  const known = recording.value;
  if (!known) return <Empty>…</Empty>;
  return (
    <div class="schedule">
      {live() ? <Controls known={known} /> : <Variants />}
      <Keep />
      {comparison.value ? <CompareView known={comparison.value} /> : null}
    </div>
  );
}

function changed(more: Partial<Request>): void {
  void record({ ...request.value, ...more }, true);
}

function scheduled(name: string, value: unknown): void {
  const schedule: Record<string, unknown> = { ...request.value.schedule };
  if (value === "auto") delete schedule[name];
  else schedule[name] = value;
  changed({ schedule });
}

function tiled(loop: string, value: string): void {
  const tiles: Record<string, number> = {
    ...(request.value.schedule?.tiles as Record<string, number> | undefined),
  };
  if (value === "auto") delete tiles[loop];
  else tiles[loop] = Number(value);
  scheduled("tiles", Object.keys(tiles).length ? tiles : "auto");
}

function Controls({ known }: { known: Recording }) {
  const choices = known.choices;
  const sizes = Object.entries(known.request.sizes ?? {});
  const fields = [...(choices?.fields ?? [])].sort((a, b) => rank(a.name) - rank(b.name));
  return (
    <>
      {known.names.length > 1 ? (
        <Field name="kernel">
          <select
            value={known.kernel}
            onChange={(e) =>
              changed({ kernel: e.currentTarget.value, sizes: {}, args: {}, schedule: {} })
            }
          >
            {known.names.map((n) => (
              <option key={n}>{n}</option>
            ))}
          </select>
        </Field>
      ) : null}
      {sizes.map(([name, size]) => (
        <Field key={name} name={name} group="size">
          <input
            type="number"
            min={1}
            value={size}
            onChange={(e) =>
              Number(e.currentTarget.value) > 0 &&
              changed({ sizes: { ...known.request.sizes, [name]: Number(e.currentTarget.value) } })
            }
          />
        </Field>
      ))}
      {Object.entries(known.values?.sizes ?? {}).map(([name, size]) => (
        <Field key={name} name={name} group="small" title="sizes of the run that shows values">
          <input
            type="number"
            min={1}
            value={size}
            onChange={(e) =>
              Number(e.currentTarget.value) > 0 &&
              changed({ small: { ...known.values!.sizes, [name]: Number(e.currentTarget.value) } })
            }
          />
        </Field>
      ))}
      {Object.entries({ ...literals(choices?.options ?? {}), ...known.request.args }).map(
        ([name, value]) => (
          <Argument
            key={name}
            name={name}
            value={value}
            put={(v) => changed({ args: { ...known.request.args, [name]: v } })}
          />
        ),
      )}
      {choices?.tiles.map((t) => (
        <Field key={t.loop} name={t.loop} group="tile" auto={!t.given}>
          <select
            value={t.given ? String(t.size) : "auto"}
            onChange={(e) => tiled(t.loop, e.currentTarget.value)}
          >
            <option value="auto">auto: {t.size}</option>
            {options(t.size).map((n) => (
              <option key={n} value={n}>
                {n}
              </option>
            ))}
          </select>
        </Field>
      ))}
      {fields.map((f) => (
        <Field key={f.name} name={f.name} title={f.help} auto={f.value === "auto"}>
          <select
            value={JSON.stringify(f.value)}
            onChange={(e) => scheduled(f.name, JSON.parse(e.currentTarget.value))}
          >
            {f.values.some((v) => JSON.stringify(v) === JSON.stringify(f.value)) ? null : (
              <option value={JSON.stringify(f.value)}>{shown(f.value)}</option>
            )}
            {f.values.map((v) => (
              <option key={JSON.stringify(v)} value={JSON.stringify(v)}>
                {f.name === "threads" && v === "auto" && choices?.threads
                  ? `auto: ${choices.threads}`
                  : shown(v)}
              </option>
            ))}
          </select>
        </Field>
      ))}
      {choices?.targets.length ? (
        <Field name="target">
          <select
            value={choices.targets.find((t) => `${known.target} `.startsWith(`${t} `))}
            onChange={(e) => changed({ target: e.currentTarget.value })}
          >
            {choices.targets.map((t) => (
              <option key={t} value={t}>
                {t.replace("cuda -arch=", "")}
              </option>
            ))}
          </select>
        </Field>
      ) : null}
      {choices?.runners_up.length ? (
        <details class="wide" open>
          <summary>sizes that the model ranks</summary>
          <ol class="ranked">
            {choices.runners_up.map((r) => (
              <li key={r.text}>
                <button
                  type="button"
                  onClick={() =>
                    changed({
                      schedule: {
                        ...request.value.schedule,
                        tiles: r.tiles,
                        threads: r.threads,
                        cluster: r.cluster,
                      },
                    })
                  }
                >
                  {r.text} · <span class="num">{time(r.us)}</span> ·{" "}
                  <span class="muted">{r.limit}</span>
                </button>
              </li>
            ))}
          </ol>
        </details>
      ) : null}
    </>
  );
}

/** Arguments come as Python writes them: "True", "1024", "'stored'". */
function literals(options: Record<string, unknown>): Record<string, unknown> {
  const read = (text: unknown): unknown => {
    if (typeof text !== "string") return text;
    if (text === "True" || text === "False") return text === "True";
    if (text && !Number.isNaN(Number(text))) return Number(text);
    return text.match(/^(['"])(.*)\1$/)?.[2];
  };
  return Object.fromEntries(Object.entries(options).map(([name, text]) => [name, read(text)]));
}

/** A compile-time argument, by what it is. */
function Argument({
  name,
  value,
  put,
}: {
  name: string;
  value: unknown;
  put: (value: unknown) => void;
}) {
  if (typeof value === "boolean")
    return (
      <Field name={name} group="argument">
        <select value={String(value)} onChange={(e) => put(e.currentTarget.value === "true")}>
          <option value="true">on</option>
          <option value="false">off</option>
        </select>
      </Field>
    );
  if (typeof value !== "number" && typeof value !== "string") return null;
  return (
    <Field name={name} group="argument">
      {typeof value === "number" ? (
        <input type="number" value={value} onChange={(e) => put(Number(e.currentTarget.value))} />
      ) : (
        <input value={value} onChange={(e) => put(e.currentTarget.value)} />
      )}
    </Field>
  );
}

const rank = (name: string) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
const options = (size: number) =>
  [...new Set([8, 16, 32, 64, 128, 256, 512, size])].sort((a, b) => a - b);

function Field(props: {
  name: string;
  group?: string;
  title?: string;
  auto?: boolean;
  children: preact.ComponentChildren;
}) {
  return (
    <label
      class={`field${props.auto ? " auto" : ""}`}
      title={props.title}
      data-field={props.group ? `${props.group}.${props.name}` : props.name}
    >
      <span>
        {props.group ? <em>{props.group} </em> : null}
        {props.name.replace(/_/g, " ").replace("warpgroups", "warp\u00adgroups")}
      </span>
      {props.children}
    </label>
  );
}

/** A static page has what was recorded, and no more. */
function Variants() {
  const known = boot.value;
  const own = variants.value.filter(
    (r) => r.kernel === recording.value?.kernel && r.file === recording.value.file,
  );
  const pairs = known?.mode === "static" ? known.comparisons : [];
  return (
    <>
      <p class="caption wide">
        This page holds recorded runs; `tilewright studio` changes sizes and schedules.
      </p>
      {own.length > 1 ? (
        <ol class="ranked wide">
          {own.map((r, i) => (
            <li key={i}>
              <button
                type="button"
                aria-pressed={r === recording.value}
                onClick={() => void record(r.request, true)}
              >
                {variantName(r)}
              </button>
            </li>
          ))}
        </ol>
      ) : null}
      {pairs.map((c, i) => (
        <button type="button" class="wide" key={i} onClick={() => (comparison.value = c)}>
          {variantName(c.a)} against {variantName(c.b)}
        </button>
      ))}
    </>
  );
}

export function variantName(r: Recording): string {
  const given = Object.entries(r.request.schedule ?? {}).map(
    ([n, v]) =>
      `${n} ${typeof v === "object" && v ? JSON.stringify(v).replace(/["{}]/g, "") : shown(v)}`,
  );
  const sizes = Object.entries(r.request.sizes ?? {}).map(([n, v]) => `${n} ${v}`);
  return `${r.kernel}, ${given.join(", ") || "as chosen"}${sizes.length ? ` (${sizes.join(", ")})` : ""}, ${r.arch}`;
}

function Keep() {
  if (!live() || !model.value) return null;
  return (
    <div class="actions wide">
      <button type="button" onClick={() => (kept.value = request.value)}>
        Keep as A
      </button>
      <button
        type="button"
        disabled={!kept.value || !!busy.value}
        onClick={() => kept.value && void compare(kept.value, request.value)}
      >
        Compare A with this
      </button>
      <button
        type="button"
        disabled={!!busy.value}
        onClick={() =>
          void exported(
            kept.value && JSON.stringify(kept.value) !== JSON.stringify(request.value)
              ? [kept.value, request.value]
              : [request.value],
          )
        }
      >
        Export a page
      </button>
    </div>
  );
}
