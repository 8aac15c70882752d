// Wren in a browser: the page and, in a worker of its own, the model.
//
// The worker runs the graphs of `nightingale export wren --format onnx -o model` with onnxruntime-web, in one thread.
// It decodes one speech token after the other, renders a block as soon as its tokens are known, and posts the
// samples; the page plays them. docs/export.md describes the graphs and their order.

import { Tokenizer, spellOut, splitSentences } from "./text.mjs";

const MODEL = new URL("./model/", import.meta.url);
const RUNTIME = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url);
const CARD = "export.json";
const FORMAT = "nightingale-onnx";
const VERSION = 1;
const GRAPHS = ["embed_tokens", "language_model", "flow_block", "vocoder_block"];
const PAUSE_S = 0.15;

// ---- The model --------------------------------------------------------------------------------------------------

const ARRAYS = { float32: Float32Array, int64: BigInt64Array };

/** Fetch the files of an export and check them against its card. */
async function fetchExport(progress) {
    const refuse = (got) => {
        throw new Error(`The export is damaged or incomplete: ${got}. Export the model again (docs/export.md).`);
    };
    const response = await fetch(new URL(CARD, MODEL));
    if (!response.ok) refuse(`no ${CARD} in ${MODEL.pathname}`);
    const card = await response.json().catch(() => refuse(`${CARD} is not JSON`));
    if (card.format !== FORMAT || card.version !== VERSION) refuse(`format ${card.format}, version ${card.version}`);
    const graphs = GRAPHS.map((name) => card.graphs?.[name] ?? refuse(`no graph ${name}`));
    const names = new Set([card.tokenizer, card.voices, ...graphs.flatMap(({ file, weights }) => [file, weights])]);
    const total = [...names].reduce((sum, name) => sum + (card.files?.[name]?.bytes ?? refuse(`no size of ${name}`)), 0);
    const files = {};
    let done = 0;
    for (const name of names) {
        const answer = await fetch(new URL(name, MODEL));
        if (!answer.ok) refuse(`no ${name}`);
        const data = new Uint8Array(await answer.arrayBuffer());
        if (data.length !== card.files[name].bytes) refuse(`${name} has ${data.length} bytes, not ${card.files[name].bytes}`);
        if (globalThis.crypto?.subtle) {  // in secure contexts, such as localhost and https
            const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
            const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
            if (hex !== card.files[name].sha256) refuse(`${name} has another SHA-256 than its card`);
        }
        files[name] = data;
        progress((done += data.length) / total);
    }
    return { card, files };
}

class Model {
    static async load(progress) {
        const ort = await import(new URL("ort.wasm.min.mjs", RUNTIME).href);
        ort.env.wasm.numThreads = 1;
        ort.env.wasm.wasmPaths = RUNTIME.href;
        const { card, files } = await fetchExport(progress);
        const sessions = {};
        for (const name of GRAPHS) {
            const { file, weights } = card.graphs[name];
            sessions[name] = await ort.InferenceSession.create(files[file], {
                executionProviders: ["wasm"],
                externalData: [{ path: weights, data: files[weights] }],
                enableMemPattern: false,  // shapes differ from block to block
            });
        }
        const json = (name) => JSON.parse(new TextDecoder().decode(files[name]));
        const model = new Model(ort, card, sessions, new Tokenizer(json(card.tokenizer), card), json(card.voices));
        await model.readSpeechTable();
        return model;
    }

    constructor(ort, card, sessions, tokenizer, voices) {
        Object.assign(this, { ort, card, sessions, tokenizer, voices });
    }

    tensor(dtype, data, shape) {
        const values = dtype === "int64" ? BigInt64Array.from(data, BigInt) : ARRAYS[dtype].from(data);
        return new this.ort.Tensor(dtype, values, shape);
    }

    voice(name) {
        const outputs = this.card.graphs.speech_encoder.outputs;
        return Object.fromEntries(Object.entries(this.voices[name]).map(
            ([key, { shape, data }]) => [key, this.tensor(outputs[key].dtype, data, shape)]));
    }

