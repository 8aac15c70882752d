"""A streamed flow by graphs: pieces of a few sizes, of one utterance or several, whatever was spoken before.

Only for a bidirectional flow, whose pieces see the voice's prompt and a few tokens of context: what it
remembers has a fixed size. One graph serves all voices whose prompts fit a bucket: a prompt's keys and values
are copied to where the graph reads them, with room at their far end that nobody looks at. It serves the last
piece of an utterance too, which is shorter than its graph: what lies beyond its end is not looked at either.

The twin is `render_block` in models/chatterbox/s3gen/incremental.py: the same mel, to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.flow import FRAMES, FlowSteps, flow_noise, piece
from nightingale.backends.cuda.graphs import GraphReport, How, Replay, bucket_for, how_on
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.token_encoder import TokenEncoder, distance_encoding
from nightingale.models.layers.streaming_state import SavedState, StreamingState

log = logging.getLogger(__name__)
By = Literal["auto", "library", "triton"]
"""Who does the estimator's layers: torch's kernels, or those in flow_kernels.py; auto: those, on a GPU and in
bfloat16, where they can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A voice's prompt as a flow remembers it."""

    tokens: int
    """Its last few wait for the tokens they look ahead to, and are not among these."""
    keys: tuple[Tensor, ...]
    """Keys and values of each attention, in the order of the pass: (1 or 2, heads, positions, width)."""
    carried: Tensor
    """(1, values): the convolutions' last inputs, one after another. Every utterance begins with them."""

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys, self.carried))


@torch.inference_mode()
def hear_prompt(steps: FlowSteps, ids: Tensor, mel: Tensor, speaker: Tensor, key: Tensor) -> Heard:
    """What a flow remembers of a voice's prompt: made once for a voice.

    ids: (1, tokens); mel: (1, bands, 2 · tokens); the last three tokens wait for what they look ahead to.
    """
    tokens = ids.shape[1] - LOOKAHEAD_TOKENS
    bands, zero = steps.flow.config.mel_bands, torch.zeros_like(key)
    _, pasts = piece(
        steps,
        ids,
        steps.flow.normalize_mel(mel[..., : FRAMES * tokens]),
        flow_noise(key, zero, FRAMES * tokens, bands).to(mel.dtype),
        speaker,
        None,
        ahead=LOOKAHEAD_TOKENS,
        advance=Fraction(1),
        remember=True,
    )
    left = [t for past in pasts for t in past]
    return Heard(
        tokens=tokens,
        keys=tuple(t for t in left if t.dim() == 4),
        carried=torch.cat([t.to(steps.dtype).flatten() for t in left if t.dim() == 3])[None],
    )


class _PromptState(StreamingState):
    """Keys and values are one prompt's, for all utterances alike: read where they lie, and not left again."""

    def prepend_kv(self, x: Tensor) -> Tensor:
        assert self._past is not None
        past = self._past.pop()  # (1 or 2, heads, known, width); of x there are as many times the utterances
        own = x.reshape(len(past), -1, *x.shape[1:])
        shared = past[:, None].expand(-1, own.shape[1], -1, -1, -1)
        return torch.cat([shared, own], dim=-2).flatten(0, 1)


