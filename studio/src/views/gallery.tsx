/** Kernels to look at, each with a lesson. */
import { live, record } from "../api";
import type { GalleryEntry } from "../contract";
import { boot, busy, recording, request, screen, variants } from "../store";
import { Beside } from "./roofline";

function open({ name, request }: GalleryEntry): void {
  if (live()) {
    void record({ ...request, gallery: name });
    return;
  }
  const found = variants.value.find((r) => r.request.gallery === name || r.title === name);
  if (found) void record(found.request);
}

export function Gallery() {
  const known = boot.value;
  const entries = known?.gallery ?? [];
  return (
    <main class="gallery" aria-label="gallery">
      <h1>Gallery</h1>
      <p class="lead">
        Each kernel runs as the simulator that chooses its schedule sees it, with values from the
        interpreter. Open one, step through it, and try what its lesson says.
      </p>
      <div class="cards">
        {entries.map((e, i) => (
          <button
            type="button"
            class="card"
            key={e.name}
            data-gallery={e.name}
            onClick={() => open(e)}
          >
            <span class="count">{i + 1}</span>
            <b>{e.title}</b>
            <span>{e.text}</span>
            {e.try ? <span class="try">Try: {e.try}</span> : null}
          </button>
        ))}
      </div>
      {recording.value ? (
        <button type="button" onClick={() => (screen.value = "kernel")}>
          Back to {recording.value.title}
        </button>
      ) : null}
    </main>
  );
}

/** The lesson of the kernel that is open. */
export function Lesson() {
  const lesson = recording.value?.lesson;
  if (!lesson) return null;
  return (
    <aside class="lesson" aria-label="lesson">
      <b>{lesson.title ?? recording.value!.title}</b>
      <p>{lesson.text}</p>
      {lesson.try ? (
        <p class="try">
          <b>Try</b> {lesson.try}
          {lesson.change && live() ? (
            <button
              type="button"
              disabled={!!busy.value}
              onClick={() =>
                void record({ gallery: request.value.gallery, ...lesson.change! }, true)
              }
            >
              Do it
            </button>
          ) : null}
        </p>
      ) : null}
      <Beside />
    </aside>
  );
}
