// Draws a sound as bars: what was heard in the accent colour, what is still to come in grey.

import { Peaks } from "./peaks.js";

const BAR_PX = 3;
const GAP_PX = 2;
const WINDOW_SECONDS = 6; // a short sound does not fill the width, so that it is seen growing
const QUIETEST_PX = 2;

export class Waveform {
  #peaks = null;
  #playedSeconds = 0;
  #drawing = false;

  constructor(canvas) {
    this.canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    // The colours are the theme's, so a change of theme is a change of picture.
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

  /** At most once a frame, however often it is asked for. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      const seconds = Math.max(WINDOW_SECONDS, this.#peaks?.seconds ?? 0);
      drawBars(this.canvas, this.#peaks ?? new Peaks(1), seconds, this.#playedSeconds);
    });
  }
}

/** A whole sound, small and still: its loudest part fills the height, since only the shape is of interest. */
export function drawOutline(canvas, peaks) {
  const loudest = peaks.values.reduce((most, peak) => Math.max(most, peak), 0.01);
  drawBars(canvas, peaks, peaks.seconds, 0, loudest);
}

/** Bars over `seconds`, of which the first `playedSeconds` were heard. A peak of `loudest` fills the height. */
function drawBars(canvas, peaks, seconds, playedSeconds, loudest = 1) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const [heard, coming, still] = ["--wave-heard", "--wave-coming", "--wave-still"].map((name) =>
    style.getPropertyValue(name),
  );
  const count = Math.max(1, Math.floor((width + GAP_PX) / (BAR_PX + GAP_PX)));
  peaks.bars(count, seconds).forEach((peak, i) => {
    // Less than proportional: quiet sounds are lifted to where eyes expect them.
    const tall = peak === null ? QUIETEST_PX : Math.max(QUIETEST_PX, (peak / loudest) ** 0.7 * height);
    pen.fillStyle = peak === null ? still : (i * seconds) / count < playedSeconds ? heard : coming;
    pen.beginPath();
    pen.roundRect(i * (BAR_PX + GAP_PX), (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
    pen.fill();
  });
}
