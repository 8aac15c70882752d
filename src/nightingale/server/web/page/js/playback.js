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
  #state = "idle";
  #peaks = null; // of the audio that can be played
  #positionSeconds = 0;
  #paused = false;
  #scrubbing = false; // the user is choosing a position

  /**
   * waveform, stats, spoken: the views to update. onState: called with "idle", "waiting" (no audio yet), "speaking" (audio is
   * still being received) or "playing" (all of it was received). onPosition: called when the position, the duration or
   * whether it is paused has changed. onQueued: called with {position, estimated_wait_s} while a request waits.
   */
  constructor({ api, waveform, stats, spoken, onState, onPosition, onQueued }) {
    Object.assign(this, { api, waveform, stats, spoken, onState, onPosition, onQueued });
    this.player = new Player((report) => this.#onReport(report));
    this.sampleRateHz = EXPECTED_RATE_HZ;
  }

  get utterance() {
    return this.#utterance;
  }

  get isPlaying() {
    return !this.#paused && (this.#state === "speaking" || this.#state === "playing");
  }

  get isPaused() {
    return this.#paused;
  }

  get positionSeconds() {
    return this.#positionSeconds;
  }

  /** The audio received so far; 0 while there is none. */
  get durationSeconds() {
    return this.#peaks?.seconds ?? 0;
  }

  /** Speak a request until its end or until stopped. Returns an entry for the history, or null if it is too short. */
  async speak(request, options) {
    const session = this.#begin("waiting");
    const onQueued = (queued) => session === this.#session && this.onQueued(queued);
    const utterance = new Utterance(request, { ...options, onQueued });
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
          this.#show(peaks, request.input);
          this.#setState("speaking");
        }
        peaks.add(samples);
        this.player.push(samples);
        this.stats.showUtterance(utterance);
        this.spoken.update(utterance.words);
        this.waveform.draw();
        this.onPosition();
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
        this.#setState("playing");
      } else this.stop();
    }
    return utterance.seconds >= MIN_SAVED_SECONDS ? historyEntry(utterance, peaks) : null;
  }

  /** Play an entry of the history. */
  async replay(entry) {
    const samples = new PcmReader().floats(new Uint8Array(await entry.pcm.arrayBuffer()));
    const peaks = new Peaks(entry.sampleRateHz, entry.peaks);
    await this.#play(samples, peaks, entry.text, entry.words);
  }

  /** Play samples that are not an utterance, such as a reference clip. */
  async playClip(samples, sampleRateHz) {
    const peaks = new Peaks(sampleRateHz);
    peaks.add(samples);
    await this.#play(samples.slice(), peaks, "");
  }

  /** End the request and the playback. What was received stays and can be played again. */
  stop() {
    this.#abandon();
    this.player.stop();
    this.#setPaused(false);
    this.#setState("idle");
  }

  /** Go on at this time. It stays paused if it was. */
  seek(seconds) {
    this.#scrubbing = false;
    if (!this.#peaks) return;
    const limited = Math.max(0, Math.min(seconds, this.durationSeconds));
    this.player.seek(Math.round(limited * this.sampleRateHz));
    this.#showPosition(limited);
    if (this.#state === "idle") {
      this.player.pause(false);
      this.#setState("playing");
    }
  }

  /** Show a time that the user may choose, while the audio goes on; null: none was chosen. */
  scrub(seconds) {
    this.#scrubbing = seconds !== null;
    if (this.#scrubbing) this.#showPosition(Math.max(0, Math.min(seconds, this.durationSeconds)));
  }

  /** Pause, resume or, after the end, play again. */
  togglePause() {
    if (this.#state === "idle") {
      this.seek(this.#positionSeconds < this.durationSeconds ? this.#positionSeconds : 0);
    } else if (this.#peaks) {
      this.player.pause(!this.#paused);
      this.#setPaused(!this.#paused);
    }
  }

  async #play(samples, peaks, text, words) {
    const session = this.#begin("playing");
    await this.#openPlayer(peaks.sampleRateHz);
    if (session !== this.#session) return;
    this.#show(peaks, text, words);
    this.player.push(samples);
    this.player.end();
    this.onPosition();
  }

  /** Stop what is playing and drop it, and return the number of the new session. */
  #begin(state) {
    this.#abandon();
    this.player.start();
    this.#show(null, "");
    this.#setPaused(false);
    this.#setState(state);
    return this.#session;
  }

  /** Abort the request, if one is running. */
  #abandon() {
    this.#utterance?.stop();
    this.#utterance = null;
    this.#session += 1;
  }

  #show(peaks, text, words) {
    this.#peaks = peaks;
    this.#positionSeconds = 0;
    this.waveform.show(peaks);
    this.spoken.show(text, words);
  }

  #showPosition(seconds) {
    this.#positionSeconds = seconds;
    this.waveform.playedSeconds = seconds;
    this.spoken.highlight(seconds);
    this.onPosition();
  }

  #setState(state) {
    this.#state = state;
    this.onState(state);
    this.onPosition();
  }

  #setPaused(paused) {
    this.#paused = paused;
    this.onPosition();
  }

  async #openPlayer(sampleRateHz) {
    this.sampleRateHz = sampleRateHz;
    await this.player.open(sampleRateHz);
    this.player.start();
  }

  #onReport({ playedSamples, bufferedSamples, waiting, done }) {
    if (this.#state === "idle") return; // sent before it was stopped
    if (!this.#scrubbing) this.#showPosition(playedSamples / this.sampleRateHz);
    this.stats.showBuffer(bufferedSamples / this.sampleRateHz, waiting);
    if (done) this.#setState("idle");
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