class FlowPieces:
    """Pieces of utterances in one voice at a time."""

    @torch.no_grad()
    def __init__(
        self,
        steps: FlowSteps,
        *,
        context: int,
        tokens: tuple[int, ...],
        batches: tuple[int, ...],
        known: tuple[int, ...] = (64, 128, 256, 512),
        how: How | None = None,
        by: By = "auto",
    ) -> None:
        """context: so many tokens of a piece are the first of the next one; tokens, batches, known: the sizes
        of pieces, of company, and of what is remembered of the prompt."""
        if steps.flow.config.block_causal:
            raise ConfigError(
                "this flow remembers more with each piece",
                got="a block-causal flow",
                allowed="a bidirectional one",
                fix="Use the plain stream for it.",
            )
        if steps.compiled:
            raise ConfigError(
                "pieces of a stream are not compiled",
                got="steps with a compile mode",
                allowed="steps without one",
                fix="Make steps without a compile mode for streams: a state has another shape in each layer.",
            )
        self.steps, self.how = steps, how or how_on(steps.device)
        self.context, self.tokens, self.batches, self.known = context, tokens, batches, known
        self._shapes: list[list[tuple[int, ...]]] | None = None
        """Of what each state holds for one utterance; 3 numbers: a convolution's, 4: an attention's."""
        self._by = by
        self._fused = _fused(steps, by)
        self._buffers: dict[int, list[Tensor]] = {}
        self._loaded: dict[int, Heard] = {}
        self._graphs: dict[tuple[int, int, int], Replay[tuple[Tensor, Tensor]]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle() if self.how == "graph" else None

    @property
    def reports(self) -> list[GraphReport]:
        return [graph.report for graph in self._graphs.values()]

    @torch.inference_mode()
    def warm(self, heard: Heard) -> None:
        """Record every size of piece and company for prompts as long as this one."""
        known = self._load(heard)
        for tokens in self.tokens:
            for batch in self.batches:
                self._graph(known, tokens, batch, heard)

    @torch.inference_mode()
    def __call__(
        self,
        heard: Heard,
        ids: Tensor,
        lengths: Tensor,
        *,
        cond: Tensor,
        speaker: Tensor,
        key: Tensor,
        first_frame: Tensor,
        carried: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Mel (batch, bands, 2 · tokens), and what the next pieces must be given as `carried`. Both live
        until the next call.

        ids: (batch, tokens + 3), the last three only looked at; lengths: (batch,), how many ids are real: all
        of them, or fewer in the last piece of an utterance, which looks at nothing beyond; cond: (batch,
        bands, 2 · tokens), scaled, zero where a frame is not the prompt's; speaker: (batch, width); key,
        first_frame: (batch,), of the noise; carried: (batch, values).
        """
        count, tokens = len(ids), ids.shape[1] - LOOKAHEAD_TOKENS
        if tokens not in self.tokens:
            raise ConfigError(
                "no graph is made for a piece of this size",
                got=f"{tokens} tokens",
                allowed=", ".join(map(str, self.tokens)),
                fix="Pad the piece to one of these, and say its length.",
            )
        known = self._load(heard)
        batch = bucket_for(count, self.batches, what="utterances")
        more = batch - count
        mel, left = self._graph(known, tokens, batch, heard)(
            ids=F.pad(ids, (0, 0, 0, more)),
            # A row of padding has one token, so that its attention has something to look at.
            lengths=F.pad(lengths, (0, more), value=1),
            unheard=torch.full((1,), known - heard.tokens, device=self.steps.device),
            cond=F.pad(cond, (0, 0, 0, 0, 0, more)),
            speaker=F.pad(speaker, (0, 0, 0, more), value=1.0),
            key=F.pad(key, (0, more)),
            first_frame=F.pad(first_frame, (0, more)),
            carried=F.pad(carried, (0, 0, 0, more)),
        )
        return mel[:count], left[:count]

    def _load(self, heard: Heard) -> int:
        """Bring the prompt to where the graphs read it, unless it is there; the size of that place."""
        known = bucket_for(heard.tokens, self.known, what="tokens of the prompt")
        if self._loaded.get(known) is heard:
            return known
        if self._shapes is None:
            self._shapes = _shapes(self.steps)
        if known not in self._buffers:
            self._buffers[known] = [
                t.new_zeros(*t.shape[:2], t.shape[2] // heard.tokens * known, t.shape[3]) for t in heard.keys
            ]
        # The far end, which the graph does not look at, keeps what an earlier voice left there: numbers.
        near = [b[:, :, -t.shape[2] :] for b, t in zip(self._buffers[known], heard.keys, strict=True)]
        torch._foreach_copy_(near, list(heard.keys))
        self._loaded[known] = heard
        return known

    def _graph(self, known: int, tokens: int, batch: int, heard: Heard) -> Replay[tuple[Tensor, Tensor]]:
        name = (known, tokens, batch)
        if name not in self._graphs:
            config, dtype, buffers = self.steps.flow.config, self.steps.dtype, self._buffers[known]

            def render(**given: Tensor) -> tuple[Tensor, Tensor]:
                return self._render(buffers, known, **given)

            given = {
                "ids": torch.zeros(batch, tokens + LOOKAHEAD_TOKENS, dtype=torch.int64),
                "lengths": torch.full((batch,), tokens + LOOKAHEAD_TOKENS),
                "unheard": torch.zeros(1, dtype=torch.int64),
                "cond": torch.zeros(batch, config.mel_bands, FRAMES * tokens, dtype=dtype),
                "speaker": torch.ones(batch, config.speaker_width, dtype=dtype),
                "key": torch.zeros(batch, dtype=torch.int64),
                "first_frame": torch.zeros(batch, dtype=torch.int64),
                "carried": heard.carried.expand(batch, -1).contiguous(),
            }

            def record() -> Replay[tuple[Tensor, Tensor]]:
                return Replay(
                    f"flow, {batch} pieces of {tokens} tokens after {known}, by {self.by}",
                    render,
                    given,
                    how=self.how,
                    device=self.steps.device,
                    pool=self._pool,
                )

            try:
                self._graphs[name] = record()
            except Exception as error:  # whatever a compiler may come up with, before anything is recorded
                if self._fused is None or self._by != "auto":
                    raise
                log.warning("the flow goes on by library calls, more slowly: %s", error)
                self._fused = None
                self._graphs[name] = record()
        return self._graphs[name]

    @property
    def by(self) -> str:
        return "library" if self._fused is None else "triton"

    def _render(
        self,
        buffers: Sequence[Tensor],
        known: int,
        ids: Tensor,
        lengths: Tensor,
        unheard: Tensor,
        cond: Tensor,
        speaker: Tensor,
        key: Tensor,
        first_frame: Tensor,
        carried: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What is recorded."""
        steps, flow = self.steps, self.steps.flow
        tokens = ids.shape[1] - LOOKAHEAD_TOKENS
        advance = Fraction(tokens - self.context, tokens)
        pasts = self._pasts(buffers, carried, len(ids))
        states = [_PromptState(past, advance=advance) for past in pasts[: 1 if self._fused else None]]
        at = torch.arange(-known, tokens, device=ids.device)
        seen = (at >= unheard - known) & (at < lengths[:, None])  # (batch, known + tokens)
        mu = _encode(steps, ids, lengths, seen, states[0])
        noise = flow_noise(key, first_frame, cond.shape[2], cond.shape[1]).to(cond.dtype)
        if self._fused is not None:
            left = torch.empty_like(carried)
            mel = self._fused.solve(
                noise,
                mu=mu,
                speaker=flow.speaker(speaker),
                cond=cond,
                lengths=lengths,
                unheard=unheard,
                carried=carried,
                left=left,
                places=self._places(),
                start=FRAMES * (tokens - self.context),
                keys=[t for past in pasts[1:] for t in past],
            )
            own = _flat(states[0].saved(), len(ids), cond.dtype)
            left[:, : own.shape[1]] = own
            return flow.denormalize_mel(mel), left
        frames = seen.repeat_interleave(FRAMES, dim=1)[:, None, None]
        # As a sum, once for all layers and steps: a mask of yes and no is made into one by each of them.
        mask = torch.zeros(frames.shape, dtype=steps.precision, device=ids.device)
        mel = steps.solve(
            noise,
            mu=mu,
            speaker=flow.speaker(speaker),
            cond=cond,
            mask=mask.masked_fill(~frames, -torch.inf),
            states=states[1:],
        )
        return flow.denormalize_mel(mel), _flat([t for c in states for t in c.saved()], len(ids), cond.dtype)

    def _places(self) -> list[int]:
        """Where in `carried` each convolution of the solver's steps finds its own."""
        assert self._shapes is not None
        sizes = [
            (number, shape[0] * shape[1] * shape[2])
            for number, shapes in enumerate(self._shapes)
            for shape in shapes
            if len(shape) == 3
        ]
        ends = list(accumulate(size for _, size in sizes))
        return [end - size for (number, size), end in zip(sizes, ends, strict=True) if number > 0]

    def _pasts(self, buffers: Sequence[Tensor], carried: Tensor, batch: int) -> list[SavedState]:
        """For each state, what its layers ask for, in their order. Guided rows come first, then the rest."""
        assert self._shapes is not None
        keys, start, pasts = iter(buffers), 0, []
        for number, shapes in enumerate(self._shapes):
            past = []
            for shape in shapes:
                if len(shape) == 4:
                    past.append(next(keys))
                    continue
                size = shape[0] * shape[1] * shape[2]
                mine = carried[:, start : start + size].view(batch, *shape).transpose(0, 1).flatten(0, 1)
                start += size
                if number == 0 or self._fused is None:  # else the convolutions' kernels read it in place
                    past.append(mine.to(self.steps.dtype if number == 0 else self.steps.precision))
            pasts.append(tuple(past))
        return pasts


def _fused(steps: FlowSteps, by: By) -> Any:
    """What does the estimator's layers by Triton, if that is wanted and possible."""
    wanted = steps.device.type == "cuda" and steps.precision == torch.bfloat16
    if by == "library" or (by == "auto" and not wanted):
        return None
    try:
        from nightingale.backends.cuda.flow_fused import FusedEstimator

        return FusedEstimator(steps)
    except ImportError as error:
        if by == "triton":
            raise
        log.warning("the flow goes on by library calls, more slowly: %s", error)
        return None


def _flat(left: Sequence[Tensor], batch: int, dtype: torch.dtype) -> Tensor:
    """What convolutions left, one after another for each utterance: (batch, values)."""
    own = [t.to(dtype).view(-1, batch, *t.shape[1:]).transpose(0, 1).reshape(batch, -1) for t in left]
    return torch.cat(own, dim=1)


def _encode(steps: FlowSteps, ids: Tensor, lengths: Tensor, seen: Tensor, state: StreamingState) -> Tensor:
    """`Flow.encode` where some of what is remembered, and of the piece, is not to be seen (batch, keys)."""
    flow, encoder = steps.flow, steps.flow.encoder
    assert isinstance(encoder, TokenEncoder)
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    # Beyond the end the look-ahead reads zeros, as it does where nothing follows.
    x = encoder.embed(flow.input_embedding(ids)) * real[..., None]
    x = encoder.pre_lookahead_layer(x, lookahead=LOOKAHEAD_TOKENS, state=state)
    x = _layers(encoder.encoders, x, seen, state)
    x = encoder.up_embed(encoder.up_layer(x, state))
    x = _layers(encoder.up_encoders, x, seen.repeat_interleave(FRAMES, dim=1), state)
    mu: Tensor = flow.encoder_proj(encoder.after_norm(x)).transpose(1, 2)
    return mu


def _layers(layers: Any, x: Tensor, seen: Tensor, state: StreamingState) -> Tensor:
    distances = distance_encoding(x.shape[1], seen.shape[1], x.shape[2], like=x)
    for layer in layers:
        x = layer(x, distances, seen[:, None, None], state)
    return x


@torch.inference_mode()
def _shapes(steps: FlowSteps) -> list[list[tuple[int, ...]]]:
    """Of what one utterance leaves, asked of the network itself with a piece of one token."""
    config, weight = steps.flow.config, steps.flow.encoder_proj.weight
    ids = torch.zeros(1, 1 + LOOKAHEAD_TOKENS, dtype=torch.int64, device=weight.device)
    mel = weight.new_zeros(1, config.mel_bands, FRAMES)
    _, pasts = piece(
        steps,
        ids,
        mel,
        mel,
        weight.new_ones(1, config.speaker_width),
        None,
        ahead=LOOKAHEAD_TOKENS,
        advance=Fraction(1),
        remember=True,
    )
    return [[tuple(t.shape) for t in past] for past in pasts]
