// Dark or light: the system's choice until the reader makes one.

import { byId, memory, redraw } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(onChange) {
  let chosen = memory.get("theme", null);
  const apply = () => {
    const shown = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = shown;
    const other = shown === "dark" ? "light" : "dark";
    redraw(byId("theme"), other === "dark" ? "moon" : "sun", `Switch to ${other}`);
    onChange();
  };
  byId("theme").addEventListener("click", () => {
    const shown = document.documentElement.dataset.theme;
    const next = shown === "dark" ? "light" : "dark";
    // Choosing what the system says anyway is choosing to follow it.
    chosen = (next === "dark") === dark.matches ? null : next;
    memory.set("theme", chosen);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
