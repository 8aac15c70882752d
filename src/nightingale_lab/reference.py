"""A loaded model run stage by stage with the PyTorch reference code, without the engine around it.

Benchmarks, checks and training time or compare single stages with these functions. They are the one place
where the lab depends on how models are loaded, decoded and rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightingale.backends import BACKENDS
from nightingale.backends.base import Backend, Block, Decoder, Setup
from nightingale.backends.profiles import BALANCED, EXACT, Profile
from nightingale.backends.selection import find_machine, select
from nightingale.backends.torch.mel_stream import MelStream, prepare_prompt, render_mel
from nightingale.backends.torch.runner import embed_prompt, generate
from nightingale.backends.torch.sample_stream import open_sample_stream, render_samples
from nightingale.backends.torch.weights import rendering_weights, t3_weights
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.engine.load import Model, default_model, load_model
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Samples, Sampling
from nightingale.voices.voice import Voice
from nightingale_lab.no_kv_cache import NoKVCache
from nightingale_lab.random_models import Networks


def load(name: str | Path | None = None, **options: Any) -> Model:
    """Load a model by name or folder, without the network. The default is the model in the package."""
    return load_model(name or default_model(), offline=True, options=options)


def backend_named(name: str) -> Backend:
    return next(backend for backend in BACKENDS if backend.name == name)


def setup_for(
    profile: Profile = EXACT, *, device: str = "cpu", precision: str = "float32", threads: int | None = None
) -> Setup:
    return Setup(
        profile=profile, machine=find_machine(BACKENDS, device), precision=precision, threads=threads
    )


def networks_of(model: Model, device: str = "cpu") -> Networks:
    """Return the networks in float32. They are shared with engines, so no inference tensors are made."""
    with torch.inference_mode(False):
        flow, vocoder = rendering_weights(model.source, device)
        return Networks(t3=t3_weights(model.source, device, "float32"), flow=flow, vocoder=vocoder)


def voice_of(model: Model, voice: Any = None) -> Voice:
    """Return the voice that the engine would use for this argument of `TTS.say`."""
    return VoiceResolver(model, setup_for()).resolve(voice)


def sampling_of(model: Model, temperature: float | None = None) -> Sampling:
    sampling = model.defaults.sampling
    return sampling if temperature is None else replace(sampling, temperature=temperature)


def decoding_of(
    model: Model,
    text: str,
    *,
    seed: int = 0,
    voice: Any = None,
    language: str | None = None,
    temperature: float | None = None,
) -> Decoding:
    """Return the decode state of an utterance before its first token."""
    sampling = sampling_of(model, temperature)
    prompt = Prompt(
        text=text,
        text_ids=model.frontend.encode(text, language),
        voice=voice_of(model, voice),
        exaggeration=model.defaults.exaggeration,
        guided=sampling.cfg_weight > 0,
    )
    vocab = model.info.preset.t3.speech_vocab
    return Decoding(prompt, vocab=vocab, defaults=model.defaults, sampling=sampling, seed=seed)


def prompt_embeddings(model: Model, t3: T3, decoding: Decoding) -> Tensor:
    """Return T3's input before the first speech token: (rows, positions, width)."""
    return embed_prompt(t3, decoding.prompt, max_new_tokens=model.defaults.max_new_tokens)


def speech_tokens(
    model: Model, text: str, *, seed: int, temperature: float | None = None, device: str = "cpu"
) -> Iterator[int]:
    """Yield the speech tokens of a text by the plain decoding loop in float32."""
    decoding = decoding_of(model, text, seed=seed, temperature=temperature)
    return generate(t3_weights(model.source, device, "float32"), decoding)


@torch.inference_mode()
def token_log_probabilities(
    model: Model, text: str, tokens: Sequence[int], *, voice: Any = None
) -> list[float]:
    """Return T3's log probability of each token after those before it, in float32 and without guidance."""
    t3 = networks_of(model).t3
    prompt = prompt_embeddings(model, t3, decoding_of(model, text, voice=voice))[:1]
    x = torch.cat([prompt, t3.embed_speech(torch.tensor([tokens[:-1]]), 1)], dim=1)
    logits = t3(x, [NoKVCache()] * t3.config.backbone.layers)[0, prompt.shape[1] - 1 :]
    chosen = logits.float().log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])
    found: list[float] = chosen[:, 0].tolist()
    return found


def open_decoder(model: Model) -> Decoder:
    """Open the reference decoder of a model for one utterance; the model "noise" has one too."""
    profile = replace(EXACT, slots=1)
    choice = select(BACKENDS, model.info, find_machine(BACKENDS, "cpu"), profile).decoder
    return choice.backend.open_decoder(model.source, choice.setup)


