/** Where the kernel stands against memory and computation, and what the chip has. */
import { scaleLinear, scaleLog } from "d3-scale";
import { line as path } from "d3-shape";
import { colour } from "../color";
import type { Roofline } from "../contract";
import { bytesOf, cycles, percent, rate, short, signed, time } from "../format";
import { recording } from "../store";
import { Empty } from "../ui";

const [W, H, LEFT, BOTTOM, TOP] = [330, 210, 52, 34, 16]; // about as wide as the panel is at least

export function RooflineView() {
  const r = recording.value?.roofline;
  if (!r)
    return (
      <Empty>
        No roofline:{" "}
        {recording.value?.notes.find((n) => /roof|flop|peak/i.test(n)) ??
          "the work of this kernel is not known"}
        .
      </Empty>
    );
  const runs = [
    ...(r.modelled_us ? [{ name: "model", us: r.modelled_us, file: "", date: "" }] : []),
    ...r.measured,
  ];
  return (
    <div class="roofline">
      {r.flops ? (
        <Plot r={r} runs={runs} />
      ) : (
        <p class="caption">
          No matrix products, so memory is the limit: {rate(r.peak_bytes, "B/s")}. Other operations
          are not counted.
        </p>
      )}
      <dl class="facts-list">
        <dt>work</dt>
        <dd>
          {r.flops
            ? `${rate(r.flops, "FLOP")}, ${bytesOf(r.bytes)}: ${short(r.intensity)} a byte`
            : bytesOf(r.bytes)}
        </dd>
        <dt>limits</dt>
        <dd>
          {r.flops ? `compute ${time(r.compute_us)}, ` : ""}memory {time(r.memory_us)}: bound by{" "}
          {r.bound}
        </dd>
        <dt>modelled</dt>
        <dd>
          {r.modelled_us ? (
            <>
              {time(r.modelled_us)}, {percent(Math.max(r.compute_us, r.memory_us) / r.modelled_us)}{" "}
              of the limit
            </>
          ) : (
            "not modelled"
          )}
        </dd>
        {r.why ? (
          <>
            <dt>note</dt>
            <dd>{r.why}</dd>
          </>
        ) : null}
      </dl>
      <Bars runs={runs} limit={Math.max(r.compute_us, r.memory_us)} />
      {r.measured.length ? null : (
        <p class="caption">
          No results file has this kernel with these sizes, so nothing measured is drawn.
        </p>
      )}
    </div>
  );
}

function Plot({ r, runs }: { r: Roofline; runs: Roofline["measured"] }) {
  const ridge = r.peak_flops / r.peak_bytes;
  const x = scaleLog(
    [Math.min(r.intensity, ridge) / 20, Math.max(r.intensity, ridge) * 12],
    [LEFT, W - 10],
  );
  const y = scaleLog([r.peak_flops / 3000, r.peak_flops * 2], [H - BOTTOM, TOP]);
  const roof = (i: number) => Math.min(r.peak_flops, i * r.peak_bytes);
  const [left, right] = x.domain() as [number, number];
  const slope = Math.sqrt(left * ridge); // the middle of the memory's limit
  const shape = path<number>()
    .x((i) => x(i))
    .y((i) => y(Math.max(y.domain()[0]!, roof(i))))([left, ridge, right]);
  const decades = (ticks: number[]) =>
    ticks.filter((t) => Math.abs(Math.log10(t) - Math.round(Math.log10(t))) < 1e-9);
  return (
    <svg
      viewBox={`0 0 ${W} ${H}`}
      role="img"
      aria-label={`roofline: ${short(r.intensity)} operations a byte, bound by ${r.bound}`}
    >
      {decades(x.ticks(8)).map((t) => (
        <g key={t} class="tick">
          <line x1={x(t)} x2={x(t)} y1={TOP} y2={H - BOTTOM} />
          <text x={x(t)} y={H - BOTTOM + 13} text-anchor="middle">
            {short(t)}
          </text>
        </g>
      ))}
      {decades(y.ticks(5)).map((t) => (
        <g key={t} class="tick">
          <line x1={LEFT} x2={W - 10} y1={y(t)} y2={y(t)} />
          <text x={LEFT - 5} y={y(t) + 3} text-anchor="end">
            {rate(t, "")}
          </text>
        </g>
      ))}
      <path d={shape ?? ""} class="roof" />
      <line
        class="at"
        x1={x(r.intensity)}
        x2={x(r.intensity)}
        y1={y(roof(r.intensity))}
        y2={H - BOTTOM}
      />
      <text class="label" x={x(ridge) + 6} y={y(r.peak_flops) - 5}>
        {rate(r.peak_flops, "FLOP/s")} {r.kind}
      </text>
      <text class="label" x={x(slope) + 8} y={y(roof(slope)) + 10}>
        {rate(r.peak_bytes, "B/s")}
      </text>
      {runs.map((run, i) => (
        <Mark
          key={run.name + i}
          i={i}
          x={x(r.intensity)}
          y={y(r.flops / (run.us * 1e-6))}
          name={`${run.name} ${rate(r.flops / (run.us * 1e-6), "FLOP/s")}`}
        />
      ))}
      <text class="axis" x={(W + LEFT) / 2} y={H - 4} text-anchor="middle">
        operations a byte of HBM
      </text>
      <text class="axis" transform={`translate(10 ${H / 2 - 10}) rotate(-90)`} text-anchor="middle">
        operations a second
      </text>
    </svg>
  );
}

