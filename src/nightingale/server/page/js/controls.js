// The sliders. The server says which controls its model has and how far they go; the others are not shown.

import { byId, element, memory } from "./dom.js";

// `reach` is the useful part of a range; the API allows more.
const KNOWN = {
  speed: { label: "Speed", step: 0.05, reach: [0.5, 2], unit: "×" },
  temperature: { label: "Temperature", step: 0.05, reach: [0, 1.5], unit: "" },
  exaggeration: { label: "Exaggeration", step: 0.05, reach: [0, 2], unit: "" },
  cfg_weight: { label: "Guidance", step: 0.05, reach: [0, 1], unit: "" },
};
// Every OpenAI-compatible server has this one.
const UNASKED = { speed: { min: 0.25, max: 4, default: 1 } };

export class Controls {
  #sliders = new Map();

  constructor() {
    byId("reset-controls").addEventListener("click", () => this.reset());
    byId("seed").addEventListener("input", () => this.#changed());
    byId("language").addEventListener("change", () => this.#changed());
  }

  /** model: an entry of GET /v1/models. */
  show(model) {
    const offered = model.controls ?? UNASKED;
    const kept = memory.get("controls", {});
    this.#sliders.clear();
    const names = Object.keys(KNOWN).filter((name) => name in offered);
    byId("sliders").replaceChildren(...names.map((name) => this.#row(name, offered[name], kept[name])));
    byId("seed").value = kept.seed ?? "";
    this.#offerLanguages(model.languages ?? [], kept.language);
    this.#changed();
  }

  /** Only what was moved away from the model's own default: requests stay short. */
  get values() {
    const chosen = {};
    for (const [name, { input, normal }] of this.#sliders) {
      if (Number(input.value) !== normal) chosen[name] = Number(input.value);
    }
    const seed = byId("seed").value.trim();
    if (/^\d+$/.test(seed)) chosen.seed = Number(seed);
    if (byId("language").value) chosen.language = byId("language").value;
    return chosen;
  }

  reset() {
    for (const { input, normal } of this.#sliders.values()) input.value = normal;
    byId("seed").value = "";
    this.#changed();
  }

  #row(name, offer, kept) {
    const { label, step, reach, unit } = KNOWN[name];
    const min = Math.max(offer.min, reach[0]);
    const max = Math.min(offer.max, reach[1]);
    const shown = element("output", { for: `control-${name}` });
    const input = element("input", { type: "range", id: `control-${name}`, min, max, step });
    input.addEventListener("input", () => this.#changed());
    input.value = offer.default; // snapped to a step by the browser
    const normal = Number(input.value);
    if (kept !== undefined) input.value = kept;
    this.#sliders.set(name, { input, normal, shown, unit });
    return element(
      "div",
      { class: "slider" },
      element("label", { for: input.id }, label),
      shown,
      input,
    );
  }

  #offerLanguages(languages, kept) {
    const names = new Intl.DisplayNames(undefined, { type: "language", fallback: "code" });
    const options = languages.map((code) => element("option", { value: code }, names.of(code)));
    byId("language").replaceChildren(element("option", { value: "" }, "The voice’s own"), ...options);
    byId("language").value = languages.includes(kept) ? kept : "";
    byId("language-row").hidden = languages.length < 2;
  }

  #changed() {
    for (const { input, shown, unit } of this.#sliders.values()) {
      const part = (input.value - input.min) / (input.max - input.min);
      input.style.setProperty("--filled", `${100 * part}%`);
      shown.value = Number(input.value).toFixed(2) + unit;
    }
    byId("reset-controls").hidden = Object.keys(this.values).length === 0;
    memory.set("controls", this.values);
  }
}
