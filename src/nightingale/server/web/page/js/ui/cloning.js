// The dialog that creates a voice from a clip: dropped on the page, chosen, or recorded.

import { MAX_SECONDS, readClip } from "../audio/clip.js";
import { wavFromFloats } from "../audio/pcm.js";
import { Peaks } from "../audio/peaks.js";
import { byId } from "./dom.js";
import { RecordButton } from "./record_button.js";
import { drawPeaks } from "./waveform.js";

const RECOMMENDED_SECONDS = 3;
const MAX_NAME_LENGTH = 64;

export class Cloning {
  #clip = null;

  /** actions: takenNames() -> names in use; save(name, wav); play(samples, sampleRateHz). */
  constructor(actions) {
    this.actions = actions;
    this.dialog = byId("cloning");
    byId("add-voice").addEventListener("click", () => this.open());
    byId("clone-file").addEventListener("change", (event) => this.#load(event.target.files[0]));
    byId("clone-play").addEventListener("click", () =>
      this.actions.play(this.#clip.samples, this.#clip.sampleRateHz),
    );
    byId("clone-form").addEventListener("submit", (event) => this.#submit(event));
    byId("clone-name").addEventListener("input", () => this.#refresh());
    this.recording = new RecordButton("clone", {
      maxSeconds: MAX_SECONDS,
      hint: "Read any text aloud.",
      onClip: (blob) => this.#load(blob),
      showStatus: (message, isError) => this.#showStatus(message, isError),
    });
    this.dialog.addEventListener("close", () => this.recording.cancel());
  }

  /** Take a clip that was dropped. */
  take(file) {
    if (!this.dialog.open) this.open();
    this.#load(file);
  }

  open() {
    this.#clip = null;
    byId("clone-form").reset();
    this.#showStatus("");
    this.#refresh();
    this.dialog.showModal();
  }

  async #load(file) {
    if (!file) return;
    this.#showStatus("Reading the clip…");
    try {
      this.#clip = await readClip(file);
      this.#showStatus(this.#describeLength());
    } catch (error) {
      this.#clip = null;
      this.#showStatus(error.message, true);
    }
    if (file.name && !byId("clone-name").value) byId("clone-name").value = this.#nameFrom(file.name);
    this.#refresh();
  }

  #describeLength() {
    const seconds = this.#clip.samples.length / this.#clip.sampleRateHz;
    const length = `${seconds.toFixed(1)} seconds`;
    if (seconds < RECOMMENDED_SECONDS) return `${length}: short. Ten or more make a better voice.`;
    return seconds >= MAX_SECONDS ? `The first ${length} are used.` : `${length}.`;
  }

  #nameFrom(file) {
    const stem = file.replace(/\.[^.]*$/, "").toLowerCase();
    return stem.normalize("NFKD").replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, MAX_NAME_LENGTH);
  }

  async #submit(event) {
    event.preventDefault();
    const name = byId("clone-name").value.trim();
    byId("clone-save").disabled = true;
    this.#showStatus("Creating the voice…");
    try {
      await this.actions.save(name, wavFromFloats(this.#clip.samples, this.#clip.sampleRateHz));
      this.dialog.close();
    } catch (error) {
      this.#showStatus(error.message, true);
      this.#refresh();
    }
  }

  #refresh() {
    const name = byId("clone-name");
    const taken = this.actions.takenNames().includes(name.value.trim());
    name.setCustomValidity(taken ? "A voice of that name exists." : "");
    byId("clone-clip").hidden = !this.#clip;
    byId("clone-save").disabled = !this.#clip || !name.value.trim();
    if (!this.#clip) return;
    const peaks = new Peaks(this.#clip.sampleRateHz);
    peaks.add(this.#clip.samples);
    drawPeaks(byId("clone-wave"), peaks);
  }

  #showStatus(message, isError = false) {
    byId("clone-status").textContent = message;
    byId("clone-status").classList.toggle("error", isError);
  }
}
