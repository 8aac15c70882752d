"""T3's steps on a CPU with weights of eight bits: the engine's Runner over a packed graph.

As in the plain runner a slot is the memory of one utterance, two rows where it may be guided. The pool is one
buffer per layer; a step binds the rows it needs as they lie there, and the graph writes into them.

A prompt is not read twice. What a voice puts before the text is the same in every prompt of it, and in both
rows of a guided one; and the row that is not told the text differs between two prompts only in length. So the
rows of the latest prompt are kept, and of a new one only what follows its longest common beginning is read.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.accel.cpu.packed import Packed
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.backbone_llama import LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3
from nightingale.nn.rope import rotations

Floats = NDArray[np.float32]
SPARE = 1
"""A position past the capacity, where rows that take no part in a step may write."""


class Turn(Protocol):
    """As in engine/runner.py."""

    @property
    def slot(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def position(self) -> int: ...


class CpuRunner:
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
        """threads: of the graph's own pool; as many as torch uses if not told."""
        self.t3, self.rows_per_slot, self.capacity, self.batched = t3, rows_per_slot, capacity, batched
        self.session = open_session(packed, torch.get_num_threads() if threads is None else threads)
        backbone = t3.config.backbone
        shape = (slots * rows_per_slot, backbone.heads, capacity + SPARE, backbone.width // backbone.heads)
        self.pool: dict[str, Floats] = {
            f"{name}.{layer}": _zeros(shape)
            for layer in range(backbone.layers)
            for name in ("keys", "values")
        }
        self.turns = _turns(t3, capacity + SPARE)
        self.rows: list[int] = [0] * slots
        """rows[slot]: how many the utterance there uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: how many positions it remembers."""
        self._bound: dict[tuple[int, int], _Bound] = {}
        self._kept: list[tuple[Tensor, dict[str, Floats]]] = []

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.pool.values())

    @torch.inference_mode()
    def begin(self, slot: int, prompt: Tensor) -> Tensor:
        """Read a prompt (rows, time, width) into a slot; scores of the first token (rows, vocab)."""
        rows, length = prompt.shape[:2]
        self._check_room(length)
        first = slot * self.rows_per_slot
        x = self._with_positions(prompt.float(), torch.arange(length)).contiguous()
        scores = torch.empty(rows, self.t3.config.speech_vocab)
        for row in range(rows):
            known, kept = self._longest_beginning(x[row])
            for name, part in self.pool.items():
                part[first + row, :, :known] = kept[name][:, :known] if kept else 0
            scores[row] = self._read(first + row, x[row : row + 1, known:], known)
            self._keep(first + row, x[row])
        self.rows[slot], self.lengths[slot] = rows, length
        return scores

    @torch.inference_mode()
    def step(self, turns: Sequence[Turn]) -> list[Tensor]:
        """Scores of the next token of each utterance, each (rows, vocab). All are taken, or none is."""
        for turn in turns:
            self._check_room(self.lengths[turn.slot] + 1)
        if self.batched and len(turns) > 1:
            scores = self._run(0, max(turn.slot for turn in turns) + 1, turns)
            starts = [turn.slot * self.rows_per_slot for turn in turns]
            out = [
                scores[start : start + self.rows[turn.slot]]
                for start, turn in zip(starts, turns, strict=True)
            ]
        else:
            out = [self._run(turn.slot, 1, [turn]) for turn in turns]
        for turn in turns:
            self.lengths[turn.slot] += 1
        return out

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""
        rows, length = self.rows[source], self.lengths[source]
        old, new = source * self.rows_per_slot, target * self.rows_per_slot
        for part in self.pool.values():
            part[new : new + rows, :, :length] = part[old : old + rows, :, :length]
        self.rows[target], self.lengths[target] = rows, length
        self.rows[source], self.lengths[source] = 0, 0

    def wipe(self, slot: int) -> None:
        """After a fault: nothing of the slot, nor of the prompts that were kept, is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._kept.clear()

    def _run(self, slot: int, slots: int, turns: Sequence[Turn]) -> Tensor:
        """One token more for `slots` slots from `slot` on; what those without a turn compute is not read."""
        each = self.rows_per_slot if slots > 1 else self.rows[slot]
        bound = self._bind(slot * self.rows_per_slot, slots * each)
        own = {turn.slot: turn for turn in turns}
        ids, at, last = [], [], []
        for number in range(slot, slot + slots):
            turn = own.get(number)
            ids += [turn.token if turn else 0] * each
            at += [turn.position if turn else 0] * each
            last += [self.lengths[number]] * each
        embedded = self.t3.embed_speech_at(torch.tensor(ids)[:, None], torch.tensor(at)[:, None])
        bound.x[:] = self._with_positions(embedded, torch.tensor(last)[:, None]).numpy()
        bound.last[:] = last
        bound.total[:] = max(last) + 1
        self.session.run_with_iobinding(bound.binding)
        return torch.from_numpy(bound.scores.copy())

    def _read(self, row: int, x: Tensor, known: int) -> Tensor:
        """Scores (1, vocab) after x (1, time, width), which follows `known` positions of the row."""
        bound = _Bound(self, row, 1, x.numpy())
        bound.last[:] = known + x.shape[1] - 1
        bound.total[:] = known + x.shape[1]
        self.session.run_with_iobinding(bound.binding)
        return torch.from_numpy(bound.scores)

    def _bind(self, row: int, rows: int) -> _Bound:
        """Buffers are bound once for each group of rows, and then only written."""
        if (row, rows) not in self._bound:
            x = np.zeros((rows, 1, self.t3.config.backbone.width), np.float32)
            self._bound[row, rows] = _Bound(self, row, rows, x)
        return self._bound[row, rows]

    def _with_positions(self, x: Tensor, at: Tensor) -> Tensor:
        """GPT-2's backbone begins by adding a learned position; the graph begins after it."""
        tfmr = self.t3.tfmr
        return x if isinstance(tfmr, LlamaBackbone) else x + tfmr.wpe(at)

    def _longest_beginning(self, x: Tensor) -> tuple[int, dict[str, Floats] | None]:
        """How many positions of x (time, width) a kept row begins with, and what that row remembers of them.

        At least one position is left to compute: it gives the scores.
        """
        best, found = 0, None
        for other, kept in self._kept:
            shared = min(len(x) - 1, len(other))
            differs = (x[:shared] != other[:shared]).any(-1).nonzero()
            shared = int(differs[0]) if len(differs) else shared
            if shared > best:
                best, found = shared, kept
        return best, found

    def _keep(self, row: int, x: Tensor) -> None:
        kept = {name: part[row, :, : len(x)].copy() for name, part in self.pool.items()}
        self._kept = [*self._kept, (x.clone(), kept)][-self.rows_per_slot :]

    def _check_room(self, positions: int) -> None:
        if positions > self.capacity:
            raise MemoryFull(
                "the utterance outgrew its memory",
                got=f"{positions} positions",
                allowed=f"at most {self.capacity}",
                fix="Speak a shorter sentence, or open the session with a larger capacity.",
            )


