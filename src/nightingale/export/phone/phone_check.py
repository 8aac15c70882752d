"""Compare an export for phones with the reference: tokens and logits of a sentence, its mel, its samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from nightingale.backends.torch.runner import embed_prompt
from nightingale.backends.torch.sample_stream import FrameVocoderStream
from nightingale.backends.torch.weights import rendering_weights, t3_weights
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.engine.load import Model
from nightingale.engine.requests.segments import segment_text
from nightingale.errors import CheckpointError
from nightingale.export.phone.phone_model import PhoneModel, greedy
from nightingale.models.chatterbox.s3gen.flow import Flow, FlowState, render_block
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.types import Samples
from nightingale.voices.voice import Voice

SENTENCE: Final = "The nightingale sang in the dark, and nobody knew where it was."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLimits:
    """The largest differences between an export and the reference that are accepted."""

    other_tokens: int = 0
    """Tokens of the sentence for which another one is the most likely."""
    logits: float = 1e-3
    """The largest difference of a logit."""
    mel: float = 1e-3
    samples_db: float = -50.0
    """The error's power over the signal's."""


FLOAT32: Final = ExportLimits()


def load_networks(model: Model) -> tuple[T3, Flow, FrameVocoder]:
    """Return the networks of a supported model in PyTorch, in float32 on the CPU."""
    flow, vocoder = rendering_weights(model.source, "cpu")
    assert isinstance(vocoder, FrameVocoder)
    return t3_weights(model.source, "cpu", "float32"), flow, vocoder


@torch.inference_mode()
def compare_with_engine(
    model: Model, exported: PhoneModel, text: str = SENTENCE, *, limits: ExportLimits = FLOAT32
) -> dict[str, float | int]:
    """Speak a sentence greedily; return its number of tokens, and what the export differs in from the reference.

    Every stage of the export gets the reference's result of the stage before it, T3 its tokens.

    Raises:
        CheckpointError: A difference is larger than its limit.
    """
    t3, flow, vocoder = load_networks(model)
    voice = model.default_voice
    assert voice is not None
    segment = next(segment_text(model.frontend, text, None, split_chars=None))
    tokens, logits = reference_tokens(model, t3, voice, segment.text_ids)
    seen: list[Tensor] = []

    def choose(values: Tensor) -> int:
        seen.append(values.clone())
        return tokens[len(seen) - 1] if len(seen) <= len(tokens) else STOP_SPEECH

    spoken = list(exported.generate(segment.text_ids, voice.name, choose))
    if len(spoken) != len(tokens):
        raise CheckpointError("the export stops too early", got=f"{len(spoken)} of {len(tokens)} tokens")
    mel_blocks = list(exported.render(tokens, voice.name))
    counts = [len(block) for block in mel_blocks]
    mel = reference_mel(flow, voice, tokens, [count // 2 for count in counts])
    blocks = torch.split(mel, counts)
    samples = np.concatenate(list(exported.vocode(blocks, seed=0)))
    reference = reference_samples(vocoder, blocks, seed=0)
    if len(samples) != len(reference):
        raise CheckpointError("the export renders too few samples", got=f"{len(samples)} of {len(reference)}")
    pairs = list(zip(seen, logits, strict=False))
    found = ExportLimits(
        other_tokens=sum(greedy(own) != greedy(other) for own, other in pairs),
        logits=max(float((own - other).abs().max()) for own, other in pairs),
        mel=float((torch.cat(mel_blocks) - mel).abs().max()),
        samples_db=error_db(samples, reference),
    )
    # Written so that a difference that is not a number is refused too.
    if not all(getattr(found, field.name) <= getattr(limits, field.name) for field in fields(ExportLimits)):
        raise CheckpointError("the export differs from the engine", got=str(found), allowed=str(limits))
    return {"tokens": len(tokens), **asdict(found)}


@torch.inference_mode()
def reference_tokens(
    model: Model, t3: T3, voice: Voice, text_ids: list[int]
) -> tuple[list[int], list[Tensor]]:
    """Return the engine's greedy tokens, without the stop token, and the logits before each token."""
    prompt = Prompt(text="", text_ids=text_ids, voice=voice, exaggeration=0.0, guided=False)
    decoding = Decoding(
        prompt,
        vocab=t3.config.speech_vocab,
        defaults=model.defaults,
        sampling=replace(model.defaults.sampling, temperature=0.0),
        seed=0,
    )
    x = embed_prompt(t3, prompt, max_new_tokens=decoding.budget)
    cache = t3.new_kv_cache(rows=1, capacity=x.shape[1] + decoding.budget)
    tokens, logits = [], []
    while not decoding.finished:
        logits.append(t3.next_logits(x, cache))
        tokens.append(decoding.accept(logits[-1].numpy()))
        x = t3.embed_speech(torch.tensor([[tokens[-1]]]), decoding.appended)
    return [token for token in tokens if token != STOP_SPEECH], logits


@torch.inference_mode()
def reference_mel(flow: Flow, voice: Voice, tokens: list[int], blocks: Sequence[int]) -> Tensor:
    """Return the mel (frames, bands) of the reference, rendered in the same blocks of tokens."""
    past: FlowState | None = None
    mels, start, bands = [], 0, flow.config.mel_bands
    for count in blocks:
        ids = tokens[start : start + count + 3]
        mel, past = render_block(
            flow,
            torch.tensor([ids]),
            lookahead=len(ids) - count,
            prompt_mel=torch.zeros(1, bands, 0),
            speaker=torch.tensor(voice.flow_speaker[None]),
            noise=torch.zeros(1, bands, 2 * count),
            past=past,
        )
        mels.append(mel[0].T)
        start += count
    return torch.cat(mels)


@torch.inference_mode()
def reference_samples(vocoder: FrameVocoder, mels: Iterable[Tensor], *, seed: int) -> Samples:
    """Return the samples of the engine's stream of mel blocks (frames, bands)."""
    stream = FrameVocoderStream(vocoder, seed=seed)
    parts = [stream.push(mel.T, final=False) for mel in mels]
    return np.concatenate([*parts, stream.push(torch.zeros(vocoder.config.mel_bands, 0), final=True)])


def error_db(samples: Samples, reference: Samples) -> float:
    """Return the power of the difference over that of the reference."""
    error = np.square(samples - reference, dtype=np.float64).mean()
    return float(10 * np.log10(error / np.square(reference, dtype=np.float64).mean()))
