// The voice picker: radio buttons, which work with arrow keys and screen readers.

import { byId, element, iconButton, setIcon, storage } from "./dom.js";

export class Voices {
  #voices = [];

  /** actions: preview(id), remove(id). */
  constructor(actions) {
    this.actions = actions;
    this.list = byId("voices");
    this.list.addEventListener("change", () => this.choose(this.chosen));
  }

  get chosen() {
    return this.list.querySelector("input:checked")?.value ?? null;
  }

  get names() {
    return this.#voices.map((voice) => voice.id);
  }

  show(voices, choose = storage.get("voice", null)) {
    this.#voices = voices;
    this.list.replaceChildren(...voices.map((voice) => this.#row(voice)));
    const wanted = voices.find((v) => v.id === choose) ?? voices.find((v) => v.default) ?? voices[0];
    if (wanted) this.choose(wanted.id);
    byId("no-voices").hidden = voices.length > 0;
  }

  /** Mark the voice that is playing; null for none. */
  showPlaying(id) {
    for (const button of this.list.querySelectorAll("[data-preview]")) {
      const on = button.dataset.preview === id;
      setIcon(button, on ? "stop" : "play", on ? "Stop" : "Play", button.dataset.preview);
      button.classList.toggle("playing", on);
    }
  }

  choose(id) {
    const input = this.list.querySelector(`input[value="${CSS.escape(id)}"]`);
    input.checked = true;
    storage.set("voice", id);
  }

  #row(voice) {
    const name = voice.name ?? voice.id;
    const preview = iconButton("play", "Play", name, () => this.actions.preview(voice.id));
    preview.dataset.preview = voice.id;
    const traits = [voice.accent, voice.gender].filter(Boolean).join(" · ");
    const row = element(
      "div",
      { class: voice.builtin === false ? "voice own" : "voice" },
      element(
        "label",
        { title: voice.description || null },
        element("input", { type: "radio", name: "voice", value: voice.id }),
        element("span", { class: "voice-name" }, name),
        ...(traits ? [" ", element("small", { class: "voice-traits" }, traits)] : []),
      ),
      preview,
    );
    if (voice.deletable) {
      row.append(iconButton("remove", "Delete", name, () => this.actions.remove(voice.id)));
    }
    return row;
  }
}
