// Draws audio as bars: what was played in the accent colour, the rest in grey.

import { Peaks } from "../audio/peaks.js";

const BAR_PX = 3;
const GAP_PX = 2;
const WINDOW_SECONDS = 6; // shorter audio does not fill the width
const MIN_HEIGHT_PX = 2;
const PLAYHEAD_PX = 2;

export class Waveform {
  #peaks = null;
  #playedSeconds = 0;
  #drawing = false;

  constructor(canvas) {
    this.canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    // The colours depend on the theme.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(peaks) {
    this.#peaks = peaks;
    this.#playedSeconds = 0;
    this.draw();
  }

  set playedSeconds(seconds) {
    this.#playedSeconds = seconds;
    this.draw();
  }

  /** The time at a horizontal position of the window; it may lie outside of the audio. */
  secondsAt(clientX) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return ((clientX - left) / width) * this.#seconds;
  }

  get #seconds() {
    return Math.max(WINDOW_SECONDS, this.#peaks?.seconds ?? 0);
  }

  /** Draw at the next frame, at most once per frame. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      drawBars(this.canvas, this.#peaks ?? new Peaks(1), this.#seconds, this.#playedSeconds);
      if (this.#peaks) drawPlayhead(this.canvas, this.#playedSeconds / this.#seconds);
    });
  }
}

/** Draw all of the audio, scaled so that its loudest part fills the height. */
export function drawPeaks(canvas, peaks) {
  const loudest = peaks.values.reduce((max, peak) => Math.max(max, peak), 0.01);
  drawBars(canvas, peaks, peaks.seconds, 0, loudest);
}

/** Draw a line at a part of the width, 0 to 1. */
function drawPlayhead(canvas, part) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(canvas).getPropertyValue("--wave-played");
  pen.fillRect(Math.min(part * width, width - PLAYHEAD_PX), 0, PLAYHEAD_PX, height);
}

/** Draw bars over `seconds`; the first `playedSeconds` were played. A peak of `loudest` fills the height. */
function drawBars(canvas, peaks, seconds, playedSeconds, loudest = 1) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const [played, buffered, empty] = ["--wave-played", "--wave-buffered", "--wave-empty"].map((name) =>
    style.getPropertyValue(name),
  );
  const count = Math.max(1, Math.floor((width + GAP_PX) / (BAR_PX + GAP_PX)));
  peaks.bars(count, seconds).forEach((peak, i) => {
    // Less than proportional, so that quiet audio is visible.
    const tall = peak === null ? MIN_HEIGHT_PX : Math.max(MIN_HEIGHT_PX, (peak / loudest) ** 0.7 * height);
    pen.fillStyle = peak === null ? empty : (i * seconds) / count < playedSeconds ? played : buffered;
    pen.beginPath();
    pen.roundRect(i * (BAR_PX + GAP_PX), (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
    pen.fill();
  });
}
