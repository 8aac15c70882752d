// What is being heard, and only one thing at a time: a new utterance, a preview of a voice, or a replay.

import { PcmReader } from "./pcm.js";
import { Peaks } from "./peaks.js";
import { Player } from "./player.js";
import { Utterance } from "./speech.js";

const LIKELY_RATE_HZ = 24000; // the player is made ready at this rate while the server still thinks
const WORTH_KEEPING_SECONDS = 0.3;

export class Stage {
  #utterance = null;
  #turn = 0; // counts what was put on stage; a step of an older turn finds that it is over

  /**
   * waveform, strip: where it is shown. onState: "idle", "waiting" (no sound yet), "speaking" (sound still being
   * made) or "playing" (all of it is here).
   */
  constructor({ api, waveform, strip, onState }) {
    Object.assign(this, { api, waveform, strip, onState });
    this.player = new Player((report) => this.#heard(report));
    this.sampleRateHz = LIKELY_RATE_HZ;
  }

  get utterance() {
    return this.#utterance;
  }

  /** Speak a request to its end, or until stopped; what was received, or null if that is not worth keeping. */
  async speak(request) {
    const turn = this.#enter("waiting");
    const utterance = new Utterance(request);
    this.#utterance = utterance;
    this.strip.clear();
    const opening = this.player.open(LIKELY_RATE_HZ); // at once: the browser wants it close to the click
    opening.catch(() => {}); // told below, where it is awaited; without this it would be reported twice
    let peaks = null;
    try {
      for await (const samples of utterance.chunks(this.api)) {
        if (!peaks) {
          await opening;
          await this.#begin(utterance.sampleRateHz);
          if (turn !== this.#turn) break;
          peaks = new Peaks(utterance.sampleRateHz);
          this.waveform.show(peaks);
          this.onState("speaking");
        }
        peaks.add(samples);
        this.player.push(samples);
        this.strip.measured(utterance);
        this.waveform.draw();
      }
    } catch (error) {
      if (turn === this.#turn) this.stop();
      throw error;
    }
    if (turn === this.#turn) {
      this.#utterance = null;
      if (peaks) {
        this.player.end();
        this.onState("playing");
      } else this.stop();
    }
    return utterance.seconds >= WORTH_KEEPING_SECONDS ? kept(utterance, peaks) : null;
  }

  /** Hear a kept utterance again. */
  async replay(entry) {
    const samples = new PcmReader().floats(new Uint8Array(await entry.pcm.arrayBuffer()));
    const turn = this.#enter("playing");
    await this.#begin(entry.sampleRateHz);
    if (turn !== this.#turn) return;
    this.waveform.show(new Peaks(entry.sampleRateHz, entry.peaks));
    this.#play(samples);
  }

  /** Hear samples that are not an utterance: a clip before it becomes a voice. */
  async hear(samples, sampleRateHz) {
    const turn = this.#enter("playing");
    await this.#begin(sampleRateHz);
    if (turn === this.#turn) this.#play(samples.slice());
  }

  stop() {
    this.#enter("idle");
  }

  #play(samples) {
    this.player.push(samples);
    this.player.end();
  }

  /** Whatever was on stage leaves it, at once. */
  #enter(state) {
    this.#utterance?.stop();
    this.#utterance = null;
    this.player.start();
    this.#turn += 1;
    this.onState(state);
    return this.#turn;
  }

  async #begin(sampleRateHz) {
    this.sampleRateHz = sampleRateHz;
    await this.player.open(sampleRateHz);
    this.player.start();
  }

  #heard({ playedSamples, bufferedSamples, waiting, done }) {
    this.waveform.playedSeconds = playedSamples / this.sampleRateHz;
    this.strip.buffered(bufferedSamples / this.sampleRateHz, waiting);
    if (done) this.onState("idle");
  }
}

/** An entry of the history. */
function kept(utterance, peaks) {
  const at = Date.now();
  return {
    id: `${at}-${crypto.getRandomValues(new Uint32Array(1))[0]}`, // sorts by time
    at,
    text: utterance.request.input,
    voice: utterance.request.voice ?? "",
    request: utterance.request,
    sampleRateHz: utterance.sampleRateHz,
    seconds: utterance.seconds,
    firstAudioMs: utterance.firstAudioMs,
    realTimeFactor: utterance.realTimeFactor,
    stopped: utterance.stopped,
    peaks: peaks.values,
    pcm: utterance.pcm,
  };
}
