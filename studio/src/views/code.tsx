/** The source text and what became of it, line by line, with the decisions beside it. */
import { computed, signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Decision, Level } from "../contract";
import { pieces } from "../highlight";
import { boot, go, goLine, line, model, part, recording } from "../store";
import { Empty, Line, Panel, Tabs, useKept } from "../ui";
import { Editor } from "./editor";

const ROW = 18;
const first = signal("source");
const second = signal("");

/** Decisions by the line of the text. */
const decisions = computed(() => {
  const found = new Map<number, Decision[]>();
  for (const d of part.value?.decisions ?? [])
    if (d.line !== null) found.set(d.line, [...(found.get(d.line) ?? []), d]);
  return found;
});

const slow = computed(() => new Set((part.value?.costs ?? []).map((c) => c.line)));
const broken = computed(() => {
  const found = new Map<number, string>();
  for (const e of recording.value?.errors ?? []) {
    if (e.line !== null) found.set(e.line, e.message);
    for (const a of e.accesses ?? []) if (a.line !== null) found.set(a.line, `${a.what} here`);
    for (const w of e.waiting ?? []) if (w.line !== null) found.set(w.line, w.text);
  }
  return found;
});

/** Cycles that lines keep a unit, for the bar in the gutter. */
const weight = computed(() => {
  const known = model.value;
  const sums = new Map<number, number>();
  if (!known) return sums;
  for (const span of known.spans) {
    const at = known.op(span).line;
    if (at !== null && span.unit !== "waits")
      sums.set(at, (sums.get(at) ?? 0) + span.end - span.start);
  }
  const most = Math.max(1, ...sums.values());
  for (const [at, sum] of sums) sums.set(at, sum / most);
  return sums;
});

/** The text itself, as a level. */
const text = computed<Level>(() => {
  const { lines, first } = recording.value!.source;
  return { name: "source", language: "python", lines, links: lines.map((_, i) => [first + i]) };
});

const indexed = new WeakMap<number[][], Map<number, number[]>>();

/** The rows of a level that come from a line of the text. */
function rowsOf(level: Level, wanted: number | null): number[] {
  let found = indexed.get(level.links);
  if (!found) {
    found = new Map();
    for (const [i, links] of level.links.entries())
      for (const link of links) {
        const rows = found.get(link);
        if (rows) rows.push(i);
        else found.set(link, [i]);
      }
    indexed.set(level.links, found);
  }
  return wanted === null ? [] : (found.get(wanted) ?? []);
}

/** Lines of one height: only those in sight are in the page. */
function Listing({ level, offset }: { level: Level; offset: number | null }) {
  const place = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const keep = useKept(level, decisions.value, broken.value, weight.value, slow.value);
  const marked = rowsOf(level, line.value);
  const target = marked[0];
  useEffect(() => {
    const box = place.current!;
    const watch = new ResizeObserver(() => setHeight(box.clientHeight));
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const box = place.current!;
    if (target === undefined) return;
    const y = target * ROW;
    if (y < box.scrollTop + ROW || y > box.scrollTop + box.clientHeight - 3 * ROW)
      box.scrollTop = Math.max(0, y - box.clientHeight / 3);
  }, [target, level]);
  const start = Math.max(0, Math.floor(top / ROW) - 10);
  const shown = level.lines.slice(start, start + Math.ceil(height / ROW) + 20);
  const on = new Set(marked);
  const digits = `${(offset ?? 1) + level.lines.length}`.length;
  return (
    <div
      class="listing"
      ref={place}
      tabIndex={0}
      role="list"
      aria-label={`${level.name}, ${level.lines.length} lines`}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <div
        style={{
          height: `${level.lines.length * ROW}px`,
          position: "relative",
          minWidth: "max-content",
        }}
      >
        <div style={{ transform: `translateY(${start * ROW}px)` }}>
          {shown.map((text, k) => {
            const i = start + k;
            const number = (offset ?? 1) + i;
            const own =
              offset === null ? [] : (decisions.value.get(number) ?? []).filter((d) => !d.minor);
            const link = level.links[i]?.[0];
            const fault = offset === null ? undefined : broken.value.get(number);
            const kind = `${on.has(i) ? "row on" : "row"}${fault ? " fault" : ""}${link === undefined ? "" : " linked"}`;
            const heavy = offset === null ? 0 : (weight.value.get(number) ?? 0);
            return keep(i, `${kind} ${digits} ${i === target}`, () => (
              <div
                key={i}
                role="listitem"
                class={kind}
                data-line={offset === null ? undefined : number}
                aria-current={on.has(i) && i === target ? "true" : undefined}
                onClick={() => link !== undefined && goLine(link)}
              >
                <span class="no" style={{ width: `${digits + 1}ch` }}>
                  {number}
                </span>
                <span class="heavy" style={{ transform: `scaleX(${heavy})` }} />
                <code>
                  {pieces(text, level.language).map(([c, t]) =>
                    c ? <span class={`t-${c}`}>{t}</span> : t,
                  )}
                </code>
                {fault ? <span class="note bad">✕ {fault}</span> : null}
                {!fault && own.length ? <span class="note">{summary(own)}</span> : null}
                {offset !== null && slow.value.has(number) ? (
                  <span class="note bad">slow</span>
                ) : null}
              </div>
            ));
          })}
        </div>
      </div>
    </div>
  );
}

