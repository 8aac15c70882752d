"""The networks as Core ML runs them: embedding tables are on the host, and T3's KV cache is a state.

A state is an array in float16 that a model reads and writes, and that Core ML keeps between calls. The caches of the
flow and the vocoder are inputs and outputs instead: they are read once per block, and the vocoder's pitch and phase
need float32.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from nightingale.export.phone.coreml_layers import use_coreml_layers
from nightingale.export.phone.fixed_vocoder import STATE, FixedVocoder
from nightingale.export.phone.static_flow import PositionCaches, StaticEstimator, StaticTokenEncoder
from nightingale.export.phone.static_t3 import StaticT3
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import MEANFLOW_STEPS, Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.frame_vocoder.network import FrameVocoder

CACHE: Final = "cache_"
NEXT: Final = "next_"
"""Prefixes of a cache's name: the input, and the output that is the next block's input."""
FLOAT32_HANDLE: Final = 1
"""The `debug_handle` of nodes that are computed in float32; coremltools copies it to their operations."""


class CoremlModule(nn.Module):
    """A function of a Core ML package. Inputs, outputs and states have names, types and fixed shapes."""

    states: tuple[str, ...] = ()
    """Buffers that Core ML keeps, in float16."""

    @abstractmethod
    def inputs(self) -> dict[str, Tensor]:
        """Return the values of an utterance's first call, in the types that the package takes."""

    @abstractmethod
    def outputs(self) -> dict[str, torch.dtype]:
        """Return the types that the package returns."""

    def graph(self) -> torch.jit.ScriptModule | ExportedProgram:
        """Return what coremltools converts: a trace, because it lacks an operation of the flow's exported graph."""
        traced: torch.jit.ScriptModule = torch.jit.trace(self, self.example(), check_trace=False)
        return traced

    def example(self) -> tuple[Tensor, ...]:
        """Return the inputs as the module itself takes them: coremltools makes the conversions to float16."""
        return tuple(
            one.float() if one.is_floating_point() else one.clone() for one in self.inputs().values()
        )


class CoremlT3(CoremlModule):
    """T3 over embedded ids, with its KV cache as the states `keys` and `values`.

    Inputs: x (1, tokens, width); position (1,); and, where there are several tokens, last (1,): the index of the one
    whose logits are wanted. Output: logits (1, speech_vocab). Keys and values of all tokens are stored from
    `position` on, those of padding too, which are masked until tokens at their positions replace them.
    """

    states = ("keys", "values")
    keys: Tensor
    values: Tensor

    def __init__(self, t3: T3, *, tokens: int, capacity: int) -> None:
        super().__init__()
        self.t3, self.tokens = StaticT3(t3, tokens=tokens, capacity=capacity), tokens
        del self.t3.table
        shape = self.t3.layers, self.t3.heads, capacity, self.t3.head_width
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        use_coreml_layers(self)

    def inputs(self) -> dict[str, Tensor]:
        x = torch.zeros(1, self.tokens, self.t3.heads * self.t3.head_width, dtype=torch.float16)
        return {"x": x, "position": _integer()} | ({"last": _integer()} if self.tokens > 1 else {})

    def outputs(self) -> dict[str, torch.dtype]:
        return {"logits": torch.float32}

    def forward(self, x: Tensor, position: Tensor, last: Tensor | None = None) -> Tensor:
        caches = [cache[layer] for layer in range(self.t3.layers) for cache in (self.keys, self.values)]
        logits, *new = self.t3.read(x, position, position if last is None else last, *caches)
        start = position[0]
        end = start + self.tokens
        self.keys[:, :, start:end] = torch.stack(new[::2])
        self.values[:, :, start:end] = torch.stack(new[1::2])
        return logits


