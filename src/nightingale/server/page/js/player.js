// Plays samples while more are arriving.

import { Feed } from "./fifo.js";

const SCRIPT_BLOCK = 2048; // samples; the fallback shares its thread with the page and needs the slack

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

  /** Be ready to sound. Browsers allow the first call only in answer to a click or a key. */
  async open(sampleRateHz) {
    if (this.sampleRateHz !== sampleRateHz) {
      await this.#context?.close();
      this.#context = new AudioContext({ sampleRate: sampleRateHz, latencyHint: "interactive" });
      this.#send = await this.#connect(this.#context);
    }
    await this.#context.resume();
  }

  /** A new utterance: what was still to be heard of the last one is dropped. */
  start() {
    this.#epoch += 1;
    this.#send?.({ type: "start", epoch: this.#epoch });
  }

  push(samples) {
    this.#send({ type: "push", samples });
  }

  /** No more samples will come; `done` is reported when the last one was heard. */
  end() {
    this.#send({ type: "end" });
  }

  #heard(report) {
    if (report.epoch === this.#epoch) this.onReport(report);
  }

  /** Worklets exist only on https and on localhost, and a proxy may spoil them; sound is worth a fallback. */
  async #connect(context) {
    const heard = (report) => this.#heard(report);
    try {
      return await connectWorklet(context, heard);
    } catch {
      return connectScript(context, heard);
    }
  }
}

async function connectWorklet(context, heard) {
  await context.audioWorklet.addModule(new URL("./loudspeaker.worklet.js", import.meta.url));
  const node = new AudioWorkletNode(context, "loudspeaker", { numberOfInputs: 0, outputChannelCount: [1] });
  node.port.onmessage = (event) => heard(event.data);
  node.connect(context.destination);
  return (message) => node.port.postMessage(message, message.samples ? [message.samples.buffer] : []);
}

function connectScript(context, heard) {
  const feed = new Feed(context.sampleRate, heard);
  const node = context.createScriptProcessor(SCRIPT_BLOCK, 0, 1);
  node.onaudioprocess = (event) => feed.fill(event.outputBuffer.getChannelData(0));
  node.connect(context.destination);
  return (message) => feed.handle(message);
}
