// The dialog that speaks a recording in the chosen voice: the recording is chosen, dropped or recorded.

import { readClip } from "../audio/clip.js";
import { wavFromFloats } from "../audio/pcm.js";
import { byId } from "./dom.js";
import { RecordButton } from "./record_button.js";

const MAX_SECONDS = 120;

export class Converting {
  #clip = null;
  #name = "";

  /** actions: voice() -> the name of the chosen voice; convert(wav, name). */
  constructor(actions) {
    this.actions = actions;
    this.dialog = byId("converting");
    byId("convert").addEventListener("click", () => this.open());
    byId("convert-file").addEventListener("change", (event) => this.#load(event.target.files[0]));
    byId("convert-form").addEventListener("submit", (event) => this.#submit(event));
    this.recording = new RecordButton("convert", {
      maxSeconds: MAX_SECONDS,
      hint: "Say something.",
      onClip: (blob) => this.#load(blob),
      showStatus: (message, isError) => this.#showStatus(message, isError),
    });
    this.dialog.addEventListener("close", () => this.recording.cancel());
    this.dialog.addEventListener("drop", (event) => this.#load(event.dataTransfer?.files[0]));
  }

  open() {
    this.#clip = null;
    byId("convert-form").reset();
    this.#showStatus("");
    byId("convert-voice").textContent = this.actions.voice() ?? "the default voice";
    byId("convert-start").disabled = true;
    this.dialog.showModal();
  }

  async #load(file) {
    if (!file) return;
    this.#showStatus("Reading the recording…");
    try {
      this.#clip = await readClip(file, MAX_SECONDS);
      this.#name = file.name ?? "recording";
      const seconds = this.#clip.samples.length / this.#clip.sampleRateHz;
      const length = `${seconds.toFixed(1)} seconds`;
      this.#showStatus(seconds >= MAX_SECONDS ? `The first ${length} are used.` : `${length}.`);
    } catch (error) {
      this.#clip = null;
      this.#showStatus(error.message, true);
    }
    byId("convert-start").disabled = !this.#clip;
  }

  #submit(event) {
    event.preventDefault();
    this.dialog.close();
    this.actions.convert(wavFromFloats(this.#clip.samples, this.#clip.sampleRateHz), this.#name);
  }

  #showStatus(message, isError = false) {
    byId("convert-status").textContent = message;
    byId("convert-status").classList.toggle("error", isError);
  }
}
