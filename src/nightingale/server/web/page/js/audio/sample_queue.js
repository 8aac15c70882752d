// The samples of one utterance between the network and the audio output.
//
// All of them are kept, so that any part can be played again. This runs in the thread of the AudioWorklet or, where the
// browser offers none (plain http from another machine), on the main thread. So it uses no browser API.

const RESUME_SECONDS = 0.35; // refill this much after an underrun: one pause instead of many
const REPORT_SECONDS = 0.03;

export class SampleQueue {
  #chunks = []; // {start, samples}
  #total = 0; // samples received
  #position = 0; // the next sample to play
  #index = 0; // the chunk that holds it
  #starved = true; // waits for more samples
  #resumeAt = 1; // start with the first sample
  #ended = false;
  #paused = false;
  #underruns = 0;
  #epoch = 0; // number of the utterance or of the last seek; the receiver ignores reports about older ones
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
    else if (message.type === "seek") this.#seek(message.sample, message.epoch);
    else if (message.type === "pause") this.#paused = message.on;
    else if (message.type === "stop") this.#ended = this.#idle = this.#paused = true;
  }

  #start(epoch) {
    this.#chunks = [];
    this.#total = this.#position = this.#index = this.#underruns = 0;
    this.#starved = true;
    this.#resumeAt = 1;
    this.#ended = this.#paused = false;
    this.#idle = true;
    this.#epoch = epoch;
  }

  #push(samples) {
    this.#chunks.push({ start: this.#total, samples });
    this.#total += samples.length;
    this.#idle = false;
  }

  #seek(sample, epoch) {
    this.#epoch = epoch;
    this.#position = Math.max(0, Math.min(sample, this.#total));
    const after = this.#chunks.findIndex((chunk) => chunk.start > this.#position);
    this.#index = Math.max(0, (after < 0 ? this.#chunks.length : after) - 1);
    this.#starve();
    this.#idle = this.#total === 0;
  }

  #starve() {
    this.#starved = true;
    this.#resumeAt = Math.round(RESUME_SECONDS * this.sampleRateHz);
  }

  get #buffered() {
    return this.#total - this.#position;
  }

  /** Fill `output` with the next samples, or with silence where there are none. */
  fill(output) {
    if (this.#paused) {
      output.fill(0);
      return;
    }
    if (this.#starved && (this.#ended || this.#buffered >= this.#resumeAt)) this.#starved = false;
    const played = this.#starved ? 0 : this.#take(output);
    output.fill(0, played);
    if (played < output.length && !this.#starved && !this.#ended) {
      this.#starve();
      this.#underruns += 1;
    }
    this.#report(output.length);
  }

  #take(output) {
    let filled = 0;
    while (filled < output.length && this.#index < this.#chunks.length) {
      const { start, samples } = this.#chunks[this.#index];
      const offset = this.#position - start;
      const count = Math.min(output.length - filled, samples.length - offset);
      output.set(samples.subarray(offset, offset + count), filled);
      filled += count;
      this.#position += count;
      if (offset + count < samples.length) break;
      this.#index += 1;
    }
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
      playedSamples: this.#position,
      bufferedSamples: this.#buffered,
      underruns: this.#underruns,
      waiting: this.#starved && !this.#ended,
      done,
    });
  }
}
