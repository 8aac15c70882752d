// The controls that the model supports (GET /v1/models), within its ranges: sliders, and fields for the others.

import { byId, element, storage } from "./dom.js";

// `range` is the useful part; the API allows more.
const KNOWN = {
  speed: { label: "Speed", step: 0.05, range: [0.5, 2], unit: "×" },
  temperature: { label: "Temperature", step: 0.05, range: [0, 1.5], unit: "" },
  exaggeration: { label: "Exaggeration", step: 0.05, range: [0, 2], unit: "" },
  cfg_weight: { label: "Guidance", step: 0.05, range: [0, 1], unit: "" },
};
// Every OpenAI-compatible server has this one.
const DEFAULT_CONTROLS = { speed: { min: 0.25, max: 4, default: 1 } };

export class Controls {
  #sliders = new Map();

  constructor() {
    byId("reset-controls").addEventListener("click", () => this.reset());
    byId("seed").addEventListener("input", () => this.#changed());
    byId("language").addEventListener("change", () => this.#changed());
  }

  /** model: an entry of GET /v1/models. saved: values by name; by default those of the last visit. */
  show(model, saved = storage.get("controls", {})) {
    const offered = model.controls ?? DEFAULT_CONTROLS;
    this.#sliders.clear();
    const row = (name) => this.#row(name, offered[name], saved[name]);
    const others = Object.keys(offered).filter((name) => !(name in KNOWN));
    byId("sliders").replaceChildren(...Object.keys(KNOWN).filter((name) => name in offered).map(row));
    byId("other-controls").replaceChildren(...others.map(row));
    byId("other-controls").parentElement.hidden = others.length === 0;
    byId("seed").value = saved.seed ?? "";
    this.#showLanguages(model.languages ?? [], saved.language);
    this.#changed();
  }

  /** The controls that differ from the model's defaults; only these are sent. */
  get values() {
    const values = {};
    for (const [name, { input, initial }] of this.#sliders) {
      const isValid = input.value !== "" && input.checkValidity();
      if (isValid && Number(input.value) !== initial) values[name] = Number(input.value);
    }
    const seed = byId("seed").value.trim();
    if (/^\d+$/.test(seed)) values.seed = Number(seed);
    if (byId("language").value) values.language = byId("language").value;
    return values;
  }

  reset() {
    for (const { input, initial } of this.#sliders.values()) input.value = initial;
    byId("seed").value = "";
    this.#changed();
  }

  #row(name, offer, saved) {
    const { label, step, range, unit } = KNOWN[name] ?? {
      label: name.replaceAll("_", " "),
      step: "any",
      range: [offer.min, offer.max],
    };
    const min = Math.max(offer.min, range[0]);
    const max = Math.min(offer.max, range[1]);
    const shown = element("output", { for: `control-${name}` });
    const type = name in KNOWN ? "range" : "number";
    const input = element("input", { type, id: `control-${name}`, min, max, step });
    input.addEventListener("input", () => this.#changed());
    input.value = offer.default; // the browser rounds it to a step
    const initial = Number(input.value);
    if (saved !== undefined) input.value = saved;
    this.#sliders.set(name, { input, initial, shown, unit });
    return element(
      "div",
      { class: type === "range" ? "slider" : "row" },
      element("label", { for: input.id }, label),
      shown,
      input,
    );
  }

  #showLanguages(languages, saved) {
    const names = new Intl.DisplayNames(undefined, { type: "language", fallback: "code" });
    const options = languages.map((code) => element("option", { value: code }, names.of(code)));
    byId("language").replaceChildren(element("option", { value: "" }, "Default of the voice"), ...options);
    byId("language").value = languages.includes(saved) ? saved : "";
    byId("language-row").hidden = languages.length < 2;
  }

  #changed() {
    for (const { input, shown, unit } of this.#sliders.values()) {
      const part = (input.value - input.min) / (input.max - input.min);
      input.style.setProperty("--filled", `${100 * part}%`);
      if (input.type === "range") shown.value = Number(input.value).toFixed(2) + unit;
    }
    byId("reset-controls").hidden = Object.keys(this.values).length === 0;
    storage.set("controls", this.values);
  }
}
