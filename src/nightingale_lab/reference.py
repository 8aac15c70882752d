"""A loaded model run stage by stage with the torch reference code, without the engine around it.

Benchmarks time or compare single stages with these functions. They are the one place where the lab depends
on the internals of loading, decoding and rendering.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.torch.mel_stream import MelStream, audible, prepare_prompt, render_mel
from nightingale.backends.torch.sample_stream import SampleStream, render_samples
from nightingale.decoding.decoding import Decoding, prompt_of, speak
from nightingale.decoding.random import generator
from nightingale.engine.load import load_model
from nightingale.engine.model import Model, default_model
from nightingale.engine.profiles import BALANCED
from nightingale.engine.voice_lookup import Voicing
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Samples, Sampling
from nightingale.voices.voice import Voice


def load(
    name: str | Path | None = None, *, device: str = "cpu", dtype: str = "auto", **options: Any
) -> Model:
    """Load a model by name or folder, without the network. The default is the model in the package."""
    return load_model(name or default_model(), device=device, dtype=dtype, offline=True, options=options)


def voice_of(model: Model, voice: Any = None) -> Voice:
    """Return the voice that the engine would use for this argument of `TTS.say`."""
    return Voicing(model).resolve(voice)


def sampling_of(model: Model, temperature: float | None = None) -> Sampling:
    sampling = model.defaults.sampling
    return sampling if temperature is None else replace(sampling, temperature=temperature)


def prompt(model: Model, text: str, *, t3: T3 | None = None, voice: Any = None) -> Tensor:
    """Return T3's input embeddings before the first speech token: (rows, positions, width)."""
    return prompt_of(
        t3 or model.networks.t3,
        model.frontend.encode(text, None),
        voice_of(model, voice),
        defaults=model.defaults,
        sampling=model.defaults.sampling,
        exaggeration=model.defaults.exaggeration,
    )


def decoding(
    model: Model, text: str, *, seed: int = 0, temperature: float | None = None, **more: Any
) -> Decoding:
    """Return the sampling state of one utterance."""
    return Decoding(
        model.networks.t3,
        defaults=model.defaults,
        sampling=sampling_of(model, temperature),
        text_ids=len(model.frontend.encode(text, None)),
        rng=generator(seed, "tokens"),
        **more,
    )


def speech_tokens(
    model: Model, text: str, *, seed: int, voice: Any = None, temperature: float | None = None
) -> Iterator[int]:
    """Yield the speech tokens of a text by the plain decoding loop."""
    return speak(
        model.networks.t3,
        model.frontend.encode(text, None),
        voice_of(model, voice),
        defaults=model.defaults,
        sampling=sampling_of(model, temperature),
        exaggeration=model.defaults.exaggeration,
        rng=generator(seed, "tokens"),
    )


@torch.inference_mode()
def mel_of(model: Model, ids: list[int], *, seed: int, voice: Any = None) -> Tensor:
    """Return the mel of all speech ids in one piece."""
    return render_mel(model.networks.flow, audible(ids), voice_of(model, voice), seed=seed)


@torch.inference_mode()
def samples_of(model: Model, mel: Tensor, *, seed: int) -> Samples:
    """Return the vocoder's samples of a mel in one piece."""
    return render_samples(model.networks.hift, mel, seed=seed)


@torch.inference_mode()
def render_in_blocks(
    model: Model, ids: list[int], *, seed: int, voice: Any = None
) -> tuple[Tensor, list[Samples]]:
    """Return the mel, and the samples of each block, rendered with the block sizes of `balanced`."""
    speaker, ids = voice_of(model, voice), audible(ids)
    prompt = prepare_prompt(model.networks.flow, speaker)
    mel_stream = MelStream(model.networks.flow, speaker, seed=seed, streaming=True, prompt=prompt)
    sample_stream = SampleStream(model.networks.hift, seed=seed, streaming=True)
    mels, chunks, at, size = [], [], 0, BALANCED.first_block_tokens
    while at < len(ids):
        final = at + size >= len(ids)
        mels.append(mel_stream.push(ids[at : at + size], final=final))  # (mel, frames)
        chunks.append(sample_stream.push(mels[-1], final=final))
        at, size = at + size, min(2 * size, BALANCED.largest_block_tokens)
    return torch.cat(mels, dim=1), chunks
