// Dark or light: the system's setting until the user chooses.

import { byId, setIcon, storage } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(onChange) {
  let chosen = storage.get("theme", null);
  const apply = () => {
    const shown = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = shown;
    const other = shown === "dark" ? "light" : "dark";
    setIcon(byId("theme"), other === "dark" ? "moon" : "sun", `Switch to ${other}`);
    onChange();
  };
  byId("theme").addEventListener("click", () => {
    const shown = document.documentElement.dataset.theme;
    const next = shown === "dark" ? "light" : "dark";
    // Choosing the system's setting means following it.
    chosen = (next === "dark") === dark.matches ? null : next;
    storage.set("theme", chosen);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
