// Conversion of samples: 16-bit PCM of the network, floats of Web Audio, WAV files.

const FULL_SCALE = 32767;
const WAV_HEADER_BYTES = 44;

/** Converts a stream of bytes to floats. A chunk may end within a sample; the odd byte is kept for the next. */
export class PcmReader {
  #odd = new Uint8Array(0);

  floats(bytes) {
    const joined = new Uint8Array(this.#odd.length + bytes.length);
    joined.set(this.#odd);
    joined.set(bytes, this.#odd.length);
    const whole = joined.length - (joined.length % 2);
    this.#odd = joined.slice(whole);
    const view = new DataView(joined.buffer, 0, whole);
    const floats = new Float32Array(whole / 2);
    for (let i = 0; i < floats.length; i += 1) floats[i] = view.getInt16(2 * i, true) / FULL_SCALE;
    return floats;
  }
}

export function pcm16(floats) {
  const view = new DataView(new ArrayBuffer(2 * floats.length));
  floats.forEach((sample, i) => {
    const limited = Math.max(-1, Math.min(1, sample));
    view.setInt16(2 * i, Math.round(limited * FULL_SCALE), true);
  });
  return view.buffer;
}

/** A mono 16-bit WAV file around `pcm`, a Blob or ArrayBuffer of `byteLength` bytes. */
export function wavFile(pcm, byteLength, sampleRateHz) {
  const header = new DataView(new ArrayBuffer(WAV_HEADER_BYTES));
  const text = (at, word) => [...word].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, WAV_HEADER_BYTES - 8 + byteLength, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true); // size of the format block
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true); // one channel
  header.setUint32(24, sampleRateHz, true);
  header.setUint32(28, 2 * sampleRateHz, true); // bytes a second
  header.setUint16(32, 2, true); // bytes a sample
  header.setUint16(34, 16, true); // bits a sample
  text(36, "data");
  header.setUint32(40, byteLength, true);
  return new Blob([header, pcm], { type: "audio/wav" });
}

export function wavFromFloats(floats, sampleRateHz) {
  const pcm = pcm16(floats);
  return wavFile(pcm, pcm.byteLength, sampleRateHz);
}
