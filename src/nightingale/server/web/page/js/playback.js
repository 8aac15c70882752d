// Playback of one thing at a time: a new utterance, the preview of a voice, a replay, or a clip.

import { PcmReader } from "./audio/pcm.js";
import { Peaks } from "./audio/peaks.js";
import { Player } from "./audio/player.js";
import { Utterance } from "./audio/utterance.js";

const EXPECTED_RATE_HZ = 24000; // the player is prepared with it before the server answers
const MIN_SAVED_SECONDS = 0.3;

export class Playback {
  #utterance = null;
  #session = 0; // number of what is played; asynchronous steps of an older one stop when it differs

  /**
   * waveform, stats, spoken: the views to update. onState: called with "idle", "waiting" (no audio yet), "speaking" (audio is
   * still being received) or "playing" (all of it was received).
   */
  constructor({ api, waveform, stats, spoken, onState }) {
    Object.assign(this, { api, waveform, stats, spoken, onState });
    this.player = new Player((report) => this.#onReport(report));
    this.sampleRateHz = EXPECTED_RATE_HZ;
  }

  get utterance() {
    return this.#utterance;
  }

  /** Speak a request until its end or until stopped. Returns an entry for the history, or null if it is too short. */
  async speak(request, options) {
    const session = this.#begin("waiting");
    const utterance = new Utterance(request, options);
    this.#utterance = utterance;
    this.stats.clear();
    const opening = this.player.open(EXPECTED_RATE_HZ); // at once: browsers require it right after the click
    opening.catch(() => {}); // handled below, where it is awaited; otherwise the browser would report it, too
    let peaks = null;
    try {
      for await (const samples of utterance.chunks(this.api)) {
        if (!peaks) {
          await opening;
          await this.#openPlayer(utterance.sampleRateHz);
          if (session !== this.#session) break;
          peaks = new Peaks(utterance.sampleRateHz);
          this.waveform.show(peaks);
          this.spoken.show(request.input);
          this.onState("speaking");
        }
        peaks.add(samples);
        this.player.push(samples);
        this.stats.showUtterance(utterance);
        this.spoken.update(utterance.words);
        this.waveform.draw();
      }
    } catch (error) {
      if (session === this.#session) this.stop();
      throw error;
    }
    if (session === this.#session) {
      this.spoken.update(utterance.words); // the last ones follow the audio
      this.#utterance = null;
      if (peaks) {
        this.player.end();
        this.onState("playing");
      } else this.stop();
    }
    return utterance.seconds >= MIN_SAVED_SECONDS ? historyEntry(utterance, peaks) : null;
  }

  /** Play an entry of the history. */
  async replay(entry) {
    const samples = new PcmReader().floats(new Uint8Array(await entry.pcm.arrayBuffer()));
    const session = this.#begin("playing");
    await this.#openPlayer(entry.sampleRateHz);
    if (session !== this.#session) return;
    this.waveform.show(new Peaks(entry.sampleRateHz, entry.peaks));
    this.spoken.show(entry.text, entry.words);
    this.#play(samples);
  }

  /** Play samples that are not an utterance, such as a reference clip. */
  async playClip(samples, sampleRateHz) {
    const session = this.#begin("playing");
    await this.#openPlayer(sampleRateHz);
    if (session === this.#session) this.#play(samples.slice());
  }

  stop() {
    this.#begin("idle");
  }

  #play(samples) {
    this.player.push(samples);
    this.player.end();
  }

  /** Stop what is playing, and return the number of the new session. */
  #begin(state) {
    this.#utterance?.stop();
    this.#utterance = null;
    this.player.start();
    this.spoken.show("");
    this.#session += 1;
    this.onState(state);
    return this.#session;
  }

  async #openPlayer(sampleRateHz) {
    this.sampleRateHz = sampleRateHz;
    await this.player.open(sampleRateHz);
    this.player.start();
  }

  #onReport({ playedSamples, bufferedSamples, waiting, done }) {
    this.waveform.playedSeconds = playedSamples / this.sampleRateHz;
    this.spoken.highlight(playedSamples / this.sampleRateHz);
    this.stats.showBuffer(bufferedSamples / this.sampleRateHz, waiting);
    if (done) this.onState("idle");
  }
}

function historyEntry(utterance, peaks) {
  const at = Date.now();
  const { recording, ...request } = utterance.request; // the recording itself is not kept
  return {
    id: `${at}-${crypto.getRandomValues(new Uint32Array(1))[0]}`, // sorts by time
    at,
    text: utterance.request.input,
    voice: utterance.request.voice ?? "",
    request: recording ? { ...request, converted: true } : request,
    sampleRateHz: utterance.sampleRateHz,
    seconds: utterance.seconds,
    firstAudioMs: utterance.firstAudioMs,
    realTimeFactor: utterance.realTimeFactor,
    stopped: utterance.stopped,
    peaks: peaks.values,
    words: utterance.words,
    srt: utterance.srt,
    pcm: utterance.pcm,
  };
}
