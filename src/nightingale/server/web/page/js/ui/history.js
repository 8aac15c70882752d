// The list of past utterances: replay, reuse the text, download, delete.

import { wavFile } from "../audio/pcm.js";
import { Peaks } from "../audio/peaks.js";
import { byId, download, element, iconButton, setIcon, storage } from "./dom.js";
import { drawPeaks } from "./waveform.js";

const LABEL_CHARS = 40; // of a text, in the labels of its buttons
const OWN_FORMAT = "wav"; // written here; the server encodes the others
const ENCODED_RATE_HZ = 24000; // of audio that the server encodes

export class History {
  /** actions: play(entry), reuse(entry), encode(pcm, format) -> Promise<Blob>, showError(error). */
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.list = byId("history");
    byId("clear-history").addEventListener("click", () => this.#clear());
    byId("format").addEventListener("change", () => {
      storage.set("format", byId("format").value);
      this.show();
    });
    new ResizeObserver(() => this.draw()).observe(this.list);
    this.show();
  }

  async add(entry) {
    await this.store.add(entry);
    this.show();
  }

  /** Offer these formats for downloads. */
  showFormats(formats) {
    const names = [...new Set([OWN_FORMAT, ...formats])];
    byId("format").replaceChildren(...names.map((name) => element("option", { value: name }, name.toUpperCase())));
    const chosen = storage.get("format", OWN_FORMAT);
    byId("format").value = names.includes(chosen) ? chosen : OWN_FORMAT;
    this.show();
  }

  show() {
    const entries = this.store.entries;
    this.list.replaceChildren(...entries.map((entry) => this.#row(entry)));
    byId("history-empty").hidden = entries.length > 0;
    byId("history-tools").hidden = entries.length === 0;
    byId("history-not-saved").hidden = this.store.isPersistent;
    this.draw();
  }

  /** Mark the entry that is playing; null for none. */
  showPlaying(id) {
    for (const row of this.list.children) {
      const on = row.dataset.id === id;
      setIcon(row.querySelector("button"), on ? "stop" : "play", on ? "Stop" : "Play", row.dataset.label);
      row.classList.toggle("playing", on);
    }
  }

  draw() {
    const entries = new Map(this.store.entries.map((entry) => [entry.id, entry]));
    for (const row of this.list.children) {
      const entry = entries.get(row.dataset.id);
      drawPeaks(row.querySelector("canvas"), new Peaks(entry.sampleRateHz, entry.peaks));
    }
  }

  #row(entry) {
    const label = entry.text.slice(0, LABEL_CHARS);
    return element(
      "li",
      { "data-id": entry.id, "data-label": label, class: "entry" },
      iconButton("play", "Play", label, () => this.actions.play(entry)),
      element(
        "div",
        { class: "entry-body" },
        element("p", { class: "entry-text", title: entry.text }, entry.text),
        element("p", { class: "entry-facts" }, facts(entry)),
      ),
      element("canvas", { "aria-hidden": "true" }),
      element(
        "div",
        { class: "entry-actions" },
        iconButton("reuse", "Reuse this text", label, () => this.actions.reuse(entry)),
        iconButton("download", `Download as ${this.#formatOf(entry).toUpperCase()}`, label, () => this.#save(entry)),
        ...(entry.srt ? [iconButton("captions", "Download captions (SRT)", label, () => saveCaptions(entry))] : []),
        iconButton("remove", "Delete", label, () => this.#delete(entry)),
      ),
    );
  }

  #formatOf(entry) {
    return entry.sampleRateHz === ENCODED_RATE_HZ ? byId("format").value || OWN_FORMAT : OWN_FORMAT;
  }

  async #save(entry) {
    const format = this.#formatOf(entry);
    try {
      const file =
        format === OWN_FORMAT
          ? wavFile(entry.pcm, entry.pcm.size, entry.sampleRateHz)
          : await this.actions.encode(entry.pcm, format);
      download(file, `${fileName(entry)}.${format}`);
    } catch (error) {
      this.actions.showError(error);
    }
  }

  async #delete(entry) {
    await this.store.remove(entry.id);
    this.show();
  }

  async #clear() {
    if (!confirm("Delete the whole history?")) return;
    await this.store.clear();
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

function saveCaptions(entry) {
  download(new Blob([entry.srt], { type: "application/x-subrip" }), `${fileName(entry)}.srt`);
}

function fileName(entry) {
  const words = entry.text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["speech"];
  return words.slice(0, 6).join("-").slice(0, 60);
}