class CoremlFlow(CoremlModule):
    """A block of speech tokens to mel frames: the token encoder and all solver steps in one call.

    Inputs: x (1, tokens + 3, width), the embedded ids; known (1,) and position (1,), as those of the token encoder;
    speaker (1, 1, mel); cache_N. Outputs: mel (1, 2 · tokens, mel), then next_N.
    """

    def __init__(self, flow: Flow, *, tokens: int) -> None:
        super().__init__()
        self.encoder = StaticTokenEncoder(flow, tokens=tokens)
        self.estimator = StaticEstimator(flow, tokens=tokens)
        self.width = flow.input_embedding.embedding_dim
        del self.encoder.embedding
        parts = [self.encoder.start_caches, *MEANFLOW_STEPS * [self.estimator.start_caches]]
        self.sizes = [len(part) for part in parts]
        self.starts = [torch.zeros_like(start, dtype=torch.float16) for part in parts for start in part]
        use_coreml_layers(self)

    def inputs(self) -> dict[str, Tensor]:
        x = torch.zeros(1, self.encoder.tokens + LOOKAHEAD_TOKENS, self.width, dtype=torch.float16)
        speaker = torch.zeros(1, 1, self.encoder.bands)
        caches = {f"{CACHE}{number}": start for number, start in enumerate(self.starts)}
        return {"x": x, "known": _integer(), "position": _integer(), "speaker": speaker, **caches}

    def outputs(self) -> dict[str, torch.dtype]:
        caches = {f"{NEXT}{number}": start.dtype for number, start in enumerate(self.starts)}
        return {"mel": torch.float32, **caches}

    def forward(
        self, x: Tensor, known: Tensor, position: Tensor, speaker: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        ends = list(accumulate(self.sizes))
        own, *of_steps = (
            PositionCaches(past[end - size : end]) for size, end in zip(self.sizes, ends, strict=True)
        )
        conditioning = self.encoder.encode(x, known, position, speaker, own)
        x = torch.zeros(1, self.estimator.frames, self.encoder.bands)
        for step, caches in enumerate(of_steps):
            x = self.estimator.advance(x, conditioning, known, position, torch.tensor([step]), caches)
        saved = [one for caches in (own, *of_steps) for one in caches.saved]
        return self.estimator.mel(x), *saved


class CoremlVocoder(CoremlModule):
    """A block of mel frames to samples; fixed_vocoder.py describes the inputs.

    Inputs: mel, noise, cache_NAME. Outputs: samples, next_NAME.
    """

    def __init__(self, vocoder: FrameVocoder, *, frames: int) -> None:
        super().__init__()
        self.fixed = FixedVocoder(vocoder, frames=frames)

    def inputs(self) -> dict[str, Tensor]:
        names = (name.replace(STATE, CACHE) for name in self.fixed.names()[0])
        return dict(zip(names, self.fixed.example(), strict=True))

    def outputs(self) -> dict[str, torch.dtype]:
        return {name.replace(STATE, NEXT): torch.float32 for name in self.fixed.names()[1]}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.fixed(*inputs)

    def graph(self) -> ExportedProgram:
        """Return the graph, with `FLOAT32_HANDLE` at each node that the pitch and the phase are computed by."""
        program = torch.export.export(self, self.example(), strict=False).run_decompositions({})
        found: set[Node] = set()
        waiting = list(self._pitch_and_phase(program))
        while waiting:
            if (node := waiting.pop()) not in found:
                found.add(node)
                node.meta["debug_handle"] = FLOAT32_HANDLE
                waiting += node.all_input_nodes
        return program

    def _pitch_and_phase(self, program: ExportedProgram) -> Iterator[Node]:
        """Yield the last nodes: the samples that `analysis` transforms, and the parts of the state.

        One of these parts is what the trunk sees of the pitch: coremltools computes pitch · 0.02 and pitch / 50, of
        which one advances the phase, by the same operation.
        """
        buffers = program.graph_signature.inputs_to_buffers
        for node in program.graph.nodes:
            if buffers.get(node.name, "").endswith(".analysis"):
                yield from (one for user in node.users for one in user.all_input_nodes if one is not node)
        results = program.graph.output_node().all_input_nodes
        for name, node in zip(self.outputs(), results, strict=True):
            if name.startswith((f"{NEXT}pitch", f"{NEXT}tone", f"{NEXT}voicing")):
                yield node


def _integer() -> Tensor:
    return torch.zeros(1, dtype=torch.int32)