class _Bound:
    """The buffers of a run over `rows` rows from `row` on, bound to the graph's inputs and outputs."""

    def __init__(self, runner: CpuRunner, row: int, rows: int, x: Floats) -> None:
        self.x = x
        self.last, self.total = np.zeros(rows, np.int32), np.zeros(1, np.int32)
        self.scores: Floats = np.zeros((rows, runner.t3.config.speech_vocab), np.float32)
        self.binding = runner.session.io_binding()
        for name, value in {"x": x, "last": self.last, "total": self.total, **runner.turns}.items():
            self._put(self.binding.bind_input, name, value)
        self._put(self.binding.bind_output, "scores", self.scores)
        for name, part in runner.pool.items():
            self._put(self.binding.bind_input, name, part[row : row + rows])
            self._put(self.binding.bind_output, f"new.{name}", part[row : row + rows])

    def _put(self, bind: Any, name: str, value: NDArray[Any]) -> None:
        bind(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)


def _zeros(shape: tuple[int, ...]) -> Floats:
    """Zeros that take no memory until they are written, and then only what is written.

    An utterance fills the beginning of each head's stretch of its row. In huge pages, which numpy asks for in
    large arrays, the stretches would take their whole capacity at once: half a gigabyte for two rows.
    """
    memory = mmap.mmap(-1, 4 * math.prod(shape))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)


def _turns(t3: T3, positions: int) -> dict[str, Floats]:
    """Rotary angles of all positions, as the attention operator takes them: both halves of a head turn alike,
    so it takes one."""
    if not isinstance(t3.tfmr, LlamaBackbone):
        return {}
    cos, sin = rotations(t3.tfmr.inverse, torch.arange(positions), torch.float32)
    half = cos.shape[-1] // 2
    return {"cos": cos[:, :half].contiguous().numpy(), "sin": sin[:, :half].contiguous().numpy()}


def open_session(packed: Packed, threads: int) -> Any:
    """ONNX Runtime over the graph, with threads of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads wait for the next operation by spinning, but not for the next step: others need the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(packed.graph), options, providers=["CPUExecutionProvider"])
