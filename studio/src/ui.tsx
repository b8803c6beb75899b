/** Small parts that the views are made of. */
import { effect, type Signal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { theme } from "./store";

export function Panel(props: {
  title: string;
  name: string;
  tools?: ComponentChildren;
  children: ComponentChildren;
  flush?: boolean;
}) {
  return (
    <section class={`panel panel-${props.name}`} aria-label={props.title} data-panel={props.name}>
      <header>
        <h2>{props.title}</h2>
        <div class="tools">{props.tools}</div>
      </header>
      <div class={props.flush ? "body flush" : "body"}>{props.children}</div>
    </section>
  );
}

/** Tabs that arrow keys walk through. */
export function Tabs(props: {
  names: string[];
  chosen: string;
  label: string;
  choose: (name: string) => void;
  marks?: Record<string, string>;
}) {
  const move = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.stopPropagation();
    event.preventDefault();
    const { names } = props;
    const next = (names.indexOf(props.chosen) + by + names.length) % names.length;
    props.choose(names[next]!);
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => (list.children[next] as HTMLElement | undefined)?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} onKeyDown={move}>
      {props.names.map((name) => (
        <button
          key={name}
          type="button"
          role="tab"
          aria-selected={name === props.chosen}
          tabIndex={name === props.chosen ? 0 : -1}
          onClick={() => props.choose(name)}
        >
          {name}
          {props.marks?.[name] ? <span class="badge">{props.marks[name]}</span> : null}
        </button>
      ))}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** Keeps what was made for a key while its signature is the same: Preact leaves such parts alone.
 * All are made anew when `given` changes. */
export function useKept(...given: unknown[]) {
  const kept = useRef({ given, nodes: new Map<unknown, [string, VNode]>() });
  if (given.some((each, i) => each !== kept.current.given[i]))
    kept.current = { given, nodes: new Map() };
  const { nodes } = kept.current;
  return (key: unknown, signature: string, make: () => VNode): VNode => {
    const known = nodes.get(key);
    if (known?.[0] === signature) return known[1];
    const made = make();
    nodes.set(key, [signature, made]);
    return made;
  };
}

export interface Brush {
  context: CanvasRenderingContext2D;
  /** Shows what was drawn for an equal key; `draw` may add to it, or begin anew where it is fresh. */
  layer: (
    key: unknown[],
    draw: (context: CanvasRenderingContext2D, fresh: boolean) => void,
  ) => void;
  width: number;
  height: number;
  ratio: number;
  /** A colour of the page. */
  css: (name: string) => string;
}

interface Walked {
  at: Signal<[number, number] | null>;
  rows: number;
  columns: number;
}

const ARROWS: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

function walked(event: KeyboardEvent, { at, rows, columns }: Walked): void {
  const by = ARROWS[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation(); // no step of the timeline
  const [row, column] = at.value ? [at.value[0] + by[0], at.value[1] + by[1]] : [0, 0];
  at.value = [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
}

/** A canvas in the pixels of the screen, drawn again when a signal changes that `draw` has read. */
export function Canvas(props: {
  draw: (brush: Brush) => void;
  label: string;
  class?: string;
  height?: number;
  /** Columns to rows, where the drawing has a form of its own. */
  form?: number;
  again?: unknown;
  /** Of a table: arrows walk through it. */
  cells?: Walked;
  onPointerDown?: (event: PointerEvent) => void;
  onPointerMove?: (event: PointerEvent) => void;
  onPointerLeave?: (event: PointerEvent) => void;
  onWheel?: (event: WheelEvent) => void;
  onDblClick?: (event: MouseEvent) => void;
}) {
  const place = useRef<HTMLCanvasElement>(null);
  const draw = useRef(props.draw);
  const redraw = useRef<() => void>(() => {});
  draw.current = props.draw;
  useEffect(() => {
    const canvas = place.current!;
    const context = canvas.getContext("2d")!;
    // asked once: to ask at each step would have the browser lay the page out in between
    let size: [number, number] = [0, 0];
    let dressed = "";
    const colours = new Map<string, string>();
    const css = (name: string) => {
      const found = colours.get(name) ?? getComputedStyle(canvas).getPropertyValue(name).trim();
      colours.set(name, found);
      return found;
    };
    let sheet: HTMLCanvasElement | null = null;
    let drawn: unknown[] = [];
    const layer: Brush["layer"] = (key, draw) => {
      const made = sheet ?? (sheet = document.createElement("canvas"));
      const { width, height } = canvas;
      const whole = [...key, width, height, scale, dressed];
      const fresh = whole.length !== drawn.length || whole.some((each, i) => each !== drawn[i]);
      drawn = whole;
      if (fresh) [made.width, made.height] = [width, height]; // which clears it
      const own = made.getContext("2d")!;
      if (fresh) own.setTransform(context.getTransform());
      draw(own, fresh);
      context.save();
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(made, 0, 0);
      context.restore();
    };
    const paint = () => {
      void theme.value;
      const now = document.documentElement.dataset.theme ?? "";
      if (now !== dressed) colours.clear();
      dressed = now;
      const [width, height] = size;
      const ratio = (window.devicePixelRatio || 1) * scale;
      const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
      if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      if (width && height) draw.current({ context, layer, width, height, ratio, css });
    };
    let scale = zoomOf(canvas);
    let stop = effect(paint);
    redraw.current = () => {
      stop();
      stop = effect(paint);
    };
    const watch = new ResizeObserver(() => {
      const { clientWidth, clientHeight } = canvas.parentElement!;
      size = [clientWidth, clientHeight];
      scale = zoomOf(canvas);
      redraw.current();
    });
    watch.observe(canvas.parentElement!);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const later = () => redraw.current();
    scheme.addEventListener("change", later);
    const wheel = (event: WheelEvent) => handlers.current?.(event);
    canvas.addEventListener("wheel", wheel, { passive: false });
    return () => {
      stop();
      watch.disconnect();
      scheme.removeEventListener("change", later);
      canvas.removeEventListener("wheel", wheel);
    };
  }, []);
  const handlers = useRef(props.onWheel);
  handlers.current = props.onWheel;
  useEffect(() => redraw.current(), [props.again]);
  return (
    <div
      class={`canvas ${props.class ?? ""}`}
      style={
        props.height
          ? { height: `${props.height}px` }
          : props.form
            ? { aspectRatio: `${props.form}` }
            : undefined
      }
    >
      <canvas
        ref={place}
        role="img"
        aria-label={props.label}
        onPointerDown={props.onPointerDown}
        onPointerMove={props.onPointerMove}
        onPointerLeave={props.onPointerLeave}
        onDblClick={props.onDblClick}
        tabIndex={props.cells ? 0 : undefined}
        onKeyDown={(event) => props.cells && walked(event, props.cells)}
      />
    </div>
  );
}

/** Wide screens show the page larger. */
export function zoomOf(element: Element): number {
  return (element as Element & { currentCSSZoom?: number }).currentCSSZoom ?? 1;
}

/** Where an event is, from the canvas's corner. */
export function spot(event: MouseEvent): [number, number] {
  const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
  const scale = zoomOf(event.currentTarget as HTMLElement);
  return [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
}

export function Line({ number, go }: { number: number | null; go: (line: number) => void }) {
  if (number === null) return null;
  return (
    <button type="button" class="lineno" onClick={() => go(number)}>
      line {number}
    </button>
  );
}
