// A client of the public HTTP API. URLs are relative to the page, so that it works behind a path prefix.

const KEY_ITEM = "nightingale.key";

export class ApiError extends Error {
  constructor(status, message, retryMs = 0) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.retryMs = retryMs;
  }
}

export class Api {
  #keyPrompt = null;

  /** askKey: () => Promise<string>; called when the server requires a key. An empty string gives up. */
  constructor(askKey) {
    this.askKey = askKey;
    this.base = new URL(".", document.baseURI);
  }

  get key() {
    return localStorage.getItem(KEY_ITEM) ?? "";
  }

  url(path) {
    return new URL(path, this.base).href;
  }

  async models() {
    return (await (await this.#call("v1/models")).json()).data;
  }

  async voices() {
    return (await (await this.#call("v1/audio/voices")).json()).voices;
  }

  /** clip: a WAV Blob. */
  async addVoice(name, clip) {
    const body = new FormData();
    body.set("name", name);
    body.set("audio", clip, `${name}.wav`);
    return (await this.#call("v1/audio/voices", { method: "POST", body })).json();
  }

  async removeVoice(id) {
    await this.#call(`v1/audio/voices/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  /** The text of a file by chapters: {title, author, chapters: [{title, text}]}. */
  async bookText(file) {
    const body = new FormData();
    body.set("file", file, file.name);
    return (await this.#call("v1/books/text", { method: "POST", body })).json();
  }

  /** The names of the formats of `encode`. */
  async formats() {
    return (await this.#call("v1/audio/encode")).json();
  }

  /** A file of that format from a Blob of 16-bit PCM at 24 kHz. */
  async encode(pcm, format) {
    const path = `v1/audio/encode?response_format=${encodeURIComponent(format)}`;
    return (await this.#call(path, { method: "POST", body: pcm })).blob();
  }

  /** The response of POST /v1/audio/speech, its body still streaming: events with PCM, and with words if timed. */
  speech(request, signal, timed) {
    const events = { stream_format: "sse", ...(timed && { timestamps: "word" }) };
    return this.#call("v1/audio/speech", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...request, response_format: "pcm", ...events }),
      signal,
    });
  }

  /** The response of a conversion of `request.recording`, a WAV Blob, its body still streaming. */
  conversion(request, signal) {
    const body = new FormData();
    body.set("audio", request.recording, "recording.wav");
    if (request.seed !== undefined) body.set("seed", request.seed);
    const path = `v1/speech-to-speech/${encodeURIComponent(request.voice)}/stream?output_format=pcm_24000`;
    return this.#call(path, { method: "POST", body, signal });
  }

  /** {ready, state, model, speaking, waiting, slots}; needs no key. */
  async status() {
    return (await request(this.url("ready"))).json();
  }

  #headers(given = {}) {
    return this.key ? { ...given, Authorization: `Bearer ${this.key}` } : given;
  }

  async #call(path, options = {}) {
    const sent = this.key;
    const response = await request(this.url(path), { ...options, headers: this.#headers(options.headers) });
    if (response.ok) return response;
    if (response.status === 401 && (await this.#unlock(sent))) return this.#call(path, options);
    throw await errorFrom(response);
  }

  /** Ask once for all requests that were refused at the same time. */
  async #unlock(sent) {
    if (this.key !== sent) return true;
    this.#keyPrompt ??= this.askKey().finally(() => (this.#keyPrompt = null));
    const key = await this.#keyPrompt;
    if (key) localStorage.setItem(KEY_ITEM, key);
    return Boolean(key);
  }
}

async function request(url, options = {}) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
}

async function errorFrom(response) {
  const retryMs = Number(response.headers.get("retry-after-ms") ?? 0);
  let message = `The server answered ${response.status} ${response.statusText}`.trim();
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not our error envelope, perhaps the page of a proxy: use the status.
  }
  return new ApiError(response.status, message, retryMs);
}