    /** Read the embeddings of all speech tokens at once: a lookup costs less than a run of the graph. */
    async readSpeechTable() {
        const { special_ids: special, vocabulary } = this.card;
        const before = [special.start_text, special.stop_text];
        const all = await this.embed([...before, ...Array(vocabulary.speech).keys()]);
        this.width = all.dims[2];
        this.speechTable = all.data.subarray(before.length * this.width);
    }

    speechEmbedding(token) {
        const row = this.speechTable.slice(token * this.width, (token + 1) * this.width);
        return new this.ort.Tensor("float32", row, [1, 1, this.width]);
    }

    async embed(ids) {
        const { inputs_embeds: embeds } = await this.sessions.embed_tokens.run({
            input_ids: this.tensor("int64", ids, [1, ids.length]),
            position_ids: this.tensor("int64", ids.keys(), [1, ids.length]),
            exaggeration: this.tensor("float32", [0], [1]),
        });
        return embeds;
    }

    /** Yield the speech tokens of text ids. */
    async *generate(ids, voice, sample) {
        const { special_ids: special, limits, graphs } = this.card;
        const text = await this.embed([special.start_text, ...ids, special.stop_text, special.start_speech]);
        let total = 1 + text.dims[1];
        let embeds = new this.ort.Tensor(
            "float32", Float32Array.from([...voice.audio_features.data, ...text.data]), [1, total, this.width]);
        let past = {};
        for (const [name, { shape }] of Object.entries(graphs.language_model.inputs)) {
            if (!name.startsWith("past_key_values")) continue;
            past[name] = this.tensor("float32", [], shape.map((size) => (typeof size === "string" ? 0 : size)));
        }
        const budget = Math.min(limits.max_new_tokens, Math.floor(limits.tokens_per_text_id * ids.length));
        for (let count = 0; count < budget; count++) {
            const mask = new this.ort.Tensor("int64", new BigInt64Array(total).fill(1n), [1, total]);
            const { logits, ...present } =
                await this.sessions.language_model.run({ inputs_embeds: embeds, attention_mask: mask, ...past });
            const token = sample(logits.data);
            if (token === special.stop_speech) return;
            yield token;
            past = {};
            for (const [name, value] of Object.entries(present)) past[name.replace("present", "past_key_values")] = value;
            embeds = this.speechEmbedding(token);
            total++;
        }
    }

    /** Return a renderer of one utterance: `next(tokens, final)` returns the samples that are ready. */
    renderer(voice) {
        const states = Object.fromEntries(["flow_block", "vocoder_block"].map((graph) => [graph, Object.fromEntries(
            this.card.graphs[graph].states.map(({ name, dtype, shape, fill }) => {
                const size = shape.reduce((product, one) => product * one, 1);
                return [name, this.tensor(dtype, new Array(size).fill(fill), shape)];
            }))]));
        const run = async (graph, inputs) => {
            const outputs = await this.sessions[graph].run({ ...inputs, ...states[graph] });
            for (const name of Object.keys(states[graph])) states[graph][name] = outputs[`new.${name}`];
            return outputs;
        };
        const bands = voice.speaker_features.dims[2];
        const lookahead = this.card.blocks.lookahead_tokens;
        const noFeatures = this.tensor("float32", [], [1, 0, bands]);
        let ids = [];
        return async (tokens, final) => {
            ids.push(...tokens);
            const count = ids.length - (final ? 0 : lookahead);
            if (count <= 0) return new Float32Array(0);
            const isFinal = this.tensor("int64", [final ? 1 : 0], [1]);
            const { mel } = await run("flow_block", {
                speech_tokens: this.tensor("int64", ids, [1, ids.length]),
                speaker_embeddings: voice.speaker_embeddings,
                speaker_features: noFeatures,
                final: isFinal,
            });
            ids = ids.slice(count);
            return (await run("vocoder_block", { mel, final: isFinal })).waveform.data;
        };
    }

