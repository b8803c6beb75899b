/** The kernel's text, to be changed: the server compiles it, and says what is wrong where. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { record } from "../api";
import { busy, failure, recording, request } from "../store";

const draft = signal<{ of: string; text: string } | null>(null);

function given(): string {
  return recording.value?.source.lines.join("\n") ?? "";
}

export function Editor() {
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLPreElement>(null);
  const known = recording.value!;
  const text = draft.value?.of === known.file ? draft.value.text : given();
  const fault = failure.value ?? known.errors[0] ?? null;
  const first = known.source.first;
  useEffect(() => {
    if (!fault?.line || !area.current) return;
    area.current.scrollTop = Math.max(0, (fault.line - first - 4) * 18);
  }, [fault]);
  const run = () => record({ ...request.value, text }, true);
  const put = (value: string) => (draft.value = { of: known.file, text: value });
  return (
    <div class="editor">
      <div class="sheet">
        <pre ref={gutter} aria-hidden="true">
          {text.split("\n").map((_, i) => (
            <div key={i} class={fault?.line === first + i ? "fault" : ""}>
              {first + i}
            </div>
          ))}
        </pre>
        <textarea
          ref={area}
          aria-label="the kernel's text"
          aria-invalid={fault ? "true" : "false"}
          spellcheck={false}
          value={text}
          onInput={(event) => put(event.currentTarget.value)}
          onScroll={(event) =>
            gutter.current && (gutter.current.scrollTop = event.currentTarget.scrollTop)
          }
          onKeyDown={(event) => {
            event.stopPropagation();
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void run();
            if (event.key === "Escape") event.currentTarget.blur();
          }}
        />
      </div>
      {fault ? (
        <div class="fault-note" role="alert">
          <b>
            {fault.line ? `line ${fault.line}: ` : ""}
            {fault.message}
          </b>
          {fault.expected ? <div>expected {fault.expected}</div> : null}
          {fault.got ? <div>got {fault.got}</div> : null}
          {fault.fix ? <div>fix: {fault.fix}</div> : null}
        </div>
      ) : null}
      <div class="actions">
        <button type="button" class="primary" disabled={!!busy.value} onClick={() => void run()}>
          Compile
        </button>
        <button
          type="button"
          onClick={() => (
            (draft.value = null),
            void record({ ...request.value, text: null }, true)
          )}
        >
          As in the file
        </button>
        <span class="muted">
          Ctrl+Enter compiles, Escape leaves the text. The file itself is not written.
        </span>
      </div>
    </div>
  );
}
