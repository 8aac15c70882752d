"""T3's steps on a CPU by OpenVINO, with weights of eight bits: the engine's Runner where that is the fastest.

A row of the pool owns as many blocks of positions as the longest utterance needs, one after another; who is
moved or kept has its blocks copied, whatever lies in them. They hold float16: half the memory, and an error
far below that of the weights. Rows that have no turn are not computed. A prompt is not read twice, as in
runner.py.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.accel.cpu.inputs import Floats, Heard, Tables, Turn, check_room, turned, zeros
from nightingale.accel.cpu.packed import MappedWeights, Packed
from nightingale.accel.cpu.vino_graph import VinoGraph
from nightingale.models.chatterbox.t3.model import T3

FOLLOW_S = 0.02
"""Between two looks at what has been read: some layers."""


class VinoRunner:
    def __init__(
        self,
        t3: T3,
        packed: Packed,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        threads: int | None = None,
    ) -> None:
        """t3: its embeddings are used, its layers are not (`without_backbone`). threads: of OpenVINO's own
        pool; as many as torch uses if not told."""
        self.t3, self.rows_per_slot, self.batched, self.capacity = t3, rows_per_slot, batched, capacity
        weights = packed.weights()
        compiled = _compiled(t3, weights.arrays, torch.get_num_threads() if threads is None else threads)
        self.request = compiled.create_infer_request()
        shapes = {
            entry.any_name: tuple(size.get_length() for size in list(entry.partial_shape)[1:])
            for entry in compiled.inputs
            if "_cache." in entry.any_name
        }
        self.block = next(iter(shapes.values()))[1]
        """Positions."""
        self.blocks = -(-capacity // self.block)
        """Of one row."""
        rows = slots * rows_per_slot
        self.pool = {name: zeros((rows * self.blocks, *shape), np.float16) for name, shape in shapes.items()}
        self._places = np.arange(rows * self.blocks, dtype=np.int32).reshape(rows, self.blocks)
        for name, part in self.pool.items():
            self.request.set_tensor(name, _shared(part))
        self._tables, self._heard, self._angles = Tables(t3), Heard(rows_per_slot), turned(t3, capacity)
        self.rows: list[int] = [0] * slots
        """rows[slot]: how many the utterance there uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: how many positions it remembers."""
        self._inputs: dict[int, _Inputs] = {}
        """Of steps, by their number of rows."""
        self._set: _Inputs | None = None
        """Those that the request reads now."""
        self._warm(weights)

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.pool.values())

    @torch.inference_mode()
    def begin(self, slot: int, prompt: Tensor) -> Tensor:
        """Read a prompt (rows, time, width) into a slot; scores of the first token (rows, vocab)."""
        rows, length = prompt.shape[:2]
        check_room(length, self.capacity)
        first = slot * self.rows_per_slot
        x = self._tables.positioned(prompt.float()).contiguous()
        scores = torch.empty(rows, self.t3.config.speech_vocab)
        for row in range(rows):
            known, kept = self._heard.longest_beginning(x[row])
            if kept is not None:
                own = self._own(first + row, known)
                for name, part in self.pool.items():
                    part[own] = kept[name][: own.stop - own.start]
            scores[row] = self._read(first + row, x[row, known:], known)
            memory = {name: part[self._own(first + row, length)].copy() for name, part in self.pool.items()}
            self._heard.keep(x[row], memory)
        self.rows[slot], self.lengths[slot] = rows, length
        return scores

    @torch.inference_mode()
    def step(self, turns: Sequence[Turn]) -> list[Tensor]:
        """Scores of the next token of each utterance, each (rows, vocab). All are taken, or none is."""
        for turn in turns:
            check_room(self.lengths[turn.slot] + 1, self.capacity)
        together = [turns] if self.batched else [[turn] for turn in turns]
        scores = [own for some in together for own in self._run(some)]
        for turn in turns:
            self.lengths[turn.slot] += 1
        return scores

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""
        for row in range(self.rows[source]):
            old = self._own(source * self.rows_per_slot + row, self.lengths[source])
            new = self._own(target * self.rows_per_slot + row, self.lengths[source])
            for part in self.pool.values():
                part[new] = part[old]
        self.rows[target], self.lengths[target] = self.rows[source], self.lengths[source]
        self.rows[source], self.lengths[source] = 0, 0

    def wipe(self, slot: int) -> None:
        """After a fault: nothing of the slot, nor of the prompts that were kept, is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first * self.blocks : (first + self.rows_per_slot) * self.blocks] = 0
        self._heard.kept.clear()

    def _warm(self, weights: MappedWeights) -> None:
        """The first pass lays all weights out anew. What it has read is let go while it runs, or for a
        moment they would be in memory twice."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(FOLLOW_S):
                weights.let_go()

        follower = threading.Thread(target=follow, name="nightingale-let-go")
        follower.start()
        try:
            self._read(0, torch.zeros(1, self.t3.config.backbone.width), 0)
        finally:
            done.set()
            follower.join()
            weights.let_go()

    def _run(self, turns: Sequence[Turn]) -> list[Tensor]:
        counts = [self.rows[turn.slot] for turn in turns]
        each = [turn for turn, count in zip(turns, counts, strict=True) for _ in range(count)]
        places = [
            turn.slot * self.rows_per_slot + row for turn in turns for row in range(self.rows[turn.slot])
        ]
        if len(each) not in self._inputs:
            self._inputs[len(each)] = _Inputs(self, rows=len(each), tokens=1)
        inputs = self._inputs[len(each)]
        past = [self.lengths[turn.slot] for turn in each]
        self._tables.embed(inputs.x, [turn.token for turn in each], [turn.position for turn in each], past)
        return list(torch.split(self._pass(inputs, places, past, past), counts))

    def _read(self, row: int, x: Tensor, known: int) -> Tensor:
        """Scores (vocab,) after x (time, width), which follows `known` others."""
        inputs = _Inputs(self, rows=1, tokens=len(x))
        inputs.x[:] = x.numpy()
        return self._pass(inputs, [row], [known], range(known, known + len(x)))[0]

    def _pass(self, inputs: _Inputs, rows: Sequence[int], past: Sequence[int], at: Sequence[int]) -> Tensor:
        """Scores (rows, vocab) after x was written. past: positions before each row's; at: of each token."""
        inputs.past_lens[:] = past
        inputs.block_indices.reshape(len(rows), -1)[:] = self._places[list(rows)]
        inputs.max_context_len[...] = max(at) + 1
        if self._angles is not None:
            for kind, angles in zip((inputs.cos, inputs.sin), self._angles, strict=True):
                np.take(angles, at, axis=0, out=kind[:, 0, 0])
        if self._set is not inputs:
            for name, tensor in inputs.tensors.items():
                self.request.set_tensor(name, tensor)
            self._set = inputs
        self.request.infer()
        return torch.from_numpy(self.request.get_output_tensor(0).data.copy())

    def _own(self, row: int, positions: int) -> slice:
        """The blocks with a row's first so many positions."""
        return slice(row * self.blocks, row * self.blocks + -(-positions // self.block))


class _Inputs:
    """The buffers of a pass over so many rows with so many tokens each, of which the last is scored."""

    def __init__(self, runner: VinoRunner, *, rows: int, tokens: int) -> None:
        backbone = runner.t3.config.backbone
        turn = (rows * tokens, 1, 1, backbone.width // backbone.heads)
        self.x: Floats = np.zeros((rows * tokens, backbone.width), np.float32)
        self.cos: Floats = np.zeros(turn, np.float32)
        self.sin: Floats = np.zeros(turn, np.float32)
        self.past_lens = np.zeros(rows, np.int32)
        self.block_indices = np.zeros(rows * runner.blocks, np.int32)
        self.max_context_len = np.zeros((), np.int32)
        begins = np.arange(rows + 1, dtype=np.int32)
        named: dict[str, NDArray[Any]] = {
            "x": self.x,
            "past_lens": self.past_lens,
            "subsequence_begins": begins * tokens,
            "block_indices": self.block_indices,
            "block_indices_begins": begins * runner.blocks,
            "max_context_len": self.max_context_len,
            "asked": np.arange(1, rows + 1, dtype=np.int64) * tokens - 1,
        }
        if runner._angles is not None:
            named |= {"cos": self.cos, "sin": self.sin}
        self.tensors = {name: _shared(value) for name, value in named.items()}


def _shared(array: NDArray[Any]) -> Any:
    """OpenVINO's face of an array: what is written into one is read in the other."""
    from openvino import Tensor as Shared

    return Shared(array, shared_memory=True)


def _compiled(t3: T3, weights: Mapping[str, NDArray[Any]], threads: int) -> Any:
    from openvino import Core

    # Inputs are rounded to eight bits too, by blocks that no weight's block is narrower than.
    group = min(codes.shape[-1] for name, codes in weights.items() if name.endswith(".codes"))
    wishes = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f16",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
        "INFERENCE_NUM_THREADS": threads,
        # The thread that asks computes too, and belongs to somebody else.
        "ENABLE_CPU_PINNING": False,
    }
    return Core().compile_model(VinoGraph(t3.config, weights).model(), "CPU", wishes)
