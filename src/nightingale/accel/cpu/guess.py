"""Guesses at T3's next thoughts by ONNX Runtime, in eight bits: a guess need not be exact, only cheap.

Several guesses in a row are one call: each is drawn inside of the graph, by the random numbers that the
utterance will draw it by, and its embedding goes into the next. Of the rules of sampling the graph knows the
temperature and min-p; where others are set, its guesses are right less often. The twin of a single guess is
`PlainGuess` in engine/drafts.py (tests/accel/test_cpu_exact.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.accel.cpu.graph import Writer
from nightingale.accel.cpu.onnx_file import FLOAT, INT64
from nightingale.accel.cpu.runner import open_session
from nightingale.models.chatterbox.t3.guess import GuessHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.values import Sampling

LEAST = 1e-30
"""Of the share of the likeliest that is kept: where nothing is dropped its logarithm must still be finite."""


class CpuGuess:
    """(rows, width) thoughts and embeddings of what was drawn of them -> the next thoughts, and scores."""

    def __init__(self, t3: T3, head: GuessHead, *, threads: int) -> None:
        self._t3, self._head, self._threads = t3, head, threads
        self._alone = open_session(_Guesses(t3, head).one(), threads)
        self._chains: dict[int, Any] = {}

    def __call__(self, thought: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        given = {"thought": thought.numpy(), "said": said.numpy()}
        following, scores = self._alone.run(["thought.1", "scores.1"], given)
        return torch.from_numpy(following), torch.from_numpy(scores)

    def chain(
        self, thought: Tensor, token: int, chances: list[NDArray[np.float64]], sampling: Sampling
    ) -> list[int]:
        """So many tokens as there are chances of draws, each (vocab,), after a token drawn of a thought (1,
        width). Only where embeddings depend on nothing but the token."""
        count = len(chances)
        if count not in self._chains:
            self._chains[count] = open_session(_Guesses(self._t3, self._head).several(count), self._threads)
        given = {
            "thought": thought.numpy(),
            "token": np.array([token], np.int64),
            "missed": np.array([1 - chance for chance in chances], np.float32),
            "heat": np.array([1 / sampling.temperature], np.float32),
            "reach": np.array([math.log(max(sampling.min_p, LEAST))], np.float32),
        }
        (tokens,) = self._chains[count].run(["tokens"], given)
        return [int(token) for token in tokens]


class _Guesses(Writer):
    """The graphs of a T3's guesses."""

    def __init__(self, t3: T3, head: GuessHead) -> None:
        weights = {**head.state_dict(), "head": t3.speech_head.weight.detach()}
        self._biased = t3.speech_head.bias is not None
        if self._biased:
            weights["head.bias"] = t3.speech_head.bias.detach()
        super().__init__(lambda name: weights[name.rpartition("/")[2]], rounded=True)
        self._embedding, self._blocks = t3.speech_emb.weight.detach(), len(head.blocks)
        self._width, self._vocab = head.width, t3.config.speech_vocab

    def one(self) -> bytes:
        g = self.graph
        for name in ("thought", "said"):
            g.input(name, FLOAT, ("rows", self._width))
        self._guess(1, "thought", "said")
        g.output("thought.1", FLOAT, ("rows", self._width))
        g.output("scores.1", FLOAT, ("rows", self._vocab))
        return g.model()

    def several(self, count: int) -> bytes:
        g = self.graph
        g.input("thought", FLOAT, (1, self._width))
        g.input("token", INT64, (1,))
        g.input("missed", FLOAT, (count, self._vocab))
        g.input("heat", FLOAT, (1,))
        g.input("reach", FLOAT, (1,))
        table = self._large("embedding", FLOAT, self._embedding)
        g.small("nothing", FLOAT, (1,), np.array([-np.inf], np.float32).tobytes())
        g.node("Log", ["missed"], ["sooner"])
        g.node("Neg", ["sooner"], ["later"])
        g.node("Log", ["later"], ["waits"])
        every = range(1, count + 1)
        each = {"axis": 0, "num_outputs": count}
        g.node("Split", ["waits"], [f"waits.{n}" for n in every], attributes=each)
        thought, token = "thought", "token"
        for n in every:
            said = g.node("Gather", [table, token], [f"said.{n}"], attributes={"axis": 0})
            thought, scores = self._guess(n, thought, said)
            token = self._draw(n, scores)
        g.node("Concat", [f"token.{n}" for n in every], ["tokens"], attributes={"axis": 0})
        g.output("tokens", INT64, (count,))
        return g.model()

    def _guess(self, number: int, thought: str, said: str) -> tuple[str, str]:
        at = f"{number}/"  # names of a graph are unique; weights are found by what follows
        self.graph.node("Concat", [thought, said], [f"{at}both"], attributes={"axis": -1})
        stream = self.linear(f"{at}inward", f"{at}both", [self.source("inward.weight")], None)
        added = ""
        for block in range(self._blocks):
            normed, stream = self.norm(f"{at}blocks.{block}.norm", stream, added)
            added = self.gated(f"{at}blocks.{block}.", normed)
        following, _ = self.norm(f"{at}norm", stream, added, out=f"thought.{number}")
        bias = f"{at}head.bias" if self._biased else None
        return following, self.linear(f"scores.{number}", following, [self.source("head")], bias)

    def _draw(self, number: int, scores: str) -> str:
        """The first in the race (engine/randomness.py), by logarithms."""
        g, at = self.graph, f"draw.{number}."
        g.node("Mul", [scores, "heat"], [at + "warm"])
        g.node("ReduceMax", [at + "warm"], [at + "most"], attributes={"keepdims": 1})
        g.node("Add", [at + "most", "reach"], [at + "least"])
        g.node("Less", [at + "warm", at + "least"], [at + "dropped"])
        g.node("Sub", [at + "warm", f"waits.{number}"], [at + "racing"])
        g.node("Where", [at + "dropped", "nothing", at + "racing"], [at + "left"])
        return g.node("ArgMax", [at + "left"], [f"token.{number}"], attributes={"axis": -1, "keepdims": 0})
