/** What the compiler, the sanitizer or a deadlock says, where it stands in the text and in time. */
import { failure, goLine, goValue, model, recording } from "../store";
import { Empty, Line } from "../ui";

/** A line of the text that is shown. */
function textOf(line: number | null): string | undefined {
  const source = recording.value?.source;
  return source && line !== null ? source.lines[line - source.first]?.trim() : undefined;
}

export function ErrorsView() {
  const all = [...(failure.value ? [failure.value] : []), ...(recording.value?.errors ?? [])];
  const standing = model.value?.timeline.standing ?? [];
  if (!all.length && !standing.length)
    return <Empty>No errors: the compiler and the sanitizer found nothing to say.</Empty>;
  return (
    <div class="errors">
      {all.map((e, i) => (
        <article key={i} class="error" data-error={e.kind || e.stage}>
          <h3>
            ✕ {e.kind || e.stage} <Line number={e.line} go={goLine} />
          </h3>
          <p>{e.message}</p>
          <dl>
            {e.expected ? (
              <>
                <dt>expected</dt>
                <dd>{e.expected}</dd>
              </>
            ) : null}
            {e.got ? (
              <>
                <dt>got</dt>
                <dd>{e.got}</dd>
              </>
            ) : null}
            {e.fix ? (
              <>
                <dt>fix</dt>
                <dd>{e.fix}</dd>
              </>
            ) : null}
          </dl>
          {e.accesses?.length ? (
            <div class="meets">
              {e.accesses.map((a, k) => (
                <button type="button" key={k} onClick={() => a.line !== null && goLine(a.line)}>
                  <b>{a.what === e.message ? "the other access" : a.what}</b>{" "}
                  {a.line !== null ? `line ${a.line}` : ""}
                  <code>{textOf(a.line) ?? a.text}</code>
                </button>
              ))}
            </div>
          ) : null}
          {e.waiting?.length ? (
            <table class="plain">
              <thead>
                <tr>
                  <th>role</th>
                  <th>line</th>
                  <th>stands at</th>
                </tr>
              </thead>
              <tbody>
                {e.waiting.map((w, k) => (
                  <tr key={k} onClick={() => w.line !== null && goLine(w.line)}>
                    <td>{w.role}</td>
                    <td>{w.line}</td>
                    <td class="mono">{w.text}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          ) : null}
          {e.notes.map((n) => (
            <p key={n} class="muted">
              {n}
            </p>
          ))}
          {e.step != null ? (
            <button type="button" onClick={() => goValue(e.step!)}>
              go to step {e.step + 1} of the small run
            </button>
          ) : null}
          <details>
            <summary>the whole message</summary>
            <pre>{e.text}</pre>
          </details>
        </article>
      ))}
      {standing.map((s, i) => (
        <article key={`s${i}`} class="error">
          <h3>
            ✕ stands still <Line number={s.line} go={goLine} />
          </h3>
          <p>
            {model.value!.timeline.tracks[s.track]?.role}: {s.text}
          </p>
        </article>
      ))}
    </div>
  );
}
