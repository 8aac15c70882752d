// One utterance: ask, receive, and measure from the listener's side.

import { ApiError } from "./api.js";
import { PcmReader } from "./pcm.js";

const TOKENS_PER_SECOND_OF_AUDIO = 25; // the clock of the speech tokens
const DEFAULT_RATE_HZ = 24000;
const FLOWING_MS = 500; // less than this between first and last sample says little about a rate

export class Utterance {
  sampleRateHz = DEFAULT_RATE_HZ;
  samples = 0;
  firstAudioMs = null;
  #firstSamples = 0;
  #lastMs = 0;
  #parts = [];
  #abort = new AbortController();

  constructor(request) {
    this.request = request;
    this.startedMs = performance.now();
  }

  /** Leaving ends the request, and with it the server's work on it. */
  stop() {
    this.#abort.abort();
  }

  get stopped() {
    return this.#abort.signal.aborted;
  }

  /** Float chunks as they arrive. Ends quietly when stopped; throws what the server says. */
  async *chunks(api) {
    try {
      const response = await api.speech(this.request, this.#abort.signal);
      this.sampleRateHz = Number(response.headers.get("X-Sample-Rate")) || DEFAULT_RATE_HZ;
      const reader = new PcmReader();
      for await (const bytes of received(response.body)) {
        const floats = reader.floats(bytes);
        this.#note(bytes, floats.length);
        if (floats.length) yield floats;
      }
    } catch (error) {
      if (!this.stopped) throw error;
    }
  }

  #note(bytes, samples) {
    this.#parts.push(bytes);
    this.#lastMs = performance.now() - this.startedMs;
    if (this.firstAudioMs === null && samples) {
      this.firstAudioMs = this.#lastMs;
      this.#firstSamples = samples;
    }
    this.samples += samples;
  }

  get seconds() {
    return this.samples / this.sampleRateHz;
  }

  /** Seconds of waiting per second of audio, from the click to the last sample received. */
  get realTimeFactor() {
    return this.samples ? this.#lastMs / 1000 / this.seconds : null;
  }

  /** Speech tokens a second, counted by their sound: once it flows or, if all came at once, from the click. */
  get tokensPerSecond() {
    if (!this.samples) return null;
    const flows = this.#lastMs - this.firstAudioMs >= FLOWING_MS;
    const samples = flows ? this.samples - this.#firstSamples : this.samples;
    const ms = flows ? this.#lastMs - this.firstAudioMs : this.#lastMs;
    const speed = this.request.speed ?? 1; // the sound is stretched after its tokens were drawn
    return ((samples / this.sampleRateHz) * speed * TOKENS_PER_SECOND_OF_AUDIO * 1000) / ms;
  }

  /** All that was received, as 16-bit PCM. */
  get pcm() {
    return new Blob(this.#parts, { type: "application/octet-stream" });
  }
}

/** Chunks of bytes. Not every browser can iterate a stream by itself. */
async function* received(body) {
  const reader = body.getReader();
  for (;;) {
    const part = await reader.read().catch(() => {
      throw new ApiError(0, "The stream broke off.");
    });
    if (part.done) return;
    yield part.value;
  }
}
