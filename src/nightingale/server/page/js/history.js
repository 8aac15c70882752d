// The list of what was said: hear it again, take its text back, save it, forget it.

import { byId, download, element, iconButton, redraw } from "./dom.js";
import { wavFile } from "./pcm.js";
import { Peaks } from "./peaks.js";
import { drawOutline } from "./waveform.js";

const BEGINNING_LETTERS = 40; // of a text, by which its buttons are told apart

export class History {
  /** actions: play(entry), reuse(entry). */
  constructor(shelf, actions) {
    this.shelf = shelf;
    this.actions = actions;
    this.list = byId("history");
    byId("clear-history").addEventListener("click", () => this.#clear());
    new ResizeObserver(() => this.draw()).observe(this.list);
    this.show();
  }

  async add(entry) {
    await this.shelf.add(entry);
    this.show();
  }

  show() {
    const entries = this.shelf.entries;
    this.list.replaceChildren(...entries.map((entry) => this.#row(entry)));
    byId("history-empty").hidden = entries.length > 0;
    byId("clear-history").hidden = entries.length === 0;
    byId("history-fleeting").hidden = this.shelf.lasts;
    this.draw();
  }

  /** Which entry is being heard, or null. */
  sounding(id) {
    for (const row of this.list.children) {
      const on = row.dataset.id === id;
      redraw(row.querySelector("button"), on ? "stop" : "play", on ? "Stop" : "Play", row.dataset.beginning);
      row.classList.toggle("sounding", on);
    }
  }

  draw() {
    const entries = new Map(this.shelf.entries.map((entry) => [entry.id, entry]));
    for (const row of this.list.children) {
      const entry = entries.get(row.dataset.id);
      drawOutline(row.querySelector("canvas"), new Peaks(entry.sampleRateHz, entry.peaks));
    }
  }

  #row(entry) {
    const beginning = entry.text.slice(0, BEGINNING_LETTERS);
    return element(
      "li",
      { "data-id": entry.id, "data-beginning": beginning, class: "said" },
      iconButton("play", "Play", beginning, () => this.actions.play(entry)),
      element(
        "div",
        { class: "said-what" },
        element("p", { class: "said-text", title: entry.text }, entry.text),
        element("p", { class: "said-facts" }, facts(entry)),
      ),
      element("canvas", { "aria-hidden": "true" }),
      element(
        "div",
        { class: "said-actions" },
        iconButton("reuse", "Put this text back", beginning, () => this.actions.reuse(entry)),
        iconButton("download", "Download as WAV", beginning, () => save(entry)),
        iconButton("remove", "Forget", beginning, () => this.#forget(entry)),
      ),
    );
  }

  async #forget(entry) {
    await this.shelf.remove(entry.id);
    this.show();
  }

  async #clear() {
    if (!confirm("Forget everything in the history?")) return;
    await this.shelf.clear();
    this.show();
  }
}

function facts(entry) {
  const today = new Date(entry.at).toDateString() === new Date().toDateString();
  const when = new Intl.DateTimeFormat(undefined, { dateStyle: today ? undefined : "medium", timeStyle: "short" });
  return [
    entry.voice,
    `${entry.seconds.toFixed(1)} s`,
    `first audio ${Math.round(entry.firstAudioMs)} ms`,
    entry.stopped ? "stopped" : null,
    when.format(entry.at),
  ]
    .filter(Boolean)
    .join(" · ");
}

function save(entry) {
  const name = entry.text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["speech"];
  const file = wavFile(entry.pcm, entry.pcm.size, entry.sampleRateHz);
  download(file, `${name.slice(0, 6).join("-").slice(0, 60)}.wav`);
}
