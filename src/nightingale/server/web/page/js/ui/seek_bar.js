// The waveform as a slider: click, drag, or use the keys of a slider to go to another time. And the pause button.

import { byId, setIcon } from "./dom.js";

const STEP_SECONDS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

export class SeekBar {
  #dragged = null; // the pointer that drags

  /** waveform: what shows the audio. playback: what plays it. */
  constructor(waveform, playback) {
    Object.assign(this, { waveform, playback });
    this.bar = byId("seek");
    this.bar.addEventListener("pointerdown", (event) => this.#start(event));
    this.bar.addEventListener("pointermove", (event) => {
      if (event.pointerId === this.#dragged) this.playback.scrub(this.waveform.secondsAt(event.clientX));
    });
    this.bar.addEventListener("pointerup", (event) => {
      if (event.pointerId === this.#dragged) this.playback.seek(this.waveform.secondsAt(event.clientX));
      this.#dragged = null;
    });
    this.bar.addEventListener("pointercancel", () => {
      this.#dragged = null;
      this.playback.scrub(null);
    });
    this.bar.addEventListener("keydown", (event) => this.#onKey(event));
    byId("pause").addEventListener("click", () => this.playback.togglePause());
    this.show();
  }

  /** Show position, duration and whether it is playing. */
  show() {
    const { positionSeconds, durationSeconds, isPlaying, isPaused } = this.playback;
    const position = Math.min(positionSeconds, durationSeconds);
    const hasAudio = durationSeconds > 0;
    // Whole seconds, so that a screen reader is not interrupted thirty times a second.
    set(this.bar, "aria-valuemax", Math.floor(durationSeconds));
    set(this.bar, "aria-valuenow", Math.floor(position));
    set(this.bar, "aria-valuetext", hasAudio ? `${clock(position)} of ${clock(durationSeconds)}` : "no audio");
    set(this.bar, "aria-disabled", !hasAudio);
    set(this.bar, "tabindex", hasAudio ? 0 : -1);
    byId("time").textContent = hasAudio ? `${clock(position)} / ${clock(durationSeconds)}` : "";
    this.#showButton(hasAudio, isPlaying, isPaused);
  }

  #showButton(hasAudio, isPlaying, isPaused) {
    const button = byId("pause");
    const label = isPlaying ? "Pause" : isPaused ? "Resume" : "Play";
    button.disabled = !hasAudio;
    if (button.title !== label) setIcon(button, isPlaying ? "pause" : "play", label);
  }

  #start(event) {
    if (event.button !== 0 || this.playback.durationSeconds === 0) return;
    this.#dragged = event.pointerId;
    this.bar.setPointerCapture(event.pointerId);
    this.playback.scrub(this.waveform.secondsAt(event.clientX));
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { positionSeconds, durationSeconds } = this.playback;
    if (event.key in STEP_SECONDS) this.playback.seek(positionSeconds + STEP_SECONDS[event.key]);
    else if (event.key === "Home") this.playback.seek(0);
    else if (event.key === "End") this.playback.seek(durationSeconds);
    else if (event.key === " ") this.playback.togglePause();
    else return;
    event.preventDefault();
  }
}

function set(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
