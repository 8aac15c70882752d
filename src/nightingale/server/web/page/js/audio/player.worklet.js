// The audio thread, which fills a block of output every few milliseconds.

import { SampleQueue } from "./sample_queue.js";

class PlayerProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    // `sampleRate` is a global of this thread.
    this.queue = new SampleQueue(sampleRate, (report) => this.port.postMessage(report));
    this.port.onmessage = (event) => this.queue.handle(event.data);
  }

  process(_inputs, outputs) {
    this.queue.fill(outputs[0][0]);
    return true;
  }
}

registerProcessor("player", PlayerProcessor);
