// Plays samples while more are arriving.

import { SampleQueue } from "./sample_queue.js";

const SCRIPT_BLOCK = 2048; // samples; the fallback shares the thread of the page and needs a larger buffer

export class Player {
  #context = null;
  #send = null;
  #epoch = 0;

  /** onReport: {playedSamples, bufferedSamples, underruns, waiting, done}, about thirty times a second. */
  constructor(onReport) {
    this.onReport = onReport;
  }

  get sampleRateHz() {
    return this.#context?.sampleRate ?? 0;
  }

  /** Prepare for playback. Browsers allow the first call only after a click or a key. */
  async open(sampleRateHz) {
    if (this.sampleRateHz !== sampleRateHz) {
      await this.#context?.close();
      this.#context = new AudioContext({ sampleRate: sampleRateHz, latencyHint: "interactive" });
      this.#send = await this.#connect(this.#context);
    }
    await this.#context.resume();
  }

  /** Start a new utterance and drop the rest of the last one. */
  start() {
    this.#epoch += 1;
    this.#send?.({ type: "start", epoch: this.#epoch });
  }

  /** Go on at this sample of the utterance. */
  seek(sample) {
    this.#epoch += 1;
    this.#send?.({ type: "seek", sample, epoch: this.#epoch });
  }

  pause(on) {
    this.#send?.({ type: "pause", on });
  }

  /** Fall silent, and keep what was received: `seek` and `pause(false)` play it again. */
  stop() {
    this.#send?.({ type: "stop" });
  }

  push(samples) {
    this.#send({ type: "push", samples });
  }

  /** No more samples follow; `done` is reported when the last one was played. */
  end() {
    this.#send({ type: "end" });
  }

  #onReport(report) {
    if (report.epoch === this.#epoch) this.onReport(report);
  }

  /** Fall back to a script processor: worklets need https or localhost, and a proxy may break them. */
  async #connect(context) {
    const onReport = (report) => this.#onReport(report);
    try {
      return await connectWorklet(context, onReport);
    } catch {
      return connectScript(context, onReport);
    }
  }
}

async function connectWorklet(context, onReport) {
  await context.audioWorklet.addModule(new URL("./player.worklet.js", import.meta.url));
  const node = new AudioWorkletNode(context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
  node.port.onmessage = (event) => onReport(event.data);
  node.connect(context.destination);
  return (message) => node.port.postMessage(message, message.samples ? [message.samples.buffer] : []);
}

function connectScript(context, onReport) {
  const queue = new SampleQueue(context.sampleRate, onReport);
  const node = context.createScriptProcessor(SCRIPT_BLOCK, 0, 1);
  node.onaudioprocess = (event) => queue.fill(event.outputBuffer.getChannelData(0));
  node.connect(context.destination);
  return (message) => queue.handle(message);
}
