// Converts a file or a recording to a short mono clip.

const CLIP_RATE_HZ = 24000; // the sample rate of reference clips
export const MAX_SECONDS = 30; // longer clips do not improve a voice

/** Decode the first seconds of a Blob, in any format the browser reads, to mono floats at 24 kHz. */
export async function readClip(blob, maxSeconds = MAX_SECONDS) {
  const context = new OfflineAudioContext(1, 1, CLIP_RATE_HZ);
  let decoded;
  try {
    decoded = await context.decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("This browser cannot decode that file as audio. Try a WAV, FLAC or MP3.");
  }
  const length = Math.min(decoded.length, maxSeconds * decoded.sampleRate);
  const mono = new Float32Array(length);
  for (let channel = 0; channel < decoded.numberOfChannels; channel += 1) {
    const samples = decoded.getChannelData(channel);
    for (let i = 0; i < length; i += 1) mono[i] += samples[i] / decoded.numberOfChannels;
  }
  return { samples: mono, sampleRateHz: decoded.sampleRate };
}

export class Recorder {
  #stream = null;
  #recorder = null;
  #parts = [];

  /** Browsers give access to a microphone only on https and localhost. */
  static get isAvailable() {
    return Boolean(navigator.mediaDevices?.getUserMedia && globalThis.MediaRecorder);
  }

  async start() {
    // Without the processing for phone calls, which would become part of the voice.
    const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    this.#recorder = new MediaRecorder(this.#stream);
    this.#recorder.ondataavailable = (event) => this.#parts.push(event.data);
    this.#recorder.start();
  }

  /** End the recording and release the microphone. */
  async stop() {
    const ended = new Promise((resolve) => (this.#recorder.onstop = resolve));
    this.#recorder.stop();
    await ended;
    this.#stream.getTracks().forEach((track) => track.stop());
    return new Blob(this.#parts, { type: this.#recorder.mimeType });
  }
}
