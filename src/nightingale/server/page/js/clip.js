// From any sound the browser can read, or a microphone, to a short mono clip.

const CLIP_RATE_HZ = 24000; // what voices are made from
export const LONGEST_SECONDS = 30; // more does not make a voice better

/** Mono floats at 24 kHz, at most thirty seconds. blob: a file or a recording, of any kind the browser reads. */
export async function readClip(blob) {
  const context = new OfflineAudioContext(1, 1, CLIP_RATE_HZ);
  let sound;
  try {
    sound = await context.decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("This browser cannot read that file as sound. Try a WAV, FLAC or MP3.");
  }
  const length = Math.min(sound.length, LONGEST_SECONDS * sound.sampleRate);
  const mono = new Float32Array(length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    const samples = sound.getChannelData(channel);
    for (let i = 0; i < length; i += 1) mono[i] += samples[i] / sound.numberOfChannels;
  }
  return { samples: mono, sampleRateHz: sound.sampleRate };
}

export class Recorder {
  #stream = null;
  #recorder = null;
  #parts = [];

  /** Browsers lend a microphone only to https and to localhost. */
  static get possible() {
    return Boolean(navigator.mediaDevices?.getUserMedia && globalThis.MediaRecorder);
  }

  async start() {
    // A voice is what is wanted, room and all: processing for phone calls would be cloned along with it.
    const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    this.#recorder = new MediaRecorder(this.#stream);
    this.#recorder.ondataavailable = (event) => this.#parts.push(event.data);
    this.#recorder.start();
  }

  /** Ends the recording and gives the microphone back. */
  async stop() {
    const ended = new Promise((resolve) => (this.#recorder.onstop = resolve));
    this.#recorder.stop();
    await ended;
    this.#stream.getTracks().forEach((track) => track.stop());
    return new Blob(this.#parts, { type: this.#recorder.mimeType });
  }
}