function Mark({ i, x, y, name }: { i: number; x: number; y: number; name: string }) {
  const c = colour(i + 1);
  const shapes = [
    <circle key="c" cx={x} cy={y} r={5} />,
    <rect key="r" x={x - 5} y={y - 5} width={10} height={10} />,
    <path key="p" d={`M${x - 6} ${y + 5}h12l-6 -11z`} />,
    <path key="d" d={`M${x} ${y - 6}l6 6l-6 6l-6 -6z`} />,
  ];
  return (
    <g fill={c} class="mark">
      {shapes[i % shapes.length]}
      <title>{name}</title>
    </g>
  );
}

/** Implementations against the limit: longer is faster. */
function Bars({
  runs,
  limit,
}: {
  runs: { name: string; us: number; file: string; date: string }[];
  limit: number;
}) {
  const x = scaleLinear([0, 1], [0, 100]).clamp(true);
  const sorted = [...runs].sort((a, b) => a.us - b.us);
  return (
    <div class="bars" role="table" aria-label="part of the limit that is reached">
      {sorted.map((run) => (
        <div key={run.name} role="row" title={run.file ? `${run.file}, ${run.date}` : "modelled"}>
          <span role="cell">{run.name}</span>
          <span role="cell" class="bar">
            <i class={run.file ? "" : "modelled"} style={{ width: `${x(limit / run.us)}%` }} />
          </span>
          <span role="cell" class="num">
            {percent(limit / run.us)} · {time(run.us)}
          </span>
        </div>
      ))}
    </div>
  );
}

export function ChipView() {
  const chip = recording.value?.chip;
  if (!chip) return <Empty>This target has no chip.</Empty>;
  const most = Math.max(...chip.levels.map((l) => Math.log2((l.bytes_per_cycle ?? 0) + 1)), 1);
  const known = (value: number | null | undefined, text: (v: number) => string) =>
    value == null ? (
      <span class="muted" title="not known">
        –
      </span>
    ) : (
      text(value)
    );
  const beside = (value: number | undefined, text: (v: number) => string) =>
    value == null ? null : <div class="muted">measured {text(value)}</div>;
  return (
    <div>
      <p class="caption">
        {chip.name}: {chip.multiprocessors} multiprocessors; figures of one of them; –: not known.
      </p>
      <table class="plain">
        <thead>
          <tr>
            <th>level</th>
            <th class="r">size</th>
            <th class="r">bytes a cycle</th>
            <th class="barcell" />
            <th class="r">latency</th>
          </tr>
        </thead>
        <tbody>
          {chip.levels.map((l) => (
            <tr key={l.name}>
              <td>
                <b>{l.name}</b>
              </td>
              <td class="r">
                {l.products_per_cycle ? "" : known(l.bytes ?? l.measured?.bytes, bytesOf)}
              </td>
              <td class="r">
                {l.products_per_cycle
                  ? `${l.products_per_cycle} products`
                  : known(l.bytes_per_cycle, short)}
                {beside(l.measured?.bytes_per_cycle, short)}
              </td>
              <td class="barcell">
                <i
                  style={{ width: `${(100 * Math.log2((l.bytes_per_cycle ?? 0) + 1)) / most}%` }}
                />
              </td>
              <td class="r">
                {l.products_per_cycle ? "" : known(l.latency, (v) => `${short(v)} cycles`)}
                {beside(l.measured?.latency, short)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {chip.measured ? (
        <p class="caption">
          Measured on {chip.measured.device}, {chip.measured.date}, by kernels of single threads (
          {chip.measured.file}).
        </p>
      ) : null}
      <Clocked />
    </div>
  );
}

/** What was measured of the roles, and where the model is wrong, in sentences. */
export function Beside() {
  const told = recording.value?.measured;
  if (!told)
    return (
      <p class="measured muted">
        No measured times of roles: not traced on a GPU with these sizes and choices.
      </p>
    );
  const on = `${told.device}, ${told.date}`;
  if (!told.parts.length)
    return (
      <p class="measured muted">
        No measured times of roles: the trace ({on}) found no iterations to tell apart.
      </p>
    );
  return (
    <>
      {told.parts.map((p) => (
        <details key={p.kernel} class="measured" open={Math.abs(p.off) > OFF}>
          <summary>
            <b>Measured</b> {p.interval === null ? "" : `${cycles(p.interval)} cycles`} an iteration
            {p.modelled ? `, ${cycles(p.modelled)} in the model (${signed(p.off)})` : ""}
            {p.differs.length ? <b class="bad"> ✕ the model is off</b> : ""}
            <span class="muted"> {on}</span>
          </summary>
          <ul>
            {p.differs.map((text) => (
              <li key={text}>{text}</li>
            ))}
            {p.differs.length ? null : <li>no role differs by more than 15 % of an iteration</li>}
          </ul>
        </details>
      ))}
    </>
  );
}

const OFF = 0.15; // of an iteration
const NOTE = "Cycles of an iteration; the model's in brackets. ✕: more than 15 % apart.";

/** Roles as measured, beside the model. */
function Clocked() {
  const told = recording.value?.measured;
  return (
    <>
      <h3>Roles</h3>
      <Beside />
      {told?.parts.map((p) => {
        const whats = [...new Set(p.roles.flatMap((r) => Object.keys(r.spent)))];
        return (
          <table class="plain" key={p.kernel}>
            <thead>
              <tr>
                <th />
                {p.roles.map((r) => (
                  <th key={r.role} class="r">
                    {r.role}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {whats.map((what) => (
                <tr key={what}>
                  <td>{what}</td>
                  {p.roles.map((r) => {
                    const [got, want] = r.spent[what] ?? [0, 0];
                    const off = p.interval !== null && Math.abs(got - want) > OFF * p.interval;
                    return (
                      <td key={r.role} class={off ? "r bad" : "r"}>
                        {off ? "✕ " : ""}
                        {short(got)} ({short(want)})
                      </td>
                    );
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        );
      })}
      {told?.parts.length ? <p class="caption">{NOTE}</p> : null}
    </>
  );
}
