/** Keys of the page, in one table: what the help shows is what works. */
import { signal } from "@preact/signals";
import { goValue, jump, playing, screen, step, valueStep } from "./store";
import { turnTheme } from "./theme";
import { turnLevel } from "./views/code";
import { fitView, zoom, zoomLoop } from "./views/timeline";

export const help = signal(false);

export const KEYS: { keys: string[]; does: string; run: () => void }[] = [
  { keys: ["ArrowRight", "l"], does: "step", run: () => step(1) },
  { keys: ["ArrowLeft", "h"], does: "step back", run: () => step(-1) },
  { keys: [" "], does: "play, stop", run: () => (playing.value = !playing.value) },
  { keys: ["i"], does: "next iteration", run: () => jump("iteration") },
  { keys: ["w"], does: "next wait", run: () => jump("wait") },
  { keys: ["W"], does: "longest wait", run: () => jump("longest wait") },
  { keys: ["b"], does: "next barrier phase", run: () => jump("flip") },
  { keys: ["p"], does: "next phase of the block", run: () => jump("phase") },
  { keys: ["s"], does: "next store", run: () => jump("store") },
  { keys: ["Home"], does: "start", run: () => jump("start") },
  { keys: ["End"], does: "end", run: () => jump("end") },
  { keys: ["]"], does: "value step", run: () => goValue(valueStep.value + 1) },
  { keys: ["["], does: "value step back", run: () => goValue(valueStep.value - 1) },
  { keys: ["+", "="], does: "zoom in", run: () => zoom(1 / 1.6) },
  { keys: ["-"], does: "zoom out", run: () => zoom(1.6) },
  { keys: ["2"], does: "show two iterations", run: zoomLoop },
  { keys: ["0"], does: "show all", run: fitView },
  { keys: ["."], does: "next level of the code", run: () => turnLevel(1) },
  { keys: [","], does: "level before", run: () => turnLevel(-1) },
  {
    keys: ["g"],
    does: "gallery, and back",
    run: () => (screen.value = screen.value === "gallery" ? "kernel" : "gallery"),
  },
  { keys: ["t"], does: "light, dark, as the system", run: turnTheme },
  { keys: ["?"], does: "keys", run: () => (help.value = !help.value) },
  { keys: ["Escape"], does: "close", run: () => (help.value = false) },
];

const LABEL: Record<string, string> = { ArrowRight: "→", ArrowLeft: "←", " ": "space" };
export const label = (key: string) => LABEL[key] ?? key;

export function listen(): void {
  document.addEventListener("keydown", (event) => {
    const at = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("input, textarea, select"))
      return;
    if (event.key === " " && at.matches("button, summary, [role=tab]")) return;
    if (at.matches(".listing, .decisions") && ["Home", "End", " "].includes(event.key)) return;
    const found = KEYS.find((entry) => entry.keys.includes(event.key));
    if (!found) return;
    event.preventDefault();
    found.run();
  });
}
