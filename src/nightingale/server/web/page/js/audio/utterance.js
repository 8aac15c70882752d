// One utterance: request, receive, and measure it in the browser.

import { ApiError } from "../api.js";
import { PcmReader } from "./pcm.js";

const TOKENS_PER_SECOND_OF_AUDIO = 25; // rate of the speech tokens
const DEFAULT_RATE_HZ = 24000;
const STREAMING_MS = 500; // minimum time between first and last sample for measuring a rate

export class Utterance {
  words = []; // {word, start, end, text_start, text_end}, those that have ended so far
  srt = null; // the captions, at the end
  sampleRateHz = DEFAULT_RATE_HZ;
  samples = 0;
  firstAudioMs = null;
  #firstSamples = 0;
  #lastMs = 0;
  #parts = [];
  #abort = new AbortController();

  /**
   * timed: ask for the times of words, which not every model has. onQueued: called with {position, estimated_wait_s}
   * while the request waits.
   */
  constructor(request, { timed = false, onQueued = () => {} } = {}) {
    Object.assign(this, { request, timed, onQueued });
    this.startedMs = performance.now();
  }

  /** Abort the request; the server then stops its work on it. */
  stop() {
    this.#abort.abort();
  }

  get stopped() {
    return this.#abort.signal.aborted;
  }

  /** Yield chunks of floats as they arrive. Ends when stopped; throws errors of the server. */
  async *chunks(api) {
    try {
      const response = this.request.recording
        ? await api.conversion(this.request, this.#abort.signal)
        : await api.speech(this.request, this.#abort.signal, this.timed);
      this.sampleRateHz = Number(response.headers.get("X-Sample-Rate")) || DEFAULT_RATE_HZ;
      const reader = new PcmReader();
      const parts = readChunks(response.body);
      for await (const bytes of this.request.recording ? parts : this.#readEvents(parts)) {
        const floats = reader.floats(bytes);
        this.#record(bytes, floats.length);
        if (floats.length) yield floats;
      }
    } catch (error) {
      if (!this.stopped) throw error;
    }
  }

  /** Yield the audio of server-sent events, keep their words, and report the place in the queue. */
  async *#readEvents(parts) {
    for await (const event of readEvents(parts)) {
      if (event.type === "speech.audio.delta") yield Uint8Array.from(atob(event.audio), (byte) => byte.charCodeAt(0));
      else if (event.type === "speech.queued") this.onQueued(event);
      else if (event.type === "speech.audio.words") this.words.push(...event.words);
      else if (event.type === "speech.audio.done") this.srt = event.srt;
      else if (event.type === "error") throw new ApiError(0, event.error.message);
    }
  }

  #record(bytes, samples) {
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

  /** Seconds from the click to the last sample received, per second of audio. */
  get realTimeFactor() {
    return this.samples ? this.#lastMs / 1000 / this.seconds : null;
  }

  /** Speech tokens per second, computed from the audio: after the first chunk or, if it came at once, from the click. */
  get tokensPerSecond() {
    if (!this.samples) return null;
    const streamed = this.#lastMs - this.firstAudioMs >= STREAMING_MS;
    const samples = streamed ? this.samples - this.#firstSamples : this.samples;
    const ms = streamed ? this.#lastMs - this.firstAudioMs : this.#lastMs;
    const speed = this.request.speed ?? 1; // the audio is stretched after its tokens were sampled
    return ((samples / this.sampleRateHz) * speed * TOKENS_PER_SECOND_OF_AUDIO * 1000) / ms;
  }

  /** All audio received so far, as 16-bit PCM. */
  get pcm() {
    return new Blob(this.#parts, { type: "application/octet-stream" });
  }
}

/** Yield the chunks of a stream. Not every browser can iterate over one. */
async function* readChunks(body) {
  const reader = body.getReader();
  for (;;) {
    const part = await reader.read().catch(() => {
      throw new ApiError(0, "The stream broke off.");
    });
    if (part.done) return;
    yield part.value;
  }
}

/** Yield the objects of server-sent events; one may be spread over several chunks. */
async function* readEvents(parts) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of parts) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}
