// The queue between the network and the loudspeaker.
//
// It lives wherever sound is pulled: in the AudioWorklet's thread or, where a page is not allowed one (plain http
// from another machine), on the main thread. So it knows no browser, only samples.

const RESUME_SECONDS = 0.35; // after running dry, gather this much: one pause instead of many stutters
const REPORT_SECONDS = 0.03;

export class Feed {
  #chunks = [];
  #offset = 0; // samples of the first chunk already heard
  #buffered = 0;
  #played = 0;
  #dry = true;
  #resumeAt = 1; // the very first sound starts at once
  #ended = false;
  #underruns = 0;
  #epoch = 0; // which utterance: reports of an older one are ignored by whoever listens
  #sinceReport = 0;
  #silent = true; // nothing to play, so nothing to report

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
    this.#dry = true;
    this.#resumeAt = 1;
    this.#ended = false;
    this.#silent = true;
    this.#epoch = epoch;
  }

  #push(samples) {
    this.#chunks.push(samples);
    this.#buffered += samples.length;
    this.#silent = false;
  }

  /** Fill `output` with the next samples, or with silence where there are none. */
  fill(output) {
    if (this.#dry && (this.#ended || this.#buffered >= this.#resumeAt)) this.#dry = false;
    const heard = this.#dry ? 0 : this.#take(output);
    output.fill(0, heard);
    this.#played += heard;
    if (heard < output.length && !this.#dry && !this.#ended) {
      this.#dry = true;
      this.#resumeAt = Math.round(RESUME_SECONDS * this.sampleRateHz);
      this.#underruns += 1;
    }
    this.#tell(output.length);
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

  #tell(samples) {
    const done = this.#ended && this.#buffered === 0;
    this.#sinceReport += samples;
    const due = this.#sinceReport >= REPORT_SECONDS * this.sampleRateHz;
    if (this.#silent || !(due || done)) return;
    this.#sinceReport = 0;
    this.#silent = done;
    this.report({
      epoch: this.#epoch,
      playedSamples: this.#played,
      bufferedSamples: this.#buffered,
      underruns: this.#underruns,
      waiting: this.#dry && !this.#ended,
      done,
    });
  }
}