    /** Yield { samples, tokens } of a text, block by block. */
    async *speak(text, { voice: name, greedy = false, seed = 0 }) {
        const { blocks, limits, sampling, sample_rate_hz: rate } = this.card;
        const voice = this.voice(name);
        if (voice.audio_tokens.dims[1]) throw new Error(`The voice ${name} has a prompt, which this page does not render.`);
        const sample = greedy ? argmax : sampler(sampling, seed);
        for (const segment of splitSentences(spellOut(text), limits.segment_chars)) {
            const ids = this.tokenizer.encode(segment).slice(0, limits.text_ids);
            const render = this.renderer(voice);
            let [tokens, size, waits, cuts] = [[], blocks.first_tokens, blocks.lookahead_tokens, 0];
            for await (const token of this.generate(ids, voice, sample)) {
                if (token < this.card.special_ids.start_speech) tokens.push(token);
                if (tokens.length < size + waits) continue;
                yield { samples: await render(tokens, false), tokens };
                [tokens, waits, cuts] = [[], 0, cuts + 1];
                size = cuts === 1 ? blocks.second_tokens : Math.min(2 * size, blocks.largest_tokens);
            }
            yield { samples: await render(tokens, true), tokens };
            yield { samples: new Float32Array(Math.round(PAUSE_S * rate)), tokens: [] };
        }
    }
}

function argmax(logits) {
    let best = 0;
    for (let id = 1; id < logits.length; id++) if (logits[id] > logits[best]) best = id;
    return best;
}

