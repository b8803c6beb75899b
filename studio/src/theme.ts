/** Light or dark: as the system has it, until a person says otherwise. */
import { effect } from "@preact/signals";
import { type Theme, theme } from "./store";

const dark = matchMedia("(prefers-color-scheme: dark)");

export function turnTheme(): void {
  const order: Theme[] = ["auto", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length]!;
}

export function dress(): void {
  try {
    theme.value = (localStorage.getItem("studio-theme") as Theme | null) ?? "auto";
  } catch {
    // a page from a file may have no storage
  }
  const put = () => {
    const chosen = theme.value === "auto" ? (dark.matches ? "dark" : "light") : theme.value;
    document.documentElement.dataset.theme = chosen;
  };
  dark.addEventListener("change", put);
  effect(() => {
    put();
    try {
      localStorage.setItem("studio-theme", theme.value);
    } catch {
      // as above
    }
  });
}
