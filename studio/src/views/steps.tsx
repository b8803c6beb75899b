/** Where no timeline is modelled: the steps of the small run, a lane for each role, and where an
 * error or a deadlock stands among them. */
import { colour, ink, letter } from "../color";
import { goLine, goValue, recording, valueStep } from "../store";
import { Empty, useKept } from "../ui";

export function StepsView() {
  const known = recording.value;
  const keep = useKept(known);
  const steps = known?.values?.steps ?? [];
  const errors = known?.errors ?? [];
  const waiting = errors.flatMap((e) => e.waiting ?? []);
  if (!steps.length && !waiting.length)
    return (
      <Empty>
        No timeline:{" "}
        {known?.notes[0] ?? "neither the simulator nor the interpreter has run this kernel"}
      </Empty>
    );
  const roles = [...new Set([...steps.map((s) => s.role), ...waiting.map((w) => w.role)])];
  const lines = [...new Set(steps.map((s) => s.line))];
  const stops = new Map(errors.filter((e) => e.step != null).map((e) => [e.step!, e]));
  const met = new Map(
    errors.flatMap((e) => (e.accesses ?? []).map((a) => [a.line, a.what] as const)),
  );
  return (
    <div class="steps" style={{ "--count": steps.length }}>
      <p class="caption">
        Steps of the small run, in the interpreter's order; no cycles are modelled for this kernel.
      </p>
      {roles.map((role) => {
        const stands = waiting.filter((w) => w.role === role);
        return (
          <div key={role} class="steplane">
            <b>{role || "all threads"}</b>
            <div class="cells">
              {steps.map((s, i) => {
                if (s.role !== role) return null;
                const k = lines.indexOf(s.line);
                const base = colour(k);
                const stop = stops.get(i);
                const is = `${i === valueStep.value ? "at" : ""} ${stop ? "stop" : ""}`;
                return keep(i, is, () => (
                  <button
                    key={i}
                    type="button"
                    style={{ background: base, color: ink(base), gridColumn: i + 1 }}
                    class={is}
                    aria-label={`step ${i + 1}, line ${s.line}`}
                    title={`line ${s.line}: ${s.op}${met.has(s.line) ? `; ${met.get(s.line)}` : ""}`}
                    onClick={() => goValue(i)}
                  >
                    {stop ? "✕" : letter(k)}
                  </button>
                ));
              })}
            </div>
            {stands.map((w, i) => (
              <button
                type="button"
                class="stands"
                key={i}
                onClick={() => w.line !== null && goLine(w.line)}
              >
                ✕ stands at line {w.line}: {w.text}
              </button>
            ))}
          </div>
        );
      })}
      {errors.map((e, i) => (
        <p key={i} class="bad caption">
          ✕ {e.kind || e.stage}
          {e.step != null ? ` at step ${e.step + 1}` : ""}: {e.message}
        </p>
      ))}
    </div>
  );
}
