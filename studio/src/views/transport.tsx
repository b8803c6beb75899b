/** Step, play, and where the playhead is. */
import { cycles } from "../format";
import {
  type Jump,
  current,
  folded,
  go,
  goValue,
  jump,
  model,
  moment,
  now,
  playing,
  recording,
  speed,
  step,
  valueStep,
} from "../store";

const JUMPS: [Jump, string][] = [
  ["iteration", "next iteration"],
  ["wait", "next wait"],
  ["longest wait", "longest wait"],
  ["flip", "next barrier phase"],
  ["store", "next store"],
  ["phase", "next phase of the block"],
];

const SPEEDS = [50, 200, 400, 1000, 4000, 16000];

const ICONS = {
  start: "M2 2h2v10H2zM12 2v10L5 7z",
  back: "M9 2v10L3 7zM10 2h2v10h-2z",
  play: "M3 1.5v11L12 7z",
  stop: "M3 2h3v10H3zM8 2h3v10H8z",
  step: "M5 2v10l6-5zM2 2h2v10H2z",
  end: "M10 2h2v10h-2zM2 2v10l7-5z",
};

function Icon({ name }: { name: keyof typeof ICONS }) {
  return (
    <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

export function Transport() {
  const known = model.value;
  const values = recording.value?.values;
  const place = folded.value?.fold(now.value) ?? 0;
  const span = current.value;
  const last = known ? known.moments.length - 1 : (values?.steps.length ?? 1) - 1;
  const at = known ? moment.value : valueStep.value;
  return (
    <footer class="transport" aria-label="controls">
      <div class="buttons">
        <button
          type="button"
          aria-label="to the start"
          title="start (Home)"
          onClick={() => jump("start")}
        >
          <Icon name="start" />
        </button>
        <button type="button" aria-label="step back" title="step back (←)" onClick={() => step(-1)}>
          <Icon name="back" />
        </button>
        <button
          type="button"
          class="primary"
          aria-label={playing.value ? "stop" : "play"}
          title="play (space)"
          onClick={() => (playing.value = !playing.value)}
        >
          <Icon name={playing.value ? "stop" : "play"} />
        </button>
        <button type="button" aria-label="step" title="step (→)" onClick={() => step(1)}>
          <Icon name="step" />
        </button>
        <button type="button" aria-label="to the end" title="end (End)" onClick={() => jump("end")}>
          <Icon name="end" />
        </button>
      </div>
      <input
        type="range"
        aria-label="time"
        min={0}
        step={1}
        max={known ? Math.round(folded.value!.length) : last}
        value={known ? Math.round(place) : at}
        aria-valuetext={known ? `${cycles(now.value)} cycles` : `step ${at + 1}`}
        onInput={(e) =>
          known
            ? go(folded.value!.unfold(Number(e.currentTarget.value)))
            : goValue(Number(e.currentTarget.value))
        }
      />
      <span class="clock num">
        {known ? (
          <>
            <b data-total="now">{cycles(now.value)}</b> / {cycles(known.timeline.cycles)}
          </>
        ) : null}
        <span class="muted">
          {" "}
          step <b data-total="step">{at + 1}</b> / <span data-total="steps">{last + 1}</span>
        </span>
      </span>
      <span class="doing mono" aria-live="off">
        {span && known ? `${known.timeline.tracks[span.track]?.role}: ${known.label(span)}` : ""}
      </span>
      <select
        aria-label="jump to"
        value=""
        onChange={(e) => {
          jump(e.currentTarget.value as Jump);
          e.currentTarget.value = "";
        }}
      >
        <option value="" disabled>
          jump to …
        </option>
        {JUMPS.map(([kind, text]) => (
          <option key={kind} value={kind}>
            {text}
          </option>
        ))}
      </select>
      <select
        aria-label="speed"
        value={speed.value}
        onChange={(e) => (speed.value = Number(e.currentTarget.value))}
      >
        {SPEEDS.map((s) => (
          <option key={s} value={s}>
            {cycles(s)} cycles/s
          </option>
        ))}
      </select>
    </footer>
  );
}
