// The queue of samples between the network and the audio output.
//
// It runs in the thread of the AudioWorklet or, where the browser offers none (plain http from another machine), on
// the main thread. So it uses no browser API.

const RESUME_SECONDS = 0.35; // refill this much after an underrun: one pause instead of many
const REPORT_SECONDS = 0.03;

export class SampleQueue {
  #chunks = [];
  #offset = 0; // samples of the first chunk that were played
  #buffered = 0;
  #played = 0;
  #starved = true; // waits for more samples
  #resumeAt = 1; // start with the first sample
  #ended = false;
  #underruns = 0;
  #epoch = 0; // number of the utterance; the receiver ignores reports about older ones
  #sinceReport = 0;
  #idle = true; // nothing to play or to report

  constructor(sampleRateHz, report) {
    this.sampleRateHz = sampleRateHz;
    this.report = report;
  }

  handle(message) {
    if (message.type === "start") this.#start(message.epoch);
    else if (message.type === "push") this.#push(message.samples);
    else if (message.type === "end") this.#ended = true;
  }

  #start(epoch) {
    this.#chunks = [];
    this.#offset = this.#buffered = this.#played = this.#underruns = 0;
    this.#starved = true;
    this.#resumeAt = 1;
    this.#ended = false;
    this.#idle = true;
    this.#epoch = epoch;
  }

  #push(samples) {
    this.#chunks.push(samples);
    this.#buffered += samples.length;
    this.#idle = false;
  }

  /** Fill `output` with the next samples, or with silence where there are none. */
  fill(output) {
    if (this.#starved && (this.#ended || this.#buffered >= this.#resumeAt)) this.#starved = false;
    const played = this.#starved ? 0 : this.#take(output);
    output.fill(0, played);
    this.#played += played;
    if (played < output.length && !this.#starved && !this.#ended) {
      this.#starved = true;
      this.#resumeAt = Math.round(RESUME_SECONDS * this.sampleRateHz);
      this.#underruns += 1;
    }
    this.#report(output.length);
  }

  #take(output) {
    let filled = 0;
    while (filled < output.length && this.#chunks.length) {
      const chunk = this.#chunks[0];
      const count = Math.min(output.length - filled, chunk.length - this.#offset);
      output.set(chunk.subarray(this.#offset, this.#offset + count), filled);
      filled += count;
      this.#offset += count;
      if (this.#offset === chunk.length) {
        this.#chunks.shift();
        this.#offset = 0;
      }
    }
    this.#buffered -= filled;
    return filled;
  }

  #report(samples) {
    const done = this.#ended && this.#buffered === 0;
    this.#sinceReport += samples;
    const due = this.#sinceReport >= REPORT_SECONDS * this.sampleRateHz;
    if (this.#idle || !(due || done)) return;
    this.#sinceReport = 0;
    this.#idle = done;
    this.report({
      epoch: this.#epoch,
      playedSamples: this.#played,
      bufferedSamples: this.#buffered,
      underruns: this.#underruns,
      waiting: this.#starved && !this.#ended,
      done,
    });
  }
}