/** Sample with temperature, min_p and top_p; the model's defaults leave top_k and the penalty off. */
function sampler({ temperature, min_p: minP, top_p: topP }, seed) {
    let state = seed >>> 0;
    const random = () => {  // mulberry32
        state = (state + 0x6d2b79f5) >>> 0;
        let x = Math.imul(state ^ (state >>> 15), state | 1);
        x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
        return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
    return (logits) => {
        const best = logits[argmax(logits)];
        let kept = [];
        for (let id = 0; id < logits.length; id++) {
            const weight = Math.exp((logits[id] - best) / temperature);
            if (weight >= minP) kept.push([id, weight]);
        }
        kept.sort((a, b) => b[1] - a[1]);
        const total = kept.reduce((sum, [, weight]) => sum + weight, 0);
        let reached = 0;
        kept = kept.filter(([, weight]) => (reached += weight) - weight < topP * total);
        let left = random() * kept.reduce((sum, [, weight]) => sum + weight, 0);
        for (const [id, weight] of kept) if ((left -= weight) <= 0) return id;
        return kept.at(-1)[0];
    };
}

// ---- The worker -------------------------------------------------------------------------------------------------

function runWorker() {
    let model;
    let current = 0;
    const handlers = {
        async load() {
            model = await Model.load((value) => postMessage({ kind: "progress", value }));
            const { default_voice: voice, sample_rate_hz: rate } = model.card;
            postMessage({ kind: "ready", voices: Object.keys(model.voices), voice, rate });
        },
        async speak({ id, text, options }) {
            current = id;
            const started = performance.now();
            for await (const { samples, tokens } of model.speak(text, options)) {
                if (current !== id) return;
                postMessage({ kind: "block", id, samples, tokens, ms: performance.now() - started });
                await new Promise((resolve) => setTimeout(resolve));  // a stop may have arrived
            }
            postMessage({ kind: "done", id, ms: performance.now() - started });
        },
        async stop() {
            current = 0;
        },
    };
    globalThis.onmessage = ({ data }) => handlers[data.kind](data).catch?.(
        (error) => postMessage({ kind: "error", id: data.id, message: String(error.message ?? error) }));
}

// ---- The page ---------------------------------------------------------------------------------------------------

/** Plays samples as they arrive, one block after the other. */
class Player {
    constructor(rate) {
        this.context = new AudioContext({ sampleRate: rate });
        this.rate = rate;
        this.end = 0;
        this.sources = new Set();
    }

    play(samples) {
        if (!samples.length) return;
        const buffer = this.context.createBuffer(1, samples.length, this.rate);
        buffer.copyToChannel(samples, 0);
        const source = this.context.createBufferSource();
        source.buffer = buffer;
        source.connect(this.context.destination);
        this.end = Math.max(this.end, this.context.currentTime + 0.05);
        source.start(this.end);
        this.end += buffer.duration;
        this.sources.add(source);
        source.onended = () => this.sources.delete(source);
    }

    stop() {
        for (const source of this.sources) source.stop();
        this.end = 0;
    }
}

function runPage() {
    const at = (id) => document.getElementById(id);
    const worker = new Worker(import.meta.url, { type: "module" });
    const waiting = new Map();
    let rate = 24000;
    let player;
    let ids = 0;

    const show = (text, kind = "info") => {
        at("status").textContent = text;
        at("status").dataset.kind = kind;
    };

    /** Speak a text; resolve to samples, tokens and measurements. */
    function speak(text, { play = true, ...options } = {}) {
        const id = ++ids;
        worker.postMessage({ kind: "speak", id, text, options: { voice: at("voice").value, ...options } });
        return new Promise((resolve, reject) => waiting.set(id, { blocks: [], tokens: [], play, resolve, reject }));
    }

    const handlers = {
        progress: ({ value }) => { at("progress").value = value; },
        ready(message) {
            rate = message.rate;
            at("voice").replaceChildren(...message.voices.map((name) => new Option(name, name, false, name === message.voice)));
            at("progress").hidden = true;
            at("speak").disabled = false;
            document.body.dataset.state = "ready";
            show("Ready.");
        },
        block({ id, samples, tokens, ms }) {
            const one = waiting.get(id);
            if (!one) return;
            if (one.firstAudioMs === undefined && samples.length) {
                one.firstAudioMs = ms;
                at("first-audio").textContent = `${Math.round(ms)} ms`;
            }
            one.blocks.push(samples);
            one.tokens.push(...tokens);
            if (one.play) player.play(samples);
        },
        done({ id, ms }) {
            const one = waiting.get(id);
            if (!one) return;
            waiting.delete(id);
            const samples = new Float32Array(one.blocks.reduce((sum, block) => sum + block.length, 0));
            one.blocks.reduce((start, block) => (samples.set(block, start), start + block.length), 0);
            const seconds = samples.length / rate;
            at("rtf").textContent = (ms / 1000 / seconds).toFixed(2);
            at("seconds").textContent = `${seconds.toFixed(1)} s`;
            one.resolve({ samples, tokens: one.tokens, firstAudioMs: one.firstAudioMs, ms, seconds, rtf: ms / 1000 / seconds });
        },
        error({ id, message }) {
            show(message, "error");
            document.body.dataset.state ??= "error";
            at("progress").hidden = true;
            waiting.get(id)?.reject(new Error(message));
            waiting.delete(id);
        },
    };
    worker.onmessage = ({ data }) => handlers[data.kind](data);
    worker.onerror = (event) => handlers.error({ message: `The model could not be started: ${event.message}` });

    function stop() {
        worker.postMessage({ kind: "stop" });
        for (const one of waiting.values()) one.reject(new Error("stopped"));
        waiting.clear();
        player?.stop();
    }

    at("form").onsubmit = async (event) => {
        event.preventDefault();
        stop();
        player ??= new Player(rate);
        await player.context.resume();
        at("stop").disabled = false;
        show("Speaking …");
        try {
            await speak(at("text").value, { seed: Date.now() });
            show("Done.");
        } catch (error) {
            if (error.message !== "stopped") show(error.message, "error");
        }
    };
    at("stop").onclick = () => {
        stop();
        at("stop").disabled = true;
        show("Stopped.");
    };
    window.nightingale = { speak };
    worker.postMessage({ kind: "load" });
}

if (typeof document === "undefined") runWorker();
else runPage();
