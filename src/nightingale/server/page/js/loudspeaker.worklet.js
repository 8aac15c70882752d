// The thread that is asked for sound every few milliseconds, whatever the page is busy with.

import { Feed } from "./fifo.js";

class Loudspeaker extends AudioWorkletProcessor {
  constructor() {
    super();
    // `sampleRate` is a global of this thread.
    this.feed = new Feed(sampleRate, (report) => this.port.postMessage(report));
    this.port.onmessage = (event) => this.feed.handle(event.data);
  }

  process(_inputs, outputs) {
    this.feed.fill(outputs[0][0]);
    return true;
  }
}

registerProcessor("loudspeaker", Loudspeaker);
