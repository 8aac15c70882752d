// Peaks for drawing a waveform: the loudest sample of every hundredth of a second.

const PEAKS_PER_SECOND = 100;

export class Peaks {
  #open = 0; // loudest sample of the incomplete slice
  #count = 0;

  constructor(sampleRateHz, values = []) {
    this.sampleRateHz = sampleRateHz;
    this.values = values;
    this.slice = Math.round(sampleRateHz / PEAKS_PER_SECOND);
  }

  add(samples) {
    for (const sample of samples) {
      this.#open = Math.max(this.#open, Math.abs(sample));
      this.#count += 1;
      if (this.#count === this.slice) {
        this.values.push(this.#open);
        this.#open = this.#count = 0;
      }
    }
  }

  get seconds() {
    return this.values.length / PEAKS_PER_SECOND;
  }

  /** Return `count` bars over `seconds`, each 0 to 1; bars past the end are null. */
  bars(count, seconds = this.seconds) {
    const per = (seconds * PEAKS_PER_SECOND) / count;
    return Array.from({ length: count }, (_, i) => {
      const from = Math.floor(i * per);
      if (from >= this.values.length) return null;
      const part = this.values.slice(from, Math.max(from + 1, Math.floor((i + 1) * per)));
      // The mean, because the maximum is almost the same for all long stretches of speech.
      return part.reduce((sum, peak) => sum + peak, 0) / part.length;
    });
  }
}
