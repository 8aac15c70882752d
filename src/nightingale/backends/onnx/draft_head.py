"""Guesses at T3's next thoughts by ONNX Runtime, in eight bits: a guess need not be exact, only cheap.

Several guesses in a row are one call: each is drawn inside of the graph, by the random numbers that the
utterance will draw it by, and its embedding goes into the next. Of the rules of sampling the graph knows the
temperature and min-p; where others are set, its guesses are right less often. The twin of a single guess is
`TorchDraftHead` in backends/torch/drafts.py (tests/accel/test_cpu_exact.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.onnx.graph import Writer
from nightingale.backends.onnx.protobuf import FLOAT, INT64
from nightingale.backends.onnx.runner import bind, open_session
from nightingale.models.chatterbox.t3.draft_head import TAPS, DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling

RACING = 32
"""Ids that a guess is drawn from, the likeliest: with the usual min-p there are rarely more."""
LEAST = 1e-30
"""Of the share of the likeliest that is kept: where nothing is dropped its logarithm must still be finite."""


class OnnxDraftHead:
    """(rows, width) thoughts and embeddings of what was drawn of them -> the next thoughts, and scores."""

    def __init__(self, t3: T3, head: DraftHead, *, threads: int, longest: int) -> None:
        """longest: guesses in a row, at most. All is made ready here: a first sound must not wait."""
        self._head, self._alone = head, open_session(_Guesses(t3, head).one(), threads)
        self._chains = [
            _Chain(open_session(_Guesses(t3, head).several(count), threads), count, head.width)
            for count in range(1, longest + 1)
        ]

    def begin(self, thoughts: Tensor) -> Tensor:
        return self._head.start(thoughts)

    def __call__(self, thought: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        given = {"thought": thought.numpy(), "said": said.numpy()}
        following, scores = self._alone.run(["thought.1", "scores.1"], given)
        return torch.from_numpy(following), torch.from_numpy(scores)

    def chain(
        self, thoughts: Tensor, token: int, chances: list[NDArray[np.float64]], sampling: Sampling
    ) -> list[int]:
        """So many tokens as there are chances of draws, each (vocab,), after a token drawn of T3's thoughts
        (1, …). Only where embeddings depend on nothing but the token."""
        return self._chains[len(chances) - 1].run(thoughts, token, chances, sampling)


class _Chain:
    """Buffers bound to a graph of several guesses: they are only written, for each call is a short one."""

    def __init__(self, session: Any, count: int, width: int) -> None:
        self._session, self._binding = session, session.io_binding()
        vocab = next(given.shape[1] for given in session.get_inputs() if given.name == "missed")
        self._thoughts = np.zeros((1, (1 + TAPS) * width), np.float32)
        self._missed = np.zeros((count, vocab), np.float32)
        self._heat, self._reach = np.zeros(1, np.float32), np.zeros(1, np.float32)
        self._token, self._tokens = np.zeros(1, np.int64), np.zeros(count, np.int64)
        given: dict[str, NDArray[Any]] = {
            "thoughts": self._thoughts,
            "missed": self._missed,
            "heat": self._heat,
            "reach": self._reach,
            "token": self._token,
        }
        for name, value in given.items():
            bind(self._binding.bind_input, name, value)
        bind(self._binding.bind_output, "tokens", self._tokens)

    def run(
        self, thoughts: Tensor, token: int, chances: list[NDArray[np.float64]], sampling: Sampling
    ) -> list[int]:
        self._thoughts[:], self._token[:] = thoughts.numpy(), token
        for row, chance in zip(self._missed, chances, strict=True):
            np.subtract(1.0, chance, out=row, casting="same_kind")
        self._heat[:], self._reach[:] = 1 / sampling.temperature, math.log(max(sampling.min_p, LEAST))
        self._session.run_with_iobinding(self._binding)
        return [int(token) for token in self._tokens]


class _Guesses(Writer):
    """The graphs of a T3's guesses."""

    def __init__(self, t3: T3, head: DraftHead) -> None:
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
        g.input("thoughts", FLOAT, (1, (1 + TAPS) * self._width))
        g.input("token", INT64, (1,))
        g.input("missed", FLOAT, (count, self._vocab))
        g.input("heat", FLOAT, (1,))
        g.input("reach", FLOAT, (1,))
        table = self._weight("embedding", FLOAT, self._embedding)
        g.small("nothing", FLOAT, (1,), np.array([-np.inf], np.float32).tobytes())
        g.small("first_axis", INT64, (1,), np.array([0], np.int64).tobytes())
        g.small("few", INT64, (1,), np.array([min(RACING, self._vocab)], np.int64).tobytes())
        every = range(1, count + 1)
        each = {"axis": 0, "num_outputs": count}
        g.node("Split", ["missed"], [f"missed.{n}" for n in every], attributes=each)
        thought, token = self._begin(), "token"
        for n in every:
            said = g.node("Gather", [table, token], [f"said.{n}"], attributes={"axis": 0})
            thought, scores = self._guess(n, thought, said)
            token = self._draw(n, scores)
        g.node("Concat", [f"token.{n}" for n in every], ["tokens"], attributes={"axis": 0})
        g.output("tokens", INT64, (count,))
        return g.model()

    def _begin(self) -> str:
        g, sizes = self.graph, np.array([self._width, TAPS * self._width], np.int64)
        g.small("sizes", INT64, sizes.shape, sizes.tobytes())
        g.node("Split", ["thoughts", "sizes"], ["thought", "on_the_way"], attributes={"axis": -1})
        normed, _ = self.norm("taps_norm", "on_the_way", "")
        self.linear("outset", normed, [self.source("taps_proj.weight")], None)
        return g.node("Add", ["thought", "outset"], ["begun"])

    def _guess(self, number: int, thought: str, said: str) -> tuple[str, str]:
        at = f"{number}/"  # names of a graph are unique; weights are found by what follows
        self.graph.node("Concat", [thought, said], [f"{at}both"], attributes={"axis": -1})
        stream = self.linear(f"{at}inward", f"{at}both", [self.source("in_proj.weight")], None)
        added = ""
        for block in range(self._blocks):
            normed, stream = self.norm(f"{at}blocks.{block}.norm", stream, added)
            added = self.gated(f"{at}blocks.{block}.", normed)
        following, _ = self.norm(f"{at}norm", stream, added, out=f"thought.{number}")
        bias = f"{at}head.bias" if self._biased else None
        return following, self.linear(f"scores.{number}", following, [self.source("head")], bias)

    def _draw(self, number: int, scores: str) -> str:
        """The first in the race (decoding/random.py), by logarithms."""
        g, at = self.graph, f"draw.{number}."
        g.node("TopK", [scores, "few"], [at + "scores", at + "ids"], attributes={"axis": -1, "sorted": 0})
        g.node("Mul", [at + "scores", "heat"], [at + "warm"])
        g.node("ReduceMax", [at + "warm"], [at + "most"], attributes={"keepdims": 1})
        g.node("Add", [at + "most", "reach"], [at + "least"])
        g.node("Less", [at + "warm", at + "least"], [at + "dropped"])
        g.node("GatherElements", [f"missed.{number}", at + "ids"], [at + "missed"], attributes={"axis": 1})
        g.node("Log", [at + "missed"], [at + "sooner"])
        g.node("Neg", [at + "sooner"], [at + "later"])
        g.node("Log", [at + "later"], [at + "waits"])
        g.node("Sub", [at + "warm", at + "waits"], [at + "racing"])
        g.node("Where", [at + "dropped", "nothing", at + "racing"], [at + "left"])
        g.node("ArgMax", [at + "left"], [at + "first"], attributes={"axis": -1, "keepdims": 1})
        g.node("GatherElements", [at + "ids", at + "first"], [at + "id"], attributes={"axis": 1})
        return g.node("Squeeze", [at + "id", "first_axis"], [f"token.{number}"])
