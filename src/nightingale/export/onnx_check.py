"""Compare an ONNX export with the engine: the same tokens, and the same samples within a bound."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from nightingale.audio.resample import resample
from nightingale.backends.onnx.capabilities import VOCODER_GRAPHS
from nightingale.backends.onnx.embeddings import NumpyEmbeddings
from nightingale.backends.onnx.encoding.encoders import OnnxEncoders
from nightingale.backends.onnx.numpy_weights import flow_weights, t3_weights, vocoder_weights
from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork, FlowStream
from nightingale.backends.onnx.rendering.vocoder import VocoderNetwork, VocoderStream
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.decoding.decoding import Prompt, token_budget
from nightingale.decoding.runner import StepInput
from nightingale.engine.load import Model
from nightingale.errors import CheckpointError
from nightingale.export.onnx_model import ExportedModel, cut_blocks
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.types import Samples
from nightingale.voices.voice import Voice

SENTENCE: Final = "The birds sing in the morning, and the town wakes up."
MAX_ERROR_DB: Final = -45.0
"""The largest level of the difference, relative to the samples: rounding moves the phase of the pitch a little."""
MIN_COSINE: Final = 0.999
"""The smallest similarity of the speaker vectors of one clip."""


def compare_with_engine(model: Model, export: ExportedModel) -> dict[str, Any]:
    """Speak a sentence with both; return the measured differences.

    Raises:
        CheckpointError: They are larger than allowed.
    """
    voice, name = model.default_voice, export.card["default_voice"]
    assert voice is not None
    ids = model.frontend.encode(SENTENCE)
    if (own_ids := export.encode(SENTENCE)) != ids:
        raise _differs("text ids", f"{own_ids} for {ids}")
    tokens, own_tokens = greedy_tokens(model, ids, voice), export.generate(ids, name)
    if own_tokens != tokens:
        same = next(
            (n for n, pair in enumerate(zip(tokens, own_tokens, strict=False)) if pair[0] != pair[1]), -1
        )
        raise _differs("speech tokens", f"{len(own_tokens)} for {len(tokens)}, first difference at {same}")
    cuts = cut_blocks(len(tokens), export.card["blocks"])
    errors_db = {
        "conditional_decoder": error_db(
            export.render(tokens, name), render(model, tokens, voice, [(len(tokens), True)])
        ),
        "blocks": error_db(
            np.concatenate(list(export.stream(tokens, name))), render(model, tokens, voice, cuts)
        ),
    }
    for part, error in errors_db.items():
        if not error <= MAX_ERROR_DB:
            raise _differs(f"samples of {part}", f"{error:.1f} dB, where {MAX_ERROR_DB} is allowed")
    cosine = compare_speaker(model, export, render(model, tokens, voice, [(len(tokens), True)]))
    if not cosine >= MIN_COSINE:
        raise _differs("speaker vector", f"cosine {cosine:.4f}, where {MIN_COSINE} is allowed")
    return {
        "text": SENTENCE,
        "voice": name,
        "tokens": tokens,
        "error_db": {part: round(error, 1) for part, error in errors_db.items()},
        "speaker_cosine": round(cosine, 5),
    }


def greedy_tokens(model: Model, text_ids: list[int], voice: Voice) -> list[int]:
    """Return the engine's most probable speech tokens."""
    info, config, weights = model.info, model.info.preset.t3, t3_weights(model.source)
    runner = OnnxRunner(
        config,
        NumpyEmbeddings(config, weights),
        T3StepGraph(config, weights, int8=False),
        threads=1,
        slots=1,
        rows_per_slot=1,
        capacity=info.max_positions,
        batched=False,
    )
    budget = token_budget(len(text_ids), info.defaults)
    prompt = Prompt(text="", text_ids=text_ids, voice=voice, exaggeration=0.0, guided=False)
    logits, tokens = runner.prefill(0, prompt, max_tokens=budget), list[int]()
    while len(tokens) < budget:
        token = int(logits[0].argmax())
        if token == STOP_SPEECH:
            break
        tokens.append(token)
        (logits,) = runner.step([StepInput(0, token, len(tokens))])
    return tokens


def render(model: Model, tokens: list[int], voice: Voice, cuts: list[tuple[int, bool]]) -> Samples:
    """Return the engine's samples of seed 0, in blocks of these sizes."""
    preset, source = model.info.preset, model.source
    flow = source.shared("export-flow", lambda: FlowNetwork(preset.flow, flow_weights(source), threads=1))
    network = source.shared("export-vocoder", lambda: open_vocoder(model))
    stream, vocoder, rendered = FlowStream(flow, voice, seed=0), VocoderStream(network, seed=0), []
    for size, final in cuts:
        block = stream.next_block(tokens[:size], final=final)
        tokens = tokens[size:]
        if block is None:
            continue
        (mel,), (state,) = flow.render([block])
        rendered.append(vocoder.push(stream.finish(block, mel, state), final=final))
    return np.concatenate(rendered)


def open_vocoder(model: Model) -> VocoderNetwork:
    config = model.info.preset.vocoder
    assert isinstance(config, FrameVocoderConfig)
    return VocoderNetwork(config, vocoder_weights(model.source), VOCODER_GRAPHS[config], threads=1)


def compare_speaker(model: Model, export: ExportedModel, clip: Samples) -> float:
    """Return the cosine between the speaker vectors that both make of a clip."""
    own = export.run("speech_encoder", {"audio_values": clip[None]})["speaker_embeddings"][0]
    clip_16k = resample(clip, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ)
    speaker = OnnxEncoders(model.source).speaker(clip_16k)
    return float(own @ speaker)


def error_db(samples: Samples, expected: Samples) -> float:
    """Return the level of the difference relative to the expected samples; infinite if lengths differ."""
    if samples.shape != expected.shape:
        return float("inf")
    energy = np.square(expected, dtype=np.float64).sum()
    difference = np.square(np.subtract(samples, expected, dtype=np.float64)).sum()
    return float(10 * np.log10(max(difference, 1e-20) / energy))


def _differs(what: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"the export differs from the engine in its {what}", got=got, fix="Please report this."
    )
