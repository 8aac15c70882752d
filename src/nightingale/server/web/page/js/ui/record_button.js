// A button that records from the microphone: the first click starts, the second one ends the recording.

import { Recorder } from "../audio/clip.js";
import { byId } from "./dom.js";

const DENIED = "The browser denied access to the microphone. Allow it for this page, or choose a file.";

export class RecordButton {
  #recorder = null;
  #timer = null;

  /**
   * prefix: of the ids of the button (`-record`) and of the text that is shown without a microphone.
   * onClip(blob) gets the recording, showStatus(message, isError) what happens meanwhile; hint tells what to say.
   */
  constructor(prefix, { maxSeconds, hint, onClip, showStatus }) {
    Object.assign(this, { maxSeconds, hint, onClip, showStatus });
    this.button = byId(`${prefix}-record`);
    this.button.hidden = !Recorder.isAvailable;
    byId(`${prefix}-no-microphone`).hidden = Recorder.isAvailable;
    this.button.addEventListener("click", () => (this.#recorder ? this.#finish() : this.#start()));
  }

  /** Stop without a recording. */
  cancel() {
    this.#end()?.stop();
  }

  async #start() {
    const recorder = new Recorder();
    try {
      await recorder.start();
    } catch {
      this.showStatus(DENIED, true);
      return;
    }
    this.#recorder = recorder;
    this.button.lastElementChild.textContent = "Finish";
    const startedMs = performance.now();
    const tick = () => {
      const seconds = (performance.now() - startedMs) / 1000;
      this.showStatus(`Recording, ${seconds.toFixed(0)} seconds. ${this.hint}`);
      if (seconds >= this.maxSeconds) this.#finish();
    };
    tick();
    this.#timer = setInterval(tick, 500);
  }

  async #finish() {
    const recorder = this.#end();
    if (recorder) await this.onClip(await recorder.stop());
  }

  #end() {
    const recorder = this.#recorder;
    this.#recorder = null;
    clearInterval(this.#timer);
    this.button.lastElementChild.textContent = "Record";
    return recorder;
  }
}