def prefill(decoder: Decoder, decoding: Decoding) -> list[int]:
    """Read the prompt into slot 0 of any backend, and return the tokens that are known then."""
    tokens: list[int] = []
    _keep(decoding, decoder.prefill(0, decoding), tokens)
    return tokens


def decode(decoder: Decoder, decoding: Decoding) -> list[int]:
    """Decode one utterance in slot 0 of any backend, and return its tokens."""
    return decode_together(decoder, [decoding])[0]


def decode_together(decoder: Decoder, decodings: Sequence[Decoding]) -> list[list[int]]:
    """Decode utterances of the same number of tokens in one batch, and return the tokens of each."""
    known: list[list[int]] = [[] for _ in decodings]
    for slot, decoding in enumerate(decodings):
        _keep(decoding, decoder.prefill(slot, decoding), known[slot])
    return decode_rest(decoder, decodings, known)


def decode_rest(decoder: Decoder, decodings: Sequence[Decoding], known: list[list[int]]) -> list[list[int]]:
    """Decode utterances to their end after `prefill`."""
    while not decodings[0].finished:
        rows = [
            DecodeRow(slot, decoding, tokens[-1] if tokens else 0)
            for slot, (decoding, tokens) in enumerate(zip(decodings, known, strict=True))
        ]
        for row, drawn in zip(rows, decoder.decode(rows), strict=True):
            if isinstance(drawn, Exception):
                raise drawn
            _keep(row.decoding, drawn, known[row.slot])
    for slot in reversed(range(len(decodings))):
        decoder.release(slot)
    return known


def _keep(decoding: Decoding, drawn: Iterable[int], tokens: list[int]) -> None:
    for token in drawn:
        if not decoding.finished:
            tokens.append(token)
            decoding.append(token)


def audible(ids: list[int]) -> list[int]:
    """Return the ids without control ids, which never reach the flow."""
    return [token for token in ids if token < SPEECH_CODES]


def mel_of(model: Model, ids: list[int], *, seed: int, voice: Any = None, device: str = "cpu") -> Tensor:
    """Return the mel of all speech ids in one piece: (mel, frames)."""
    return render_mel(networks_of(model, device).flow, audible(ids), voice_of(model, voice), seed=seed)


def samples_of(model: Model, mel: Tensor, *, seed: int, device: str = "cpu") -> Samples:
    """Return the vocoder's samples of a mel in one piece."""
    return render_samples(networks_of(model, device).vocoder, mel, seed=seed)


@torch.inference_mode()
def render_in_blocks(
    model: Model,
    ids: list[int],
    *,
    seed: int,
    voice: Any = None,
    sizes: Sequence[int] | None = None,
    streaming: bool = True,
) -> tuple[Tensor, list[Samples]]:
    """Return the mel, and the samples of each block. sizes: tokens of each block; default: as in `balanced`."""
    speaker, ids, networks = voice_of(model, voice), audible(ids), networks_of(model)
    prompt = prepare_prompt(networks.flow, speaker)
    mel_stream = MelStream(networks.flow, speaker, seed=seed, streaming=streaming, prompt=prompt)
    sample_stream = open_sample_stream(networks.vocoder, seed=seed, streaming=streaming)
    mels, chunks, at = [], [], 0
    for size in sizes or _growing_sizes():
        final = at + size >= len(ids)
        mels.append(mel_stream.push(ids[at : at + size], final=final))
        chunks.append(sample_stream.push(mels[-1], final=final))
        at += size
        if final:
            break
    return torch.cat(mels, dim=1), chunks


def _growing_sizes() -> Iterator[int]:
    size = BALANCED.smallest_block_tokens
    while True:
        yield size
        size = min(2 * size, BALANCED.largest_block_tokens)


def render_synthetic(model: Model, ids: list[int], *, seed: int, block_tokens: int) -> list[Samples]:
    """Return the samples of each block of the model "noise", which has no networks."""
    setup = setup_for(BALANCED)
    renderer = backend_named("noise").open_renderer(model.source, setup)
    stream, ids = renderer.open(voice_of(model), seed=seed), audible(ids)
    chunks: list[Samples] = []
    while (cut := stream.next_cut(len(ids), finished=True, wanted=block_tokens)) is not None:
        taken, ids = ids[: cut.tokens], ids[cut.tokens :]
        block = Block(stream=stream, tokens=taken, first=not chunks, final=cut.final, alone=True)
        chunks += renderer.render([block]).result()
        if cut.final:
            break
    return chunks
