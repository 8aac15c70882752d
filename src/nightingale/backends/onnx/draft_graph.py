"""The draft head of speculative decoding by ONNX Runtime, in int8: a draft must be cheap, not exact.

A chain of several drafts is one call: each token is sampled inside the graph, with the random numbers that
the decoder will use for it, and its embedding is fed to the next. Of the sampling rules the graph knows
temperature and min-p; with others its drafts are accepted less often. The reference of a single draft is
`TorchDraftHead` in backends/torch/draft_heads.py (tests/backends/onnx/test_float32_runner.py).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale.backends.onnx.graph import GraphBuilder
from nightingale.backends.onnx.protobuf import FLOAT, INT64
from nightingale.backends.onnx.runner import bind, open_session
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.draft_head import TAPS, DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.types import Sampling

CANDIDATES: Final = 32
"""The most likely tokens, of which one is sampled; the usual min-p rarely leaves more."""
MIN_MIN_P: Final = 1e-30
"""A min-p of zero is raised to this one, whose logarithm is finite."""


def open_draft_head(t3: T3, head: DraftHead, *, threads: int, longest: int) -> OnnxDraftHead:
    """Open a draft head, with chains of up to `longest` tokens where embeddings depend on the token alone."""
    if t3.config.learned_positions is not None:
        return OnnxDraftHead(t3, head, threads=threads)
    return OnnxDraftChain(t3, head, threads=threads, longest=longest)


class OnnxDraftHead:
    """Run a draft head on ONNX Runtime, one token at a time."""

    def __init__(self, t3: T3, head: DraftHead, *, threads: int) -> None:
        self._t3, self._head = t3, head
        self._session = open_session(_DraftGraph(t3, head).single(), threads)

    @torch.inference_mode()
    def start(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._head.start(torch.from_numpy(hidden)).numpy()

    @torch.inference_mode()
    def step(
        self, state: NDArray[np.float32], token: int, position: int
    ) -> tuple[NDArray[np.float32], Logits]:
        embedding = self._t3.embed_speech(torch.full((len(state), 1), token), position)[:, 0]
        inputs = {"hidden": state, "embedding": embedding.numpy()}
        following, logits = self._session.run(["hidden.1", "logits.1"], inputs)
        return following, logits


class OnnxDraftChain(OnnxDraftHead):
    """A draft head that also proposes several tokens in one call; all graphs are opened beforehand."""

    def __init__(self, t3: T3, head: DraftHead, *, threads: int, longest: int) -> None:
        super().__init__(t3, head, threads=threads)
        self._chains = [
            _Chain(open_session(_DraftGraph(t3, head).chain(count), threads), count, head.width)
            for count in range(1, longest + 1)
        ]

    def chain(
        self, hidden: NDArray[np.float32], token: int, uniforms: NDArray[np.float64], sampling: Sampling
    ) -> list[int]:
        """Return a token for each row of `uniforms` (n, vocab), after a token and its hidden state."""
        return self._chains[len(uniforms) - 1].run(hidden, token, uniforms, sampling)


class _Chain:
    """Buffers that are bound to the graph of a chain once, and then only written."""

    def __init__(self, session: Any, count: int, width: int) -> None:
        self._session, self._binding = session, session.io_binding()
        vocab = next(given.shape[1] for given in session.get_inputs() if given.name == "uniforms")
        self._inputs: dict[str, NDArray[Any]] = {
            "hidden_states": np.zeros((1, (1 + TAPS) * width), np.float32),
            "uniforms": np.zeros((count, vocab), np.float32),
            "inverse_temperature": np.zeros(1, np.float32),
            "log_min_p": np.zeros(1, np.float32),
            "token": np.zeros(1, np.int64),
        }
        self._tokens = np.zeros(count, np.int64)
        for name, value in self._inputs.items():
            bind(self._binding.bind_input, name, value)
        bind(self._binding.bind_output, "tokens", self._tokens)

    def run(
        self, hidden: NDArray[np.float32], token: int, uniforms: NDArray[np.float64], sampling: Sampling
    ) -> list[int]:
        values: dict[str, Any] = {
            "hidden_states": hidden,
            "uniforms": uniforms,
            "inverse_temperature": 1 / sampling.temperature,
            "log_min_p": math.log(max(sampling.min_p, MIN_MIN_P)),
            "token": token,
        }
        for name, value in values.items():
            self._inputs[name][:] = value
        self._session.run_with_iobinding(self._binding)
        return [int(token) for token in self._tokens]


class _DraftGraph(GraphBuilder):
    def __init__(self, t3: T3, head: DraftHead) -> None:
        weights = {**head.state_dict(), "head": t3.speech_head.weight.detach()}
        self._has_bias = t3.speech_head.bias is not None
        if self._has_bias:
            weights["head.bias"] = t3.speech_head.bias.detach()
        # Names of a graph are unique, so those of draft n begin with "n/"; its weights are shared.
        super().__init__(lambda name: weights[name.rpartition("/")[2]], int8=True)
        self._embedding, self._blocks = t3.speech_emb.weight.detach(), len(head.blocks)
        self._width, self._vocab = head.width, t3.config.speech_vocab

    def single(self) -> bytes:
        for name in ("hidden", "embedding"):
            self.input(name, FLOAT, ("rows", self._width))
        self._draft(1, "hidden", "embedding")
        self.output("hidden.1", FLOAT, ("rows", self._width))
        self.output("logits.1", FLOAT, ("rows", self._vocab))
        return self.model()

    def chain(self, count: int) -> bytes:
        self.input("hidden_states", FLOAT, (1, (1 + TAPS) * self._width))
        self.input("token", INT64, (1,))
        self.input("uniforms", FLOAT, (count, self._vocab))
        self.input("inverse_temperature", FLOAT, (1,))
        self.input("log_min_p", FLOAT, (1,))
        table = self.weight("speech_embedding", FLOAT, self._embedding)
        self.weight("minus_infinity", FLOAT, torch.tensor([-math.inf]))
        self.weight("axis_0", INT64, torch.tensor([0]))
        self.weight("candidates", INT64, torch.tensor([min(CANDIDATES, self._vocab)]))
        numbers = range(1, count + 1)
        self.node("Split", ["uniforms"], [f"uniforms.{n}" for n in numbers], axis=0, num_outputs=count)
        hidden, token, tokens = self._begin(), "token", []
        for n in numbers:
            hidden, logits = self._draft(n, hidden, self.node("Gather", [table, token], axis=0))
            token = self._sample(logits, f"uniforms.{n}")
            tokens.append(token)
        self.node("Concat", tokens, ["tokens"], axis=0)
        self.output("tokens", INT64, (count,))
        return self.model()

    def _begin(self) -> str:
        """Add what `DraftHead.begin` computes."""
        sizes = self.weight("sizes", INT64, torch.tensor([self._width, TAPS * self._width]))
        self.node("Split", ["hidden_states", sizes], ["last", "streams"], axis=-1)
        normed, _ = self.norm("taps_norm", "streams", "")
        return self.node("Add", ["last", self.linear("taps_proj", normed, [self.source("taps_proj.weight")])])

    def _draft(self, number: int, hidden: str, embedding: str) -> tuple[str, str]:
        at = f"{number}/"
        both = self.node("Concat", [hidden, embedding], axis=-1)
        stream, added = self.linear(f"{at}in_proj", both, [self.source("in_proj.weight")]), ""
        for block in range(self._blocks):
            normed, stream = self.norm(f"{at}blocks.{block}.norm", stream, added)
            added = self.gated_mlp(f"{at}blocks.{block}.", normed)
        following, _ = self.norm(f"{at}norm", stream, added, out=f"hidden.{number}")
        bias = f"{at}head.bias" if self._has_bias else None
        return following, self.linear(f"logits.{number}", following, [self.source("head")], bias)

    def _sample(self, logits: str, uniforms: str) -> str:
        """Sample by the exponential race of decoding/sampling.py, in logarithms.

        token = argmax(logit / temperature - log(-log(uniform))) over the candidates that min-p leaves.
        """
        top = f"{logits}.top"
        self.node("TopK", [logits, "candidates"], [top, f"{top}.ids"], axis=-1, sorted=0)
        scaled = self.node("Mul", [top, "inverse_temperature"])
        threshold = self.node("Add", [self.node("ReduceMax", [scaled], keepdims=1), "log_min_p"])
        chosen = self.node("GatherElements", [uniforms, f"{top}.ids"], axis=1)
        log_arrival = self.node("Log", [self.node("Neg", [self.node("Log", [chosen])])])
        race = self.node("Sub", [scaled, log_arrival])
        race = self.node("Where", [self.node("Less", [scaled, threshold]), "minus_infinity", race])
        winner = self.node("ArgMax", [race], axis=-1, keepdims=1)
        return self.node("Squeeze", [self.node("GatherElements", [f"{top}.ids", winner], axis=1), "axis_0"])
