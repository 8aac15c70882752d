// The dialog that makes a voice out of a clip: dropped anywhere on the page, chosen, or recorded.

import { LONGEST_SECONDS, Recorder, readClip } from "./clip.js";
import { byId } from "./dom.js";
import { wavFromFloats } from "./pcm.js";
import { Peaks } from "./peaks.js";
import { drawOutline } from "./waveform.js";

const SHORTEST_SECONDS = 3;
const NAME_LETTERS = 64;

export class Cloning {
  #clip = null;
  #recorder = null;
  #clock = null;

  /** actions: taken() -> names in use; save(name, wav); hear(samples, sampleRateHz). */
  constructor(actions) {
    this.actions = actions;
    this.dialog = byId("cloning");
    byId("add-voice").addEventListener("click", () => this.open());
    byId("clone-file").addEventListener("change", (event) => this.#take(event.target.files[0]));
    byId("clone-record").addEventListener("click", () => this.#record());
    byId("clone-hear").addEventListener("click", () =>
      this.actions.hear(this.#clip.samples, this.#clip.sampleRateHz),
    );
    byId("clone-form").addEventListener("submit", (event) => this.#submit(event));
    byId("clone-name").addEventListener("input", () => this.#refresh());
    this.dialog.addEventListener("close", () => this.#leave());
    byId("clone-record").hidden = !Recorder.possible;
    byId("clone-no-microphone").hidden = Recorder.possible;
    this.#acceptDrops();
  }

  open() {
    this.#clip = null;
    byId("clone-form").reset();
    this.#say("");
    this.#refresh();
    this.dialog.showModal();
  }

  #acceptDrops() {
    const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!holdsFile(event)) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dropping");
    });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!holdsFile(event)) return;
      event.preventDefault();
      if (!this.dialog.open) this.open();
      this.#take(event.dataTransfer.files[0]);
    });
  }

  async #take(file) {
    if (!file) return;
    this.#say("Reading the clip…");
    try {
      this.#clip = await readClip(file);
      this.#say(this.#verdict());
    } catch (error) {
      this.#clip = null;
      this.#say(error.message, true);
    }
    if (file.name && !byId("clone-name").value) byId("clone-name").value = this.#nameFrom(file.name);
    this.#refresh();
  }

  #verdict() {
    const seconds = this.#clip.samples.length / this.#clip.sampleRateHz;
    const length = `${seconds.toFixed(1)} seconds`;
    if (seconds < SHORTEST_SECONDS) return `${length}: short. Ten or more make a better voice.`;
    return seconds >= LONGEST_SECONDS ? `The first ${length} are used.` : `${length}.`;
  }

  #nameFrom(file) {
    const stem = file.replace(/\.[^.]*$/, "").toLowerCase();
    return stem.normalize("NFKD").replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, NAME_LETTERS);
  }

  async #record() {
    if (this.#recorder) {
      const recorder = this.#recorder;
      this.#recorder = null;
      clearInterval(this.#clock);
      byId("clone-record").lastElementChild.textContent = "Record";
      await this.#take(await recorder.stop());
      return;
    }
    const recorder = new Recorder();
    try {
      await recorder.start();
    } catch {
      this.#say("The browser gave no microphone. Allow it for this page, or choose a file.", true);
      return;
    }
    this.#recorder = recorder;
    byId("clone-record").lastElementChild.textContent = "Finish";
    const startedMs = performance.now();
    const tick = () => {
      const seconds = (performance.now() - startedMs) / 1000;
      this.#say(`Recording, ${seconds.toFixed(0)} seconds. Read anything aloud, as you would speak.`);
      if (seconds >= LONGEST_SECONDS) this.#record();
    };
    tick();
    this.#clock = setInterval(tick, 500);
  }

  async #submit(event) {
    event.preventDefault();
    const name = byId("clone-name").value.trim();
    byId("clone-save").disabled = true;
    this.#say("Listening to the clip…");
    try {
      await this.actions.save(name, wavFromFloats(this.#clip.samples, this.#clip.sampleRateHz));
      this.dialog.close();
    } catch (error) {
      this.#say(error.message, true);
      this.#refresh();
    }
  }

  #leave() {
    clearInterval(this.#clock);
    this.#recorder?.stop();
    this.#recorder = null;
    byId("clone-record").lastElementChild.textContent = "Record";
  }

  #refresh() {
    const name = byId("clone-name");
    const taken = this.actions.taken().includes(name.value.trim());
    name.setCustomValidity(taken ? "A voice of that name exists." : "");
    byId("clone-clip").hidden = !this.#clip;
    byId("clone-save").disabled = !this.#clip || !name.value.trim();
    if (!this.#clip) return;
    const peaks = new Peaks(this.#clip.sampleRateHz);
    peaks.add(this.#clip.samples);
    drawOutline(byId("clone-wave"), peaks);
  }

  #say(message, wrong = false) {
    byId("clone-status").textContent = message;
    byId("clone-status").classList.toggle("wrong", wrong);
  }
}
