"""The draft head of speculative decoding by ONNX Runtime, in int8: a draft must be cheap, not exact.

A chain of several drafts is one call: each token is sampled inside the graph, with the random numbers that
the decoder will use for it, and its embedding is fed to the next. Of the sampling rules the graph knows
temperature and min-p; with others its drafts are accepted less often. The reference of a single draft is
`TorchDraftHead` in backends/torch/draft_heads.py (tests/backends/onnx/test_float32_runner.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.embeddings import Embeddings
from nightingale.backends.onnx.numpy_weights import Floats, RowQuantized, dequantize
from nightingale.backends.onnx.protobuf import FLOAT, INT64
from nightingale.backends.onnx.streaming_session import Binding, create_session
from nightingale.backends.onnx.t3_graph import EPSILON, TransformerGraph
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import TAPS, T3Config
from nightingale.types import Sampling

CANDIDATES: Final = 32
"""The most likely tokens, of which one is sampled; the usual min-p rarely leaves more."""
MIN_MIN_P: Final = 1e-30
"""A min-p of zero is raised to this one, whose logarithm is finite."""
HeadWeights = Mapping[str, Floats | RowQuantized]
"""The weights of a draft head, and those of `shared_weights`."""


def shared_weights(config: T3Config) -> list[str]:
    """Return the names of the weights of T3 that a draft head reads."""
    return ["speech_emb.weight", "speech_head.weight", *(["speech_head.bias"] if config.head_bias else [])]


def open_draft_head(
    config: T3Config, weights: HeadWeights, embeddings: Embeddings, *, threads: int, longest: int
) -> OnnxDraftHead:
    """Open a draft head, with chains of up to `longest` tokens where embeddings depend on the token alone."""
    if config.learned_positions is not None:
        return OnnxDraftHead(config, weights, embeddings, threads=threads)
    return OnnxDraftChain(config, weights, embeddings, threads=threads, longest=longest)


class OnnxDraftHead:
    """Run a draft head on ONNX Runtime, one token at a time."""

    def __init__(
        self, config: T3Config, weights: HeadWeights, embeddings: Embeddings, *, threads: int
    ) -> None:
        self._embeddings, self._width = embeddings, config.backbone.width
        self._taps = [dequantize(weights[f"taps_{name}.weight"]) for name in ("norm", "proj")]
        self._session = create_session(_DraftGraph(config, weights).single(), threads)

    def start(self, hidden: Floats) -> Floats:
        last, taps = hidden[:, : self._width], hidden[:, self._width :]
        gain, proj = self._taps
        normed = gain * taps / np.sqrt(np.square(taps).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        state: Floats = last + normed @ proj.T
        return state

    def step(self, state: Floats, token: int, position: int) -> tuple[Floats, Logits]:
        embedding = self._embeddings.speech([token] * len(state), [position] * len(state))
        following, logits = self._session.run(None, {"hidden": state, "embedding": embedding})
        return following, logits


class OnnxDraftChain(OnnxDraftHead):
    """A draft head that also proposes several tokens in one call; all graphs are opened beforehand."""

    def __init__(
        self, config: T3Config, weights: HeadWeights, embeddings: Embeddings, *, threads: int, longest: int
    ) -> None:
        super().__init__(config, weights, embeddings, threads=threads)
        self._chains = []
        for count in range(1, longest + 1):
            inputs: dict[str, NDArray[Any]] = {
                "hidden_states": np.zeros((1, (1 + TAPS) * self._width), np.float32),
                "uniforms": np.zeros((count, config.speech_vocab), np.float32),
                "inverse_temperature": np.zeros(1, np.float32),
                "log_min_p": np.zeros(1, np.float32),
                "token": np.zeros(1, np.int64),
            }
            session = create_session(_DraftGraph(config, weights).chain(count), threads)
            self._chains.append(Binding(session, inputs, {"tokens": np.zeros(count, np.int64)}))

    def chain(
        self, hidden: Floats, token: int, uniforms: NDArray[np.float64], sampling: Sampling
    ) -> list[int]:
        """Return a token for each row of `uniforms` (n, vocab), after a token and its hidden state."""
        bound = self._chains[len(uniforms) - 1]
        values: dict[str, Any] = {
            "hidden_states": hidden,
            "uniforms": uniforms,
            "inverse_temperature": 1 / sampling.temperature,
            "log_min_p": math.log(max(sampling.min_p, MIN_MIN_P)),
            "token": token,
        }
        for name, value in values.items():
            bound.arrays[name][:] = value
        bound.run()
        return [int(token) for token in bound.arrays["tokens"]]


class _DraftGraph(TransformerGraph):
    def __init__(self, config: T3Config, weights: HeadWeights) -> None:
        super().__init__(weights, int8=True)
        self._width, self._vocab = config.backbone.width, config.speech_vocab
        self._bias = "speech_head.bias" if config.head_bias else ""
        self._blocks = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})

    def single(self) -> _DraftGraph:
        for name in ("hidden", "embedding"):
            self.input(name, FLOAT, ("rows", self._width))
        hidden, logits = self._draft("hidden", "embedding")
        self.output(hidden, FLOAT, ("rows", self._width))
        self.output(logits, FLOAT, ("rows", self._vocab))
        return self

    def chain(self, count: int) -> _DraftGraph:
        self.input("hidden_states", FLOAT, (1, (1 + TAPS) * self._width))
        self.input("token", INT64, (1,))
        self.input("uniforms", FLOAT, (count, self._vocab))
        self.input("inverse_temperature", FLOAT, (1,))
        self.input("log_min_p", FLOAT, (1,))
        table = self.weight("speech_emb.weight")
        uniforms = [f"uniforms.{n}" for n in range(count)]
        self.node("Split", ["uniforms"], uniforms, axis=0, num_outputs=count)
        hidden, token, tokens = self._begin(), "token", []
        for own in uniforms:
            hidden, logits = self._draft(hidden, self.node("Gather", [table, token], axis=0))
            token = self._sample(logits, own)
            tokens.append(token)
        self.node("Concat", tokens, ["tokens"], axis=0)
        self.output("tokens", INT64, (count,))
        return self

    def _begin(self) -> str:
        """Add what `DraftHead.start` computes."""
        sizes = self.ints(self._width, TAPS * self._width)
        self.node("Split", ["hidden_states", sizes], ["last", "streams"], axis=-1)
        normed, _ = self.norm("taps_norm", "streams", "")
        return self.node("Add", ["last", self.matmul(normed, "taps_proj")])

    def _draft(self, hidden: str, embedding: str) -> tuple[str, str]:
        """Return the next hidden state and its logits."""
        both = self.node("Concat", [hidden, embedding], axis=-1)
        stream, added = self.matmul(both, "in_proj"), ""
        for block in range(self._blocks):
            normed, stream = self.norm(f"blocks.{block}.norm", stream, added)
            added = self.gated_mlp(f"blocks.{block}", normed)
        following, _ = self.norm("norm", stream, added)
        head = self.packed["speech_head.weight"]
        return following, self.product(following, "speech_head", head, bias=self._bias)

    def _sample(self, logits: str, uniforms: str) -> str:
        """Sample by the exponential race of decoding/sampling.py, in logarithms.

        token = argmax(logit / temperature - log(-log(uniform))) over the candidates that min-p leaves.
        """
        top = f"{logits}.top"
        candidates = self.ints(min(CANDIDATES, self._vocab))
        self.node("TopK", [logits, candidates], [top, f"{top}.ids"], axis=-1, sorted=0)
        scaled = self.node("Mul", [top, "inverse_temperature"])
        threshold = self.node("Add", [self.node("ReduceMax", [scaled], keepdims=1), "log_min_p"])
        chosen = self.node("GatherElements", [uniforms, f"{top}.ids"], axis=1)
        log_arrival = self.node("Log", [self.node("Neg", [self.node("Log", [chosen])])])
        race = self.node("Sub", [scaled, log_arrival])
        too_low = self.node("Less", [scaled, threshold])
        race = self.node("Where", [too_low, self.number(-math.inf), race])
        winner = self.node("ArgMax", [race], axis=-1, keepdims=1)
        return self.node(
            "Squeeze", [self.node("GatherElements", [f"{top}.ids", winner], axis=1), self.ints(0)]
        )
