"""Processor time of wren's networks on ONNX Runtime beside PyTorch, block by block, in one thread.

    python -m nightingale_lab.bench onnx_blocks [--rounds N]
    python -m nightingale_lab.bench onnx_blocks --tiny        # one round: proves that it runs

Both run in one process and take turns; each number is the fastest round. Processor time instead of wall time,
so that other processes disturb it little. The last line is JSON.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from nightingale import wren
from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.onnx.capabilities import VOCODER_GRAPHS
from nightingale.backends.onnx.embeddings import NumpyEmbeddings
from nightingale.backends.onnx.numpy_weights import PackedWeights, flow_weights, t3_weights, vocoder_weights
from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork, FlowStream
from nightingale.backends.onnx.rendering.vocoder import VocoderNetwork, VocoderStream
from nightingale.backends.onnx.runner import OnnxRunner
from nightingale.backends.onnx.t3_graph import T3StepGraph
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.backends.torch.runner import TorchRunner
from nightingale.backends.torch.sample_stream import open_sample_stream
from nightingale.backends.torch.weights import rendering_weights
from nightingale.backends.torch.weights import t3_weights as torch_t3_weights
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.voices.voice import Voice
from nightingale_lab.bench import runner

BLOCKS = (10, 9, 18, 36, 64, 20)
"""Tokens of each block; the first includes the encoder's lookahead."""
STEPS = 50
POOL: dict[str, Any] = {"slots": 1, "rows_per_slot": 1, "capacity": 200, "batched": True}
Result = TypeVar("Result")
Times = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(
        __doc__,
        "onnx_blocks",
        measure,
        runner.option("--rounds", type=int, default=5),
        tiny={"rounds": 1},
        arguments=arguments,
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    rounds = args.rounds
    info = ModelInfo(name="wren", preset=PRESETS["wren"], defaults=MODEL_DEFAULTS["wren"])
    files = {role: wren.folder() / name for role, name in wren.FILES.items()}
    source = ModelSource(info, files, packed=True)
    voice = Voice.load(wren.folder() / wren.VOICES / "heart.safetensors")
    times: dict[str, float] = defaultdict(lambda: float("inf"))
    with torch.inference_mode():
        blocks(source, voice, rounds, times)
        steps(source, voice, rounds, times)
    for name, ms in times.items():
        runner.report(f"{name:40} {ms:8.2f} ms")
    return {"processor_ms": times}


def clock(times: Times, name: str, run: Callable[..., Result], *args: Any, **options: Any) -> Result:
    started = time.process_time()
    result = run(*args, **options)
    times[name] = min(times[name], 1e3 * (time.process_time() - started))
    return result


def blocks(source: ModelSource, voice: Voice, rounds: int, times: Times) -> None:
    """Time flow and vocoder; both vocoders render PyTorch's mel."""
    flow = clock(times, "load, flow", load_flow, source)
    net = clock(times, "load, vocoder", load_vocoder, source)
    flow8 = load_flow(source, int8=True)
    torch_flow, torch_vocoder = rendering_weights(source, "cpu")
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        mels = MelStream(torch_flow, voice, seed=1, streaming=True)
        samples = open_sample_stream(torch_vocoder, seed=1, streaming=True)
        stream, int8 = FlowStream(flow, voice, seed=1), FlowStream(flow8, voice, seed=1)
        vocoder = VocoderStream(net, seed=1)
        for number, size in enumerate(BLOCKS):
            tokens, final = rng.integers(6561, size=size).tolist(), number == len(BLOCKS) - 1
            label = f"block {number}, {size} tokens"
            clock(times, f"{label}, flow, onnx", push, flow, stream, tokens, final)
            clock(times, f"{label}, flow, onnx int8", push, flow8, int8, tokens, final)
            mel = clock(times, f"{label}, flow, torch", mels.push, tokens, final=final)
            frames = mel.numpy().T.copy()
            clock(times, f"{label}, vocoder, onnx", vocoder.push, frames, final=final)
            clock(times, f"{label}, vocoder, torch", samples.push, mel, final=final)


def load_flow(source: ModelSource, *, int8: bool = False) -> FlowNetwork:
    return FlowNetwork(source.info.preset.flow, flow_weights(source), threads=1, int8=int8)


def load_vocoder(source: ModelSource) -> VocoderNetwork:
    config = source.info.preset.vocoder
    assert isinstance(config, FrameVocoderConfig)
    return VocoderNetwork(config, vocoder_weights(source), VOCODER_GRAPHS[config], threads=1)


def load_t3(config: T3Config, weights: PackedWeights, *, int8: bool) -> OnnxRunner:
    graph = T3StepGraph(config, weights, int8=int8)
    return OnnxRunner(config, NumpyEmbeddings(config, weights), graph, threads=1, **POOL)


def push(flow: FlowNetwork, stream: FlowStream, tokens: list[int], final: bool) -> None:
    block = stream.next_block(tokens, final=final)
    assert block is not None
    (mel,), (state,) = flow.render([block])
    stream.finish(block, mel, state)


def steps(source: ModelSource, voice: Voice, rounds: int, times: Times) -> None:
    """Time T3's prompt of 40 text ids and its steps."""
    config, weights = source.info.preset.t3, t3_weights(source)
    runners: dict[str, OnnxRunner | TorchRunner] = {
        f"onnx {name}": clock(times, f"load, T3, {name}", load_t3, config, weights, int8=int8)
        for name, int8 in (("float32", False), ("int8", True))
    }
    runners["torch"] = TorchRunner(torch_t3_weights(source, "cpu", "float32"), **POOL, max_new_tokens=150)
    prompt = Prompt(text="", text_ids=list(range(1, 41)), voice=voice, exaggeration=0.5, guided=False)
    for _ in range(rounds):
        for name, t3 in runners.items():
            clock(times, f"T3 prompt, {name}", t3.prefill, 0, prompt, max_tokens=150)
        for position in range(1, STEPS + 1):
            for name, t3 in runners.items():
                inputs = [StepInput(0, 100 + position, position)]
                clock(times, f"T3 step, {name}", t3.step, inputs)