function summary(own: Decision[]): string {
  const found = new Set<string>();
  for (const d of own) {
    const atom = d.choices.atom ?? d.text.match(/: ([a-z_0-9]+)(,|$)/)?.[1];
    found.add(atom && !["registers"].includes(atom) ? `${d.op} ${atom}` : d.op);
  }
  const all = [...found].filter((t) => t !== "alloc");
  const some = all.slice(0, 3).join(" · ");
  return all.length > 3 ? `${some} +${all.length - 3}` : some;
}

function Decisions() {
  const at = line.value;
  const own = at === null ? [] : (decisions.value.get(at) ?? []);
  const costs = (part.value?.costs ?? []).filter((c) => c.line === at);
  const why = Object.entries(part.value?.why ?? {});
  return (
    <div class="decisions" tabIndex={0} aria-label="decisions">
      <h3>{at === null ? "Decisions about the grid" : `Decisions at line ${at}`}</h3>
      {costs.map((c) => (
        <p key={c.text} class="bad">
          {c.text}
        </p>
      ))}
      {own.map((d, i) => (
        <details key={`${at} ${i}`} open={i < 4 && !d.minor}>
          <summary>{d.text}</summary>
          <dl>
            {Object.entries(d.choices).map(([name, text]) => [
              <dt key={name}>{name}</dt>,
              <dd key={`${name}.`}>{text}</dd>,
            ])}
          </dl>
        </details>
      ))}
      {at !== null && !own.length && !costs.length ? (
        <p class="muted">Nothing was chosen for this line.</p>
      ) : null}
      {why.length ? (
        <details open={at === null || !own.length}>
          <summary>the grid</summary>
          <dl>
            {why.map(([name, text]) => [
              <dt key={name}>{name}</dt>,
              <dd key={`${name}.`}>{text}</dd>,
            ])}
          </dl>
        </details>
      ) : null}
    </div>
  );
}

export function CodeView({ which }: { which: 1 | 2 }) {
  const known = recording.value;
  if (!known)
    return (
      <Panel title="Source" name={`code${which}`}>
        <Empty>…</Empty>
      </Panel>
    );
  const chosen = which === 1 ? first : second;
  const levels = known.levels ?? [];
  const names = ["source", ...levels.map((l) => l.name)];
  const canEdit = which === 1 && boot.value?.mode === "live" && boot.value.edit;
  const own =
    names.includes(chosen.value) || (canEdit && chosen.value === "edit")
      ? chosen.value
      : which === 1
        ? "source"
        : (names.at(-1) ?? "source");
  const level = levels.find((l) => l.name === own) ?? null;
  return (
    <Panel
      title={
        which === 1
          ? known.source.file?.startsWith("/")
            ? known.file
            : (known.source.file ?? known.file)
          : "Levels"
      }
      name={`code${which}`}
      flush
      tools={line.value !== null ? <Line number={line.value} go={goLine} /> : null}
    >
      <Tabs
        label="levels"
        names={canEdit ? [...names, "edit"] : names}
        chosen={own}
        choose={(name) => (chosen.value = name)}
      />
      {own === "edit" ? (
        <Editor />
      ) : (
        <Listing key={own} level={level ?? text.value} offset={level ? null : known.source.first} />
      )}
      {which === 1 && own !== "edit" ? <Decisions /> : null}
    </Panel>
  );
}

/** The next level, or the one before: a key. */
export function turnLevel(by: number): void {
  const names = ["source", ...(recording.value?.levels ?? []).map((l) => l.name)];
  const at = Math.max(0, names.indexOf(first.value));
  first.value = names[(at + by + names.length) % names.length]!;
  if (!model.value) go(0);
}
