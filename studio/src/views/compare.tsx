/** Two variants side by side, and why one is faster. */
import { useMemo } from "preact/hooks";
import type { Comparison, Recording } from "../contract";
import { cycles, short } from "../format";
import { Folded, Model } from "../model";
import { looksOf } from "../names";
import { comparison } from "../store";
import { Canvas } from "../ui";
import { lanesOf, paint } from "./draw_timeline";
import { variantName } from "./schedule";

const value = (v: number | string | null) =>
  typeof v === "number" ? (v >= 1000 ? cycles(v) : short(v)) : (v ?? "–");

export function CompareView({ known }: { known: Comparison }) {
  return (
    <section class="compare wide" aria-label="comparison">
      <header>
        <h3>
          {known.faster ? `${known.faster.toUpperCase()} is faster` : "No difference in time"}
          {known.ratio ? `, ×${known.ratio.toFixed(2)}` : ""}
        </h3>
        <button
          type="button"
          aria-label="close the comparison"
          onClick={() => (comparison.value = null)}
        >
          ✕
        </button>
      </header>
      <ul>
        {known.sentences.map((s) => (
          <li key={s}>{s}</li>
        ))}
      </ul>
      <table class="plain">
        <thead>
          <tr>
            <th />
            <th class="r">A</th>
            <th class="r">B</th>
            <th>unit</th>
          </tr>
        </thead>
        <tbody>
          {known.rows.map((r) => (
            <tr key={r.what} class={r.a !== r.b ? "differs" : ""}>
              <td>{r.what}</td>
              <td class="r">{value(r.a)}</td>
              <td class="r">{value(r.b)}</td>
              <td>{r.unit}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <Loop name="A" recording={known.a} other={known.b} />
      <Loop name="B" recording={known.b} other={known.a} />
    </section>
  );
}

/** Iterations of the steady state, both variants at one scale. */
function Loop({
  name,
  recording,
  other,
}: {
  name: string;
  recording: Recording;
  other: Recording;
}) {
  const made = useMemo(() => {
    const part = recording.parts[0];
    return part?.timeline ? new Model(part, part.timeline, recording.source) : null;
  }, [recording]);
  if (!made) return null;
  const size =
    2.2 *
    Math.max(
      made.timeline.interval ?? 0,
      other.parts[0]?.timeline?.interval ?? 0,
      made.timeline.cycles / 50,
    );
  const fold = new Folded(made.timeline);
  // before what is left out, where iterations are steady
  const until = made.timeline.elided[0]?.start ?? made.timeline.cycles * 0.6;
  const from = Math.max(0, fold.fold(until) - size);
  const { lanes, height } = lanesOf(made, null);
  return (
    <>
      <p class="caption">
        <b>{name}</b> {variantName(recording)}
      </p>
      <Canvas
        label={`timeline of ${name}`}
        height={height}
        again={recording}
        draw={(brush) =>
          paint(brush, {
            model: made,
            fold,
            view: { from, to: from + size },
            now: -1,
            looks: looksOf(made).of,
            line: null,
            current: null,
            lanes,
            flags: [],
          })
        }
      />
    </>
  );
}
