import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { start } from "./api";
import { KEYS, help, label, listen } from "./keys";
import {
  boot,
  busy,
  comparison,
  failure,
  model,
  partIndex,
  recording,
  screen,
  theme,
} from "./store";
import "./theme.css";
import "./studio.css";
import "./views.css";
import { dress, turnTheme } from "./theme";
import { Panel, Tabs } from "./ui";
import { CodeView } from "./views/code";
import { ErrorsView } from "./views/errors";
import { Gallery, Lesson } from "./views/gallery";
import { LayoutsView } from "./views/layouts";
import { MemoryView } from "./views/memory";
import { ChipView, RooflineView } from "./views/roofline";
import { ScheduleView } from "./views/schedule";
import { TensorsView } from "./views/tensors";
import { TimelineView } from "./views/timeline";
import { Transport } from "./views/transport";
import { ValuesView } from "./views/values";

const TABS: Record<string, () => preact.JSX.Element> = {
  schedule: ScheduleView,
  values: ValuesView,
  layouts: LayoutsView,
  roofline: RooflineView,
  chip: ChipView,
  errors: ErrorsView,
};
/** Whether the window fits a media query, as a signal. */
function fits(query: string) {
  const list = matchMedia(query);
  const found = signal(list.matches);
  list.addEventListener("change", () => (found.value = list.matches));
  return found;
}

// wide and tall windows show more at once
const twoCodes = fits("(min-width: 2300px)");
const twoInspectors = fits("(min-width: 3000px)");
const more = fits("(min-width: 3000px) and (min-height: 1500px)");
const chosen = [signal("schedule"), signal("values")];

function Inspector({ which }: { which: 0 | 1 }) {
  const tab = chosen[which]!;
  const View = TABS[tab.value]!;
  const errors =
    (recording.value?.errors.length ?? 0) +
    (failure.value ? 1 : 0) +
    (model.value?.timeline.standing?.length ?? 0);
  return (
    <Panel title={which ? "Details" : "Inspector"} name={`inspector${which + 1}`} flush>
      <Tabs
        label="views"
        names={Object.keys(TABS)}
        chosen={tab.value}
        choose={(name) => (tab.value = name)}
        marks={{ errors: errors ? `${errors}` : "" }}
      />
      <div class="tabbody" tabIndex={0} role="tabpanel" aria-label={tab.value}>
        <View />
      </div>
    </Panel>
  );
}

function Top() {
  const known = recording.value;
  return (
    <header class="top">
      <span class="brand">
        <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
          <rect x="1" y="1" width="6" height="6" />
          <rect x="9" y="1" width="6" height="6" opacity=".55" />
          <rect x="1" y="9" width="6" height="6" opacity=".3" />
          <rect x="9" y="9" width="6" height="6" opacity=".8" />
        </svg>
        Tilewright studio
      </span>
      {boot.value?.gallery.length ? (
        <button
          type="button"
          aria-pressed={screen.value === "gallery"}
          onClick={() => (screen.value = screen.value === "gallery" ? "kernel" : "gallery")}
          title="gallery (g)"
        >
          Gallery
        </button>
      ) : null}
      {known ? (
        <>
          <b class="kernelname">{known.kernel}</b>
          <span class="pill">{known.arch}</span>
          {Object.entries(known.request.sizes ?? {}).map(([n, v]) => (
            <span class="pill" key={n}>
              {n} {v}
            </span>
          ))}
          {Object.entries(known.request.schedule ?? {}).map(([n, v]) => (
            <span class="pill given" key={n}>
              {n}{" "}
              {typeof v === "object" && v
                ? Object.entries(v)
                    .map(([a, b]) => `${a} ${b}`)
                    .join(", ")
                : String(v)}
            </span>
          ))}
          {known.parts.length > 1 ? (
            <select
              aria-label="kernel of the program"
              value={partIndex.value}
              onChange={(e) => (partIndex.value = Number(e.currentTarget.value))}
            >
              {known.parts.map((p, i) => (
                <option key={i} value={i}>
                  {i + 1}: {p.name}
                </option>
              ))}
            </select>
          ) : null}
        </>
      ) : null}
      <span class="spring" />
      {busy.value ? (
        <span class="working" role="status">
          {busy.value} …
        </span>
      ) : null}
      {failure.value ? (
        <span role="alert" class="alertbox">
          <button type="button" class="alert" onClick={() => (chosen[0]!.value = "errors")}>
            ✕ {failure.value.line ? `line ${failure.value.line}: ` : ""}
            {failure.value.message.split("\n")[0]}
          </button>
        </span>
      ) : null}
      <button
        type="button"
        onClick={turnTheme}
        title="light, dark, as the system (t)"
        aria-label={`colours: ${theme.value}`}
      >
        {{ auto: "◐ auto", light: "○ light", dark: "● dark" }[theme.value]}
      </button>
      <button type="button" onClick={() => (help.value = true)} title="keys (?)" aria-label="keys">
        ?
      </button>
    </header>
  );
}

function Help() {
  if (!help.value) return null;
  return (
    <div class="veil" onClick={() => (help.value = false)}>
      <div class="help" role="dialog" aria-label="keys" onClick={(e) => e.stopPropagation()}>
        <h2>Keys</h2>
        <dl>
          {KEYS.map((k) => [
            <dt key={k.does}>
              {k.keys.map((key) => (
                <kbd key={key}>{label(key)}</kbd>
              ))}
            </dt>,
            <dd key={`${k.does}.`}>{k.does}</dd>,
          ])}
        </dl>
        <p class="muted">
          In the timeline: drag moves it, Ctrl and the wheel zoom. Tab reaches every control; arrows
          walk through tabs.
        </p>
        <button type="button" autoFocus onClick={() => (help.value = false)}>
          Close
        </button>
      </div>
    </div>
  );
}

function App() {
  const known = recording.value;
  const gallery = screen.value === "gallery";
  return (
    <div class="app">
      <Top />
      {gallery ? <Gallery /> : null}
      {!gallery && known ? (
        <main class={comparison.value ? "work comparing" : "work"}>
          <CodeView which={1} />
          {twoCodes.value ? <CodeView which={2} /> : null}
          <div class="centre">
            <Lesson />
            <TimelineView />
            <div class="pair">
              {model.value ? (
                <MemoryView />
              ) : (
                <Panel title="Values" name="values">
                  <ValuesView />
                </Panel>
              )}
              {model.value ? (
                <TensorsView />
              ) : (
                <Panel title="Layouts" name="tile-layouts">
                  <LayoutsView />
                </Panel>
              )}
            </div>
            {more.value ? (
              <div class="pair">
                <Panel title="Layouts" name="layouts">
                  <LayoutsView />
                </Panel>
                <Panel title="Chip and measured roles" name="chip">
                  <ChipView />
                </Panel>
              </div>
            ) : null}
          </div>
          <Inspector which={0} />
          {twoInspectors.value ? <Inspector which={1} /> : null}
        </main>
      ) : null}
      {!gallery && !known ? (
        <main class="waitingroom">
          {failure.value ? (
            <pre class="bad">{failure.value.text}</pre>
          ) : (
            <p>{busy.value || "loading"} …</p>
          )}
        </main>
      ) : null}
      {!gallery && known ? <Transport /> : null}
      <Help />
    </div>
  );
}

// an error is shown without being asked for
effect(() => {
  if (failure.value || recording.value?.errors.length) chosen[0]!.value = "errors";
});

dress();
listen();
render(<App />, document.getElementById("app")!);
void start();
