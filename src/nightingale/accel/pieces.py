"""A streamed flow by graphs: each piece of an utterance is one, whatever was spoken before it.

Only for a bidirectional flow, whose pieces see the voice's prompt and a few tokens of context: what it
remembers has a fixed size. All pieces of a voice read the prompt's keys and values where they lie, and hand
the convolutions' last inputs on in place; so nothing but ids goes in and nothing but mel comes out. The last
piece of an utterance has any length, and is computed without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from nightingale.accel.flow import FRAMES, FlowSteps, flow_noise, piece
from nightingale.accel.graphs import GraphReport, How, Replay, how_on
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.nn.carry import Past


@torch.inference_mode()
def hear_prompt(steps: FlowSteps, ids: Tensor, mel: Tensor, speaker: Tensor, key: Tensor) -> list[Past]:
    """What a flow remembers of a voice's prompt: made once for a voice.

    ids: (1, tokens); mel: (1, bands, 2 · tokens); the last three tokens wait for what they look ahead to.
    """
    tokens = ids.shape[1] - LOOKAHEAD_TOKENS
    bands, zero = steps.flow.config.mel_bands, torch.zeros_like(key)
    _, pasts = piece(
        steps,
        ids,
        steps.flow.scaled(mel[..., : FRAMES * tokens]),
        flow_noise(key, zero, FRAMES * tokens, bands).to(mel.dtype),
        speaker,
        None,
        ahead=LOOKAHEAD_TOKENS,
        advance=Fraction(1),
        remember=True,
    )
    return pasts


class FlowPieces:
    """The pieces of one voice's utterances, one utterance at a time."""

    @torch.no_grad()
    def __init__(self, steps: FlowSteps, prompt: Sequence[Past], *, how: How | None = None) -> None:
        """prompt: what `hear_prompt` gave for these steps."""
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
                fix="Make steps without a compile mode for streams: a carry has another shape in each layer.",
            )
        self.steps, self.how = steps, how or how_on(steps.device)
        self._prompt = tuple(t for past in prompt for t in past if t.dim() == 3)
        # One buffer for all convolutions: a stream is put aside, or taken up, by one copy.
        sizes = [t.numel() for t in self._prompt]
        dtypes = {t.dtype for t in self._prompt}
        self._flat = {
            dtype: torch.empty(
                sum(n for n, t in zip(sizes, self._prompt, strict=True) if t.dtype == dtype),
                dtype=dtype,
                device=steps.device,
            )
            for dtype in dtypes
        }
        self._convolutions = self._views()
        waiting = iter(self._convolutions)
        self._pasts = [tuple(next(waiting) if t.dim() == 3 else t for t in past) for past in prompt]
        self._graphs: dict[tuple[int, int, Fraction], Replay[Tensor]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle() if self.how == "graph" else None
        self.begin()

    @property
    def reports(self) -> list[GraphReport]:
        return [graph.report for graph in self._graphs.values()]

    def _views(self) -> list[Tensor]:
        used, views = dict.fromkeys(self._flat, 0), []
        for t in self._prompt:
            start = used[t.dtype]
            views.append(self._flat[t.dtype][start : start + t.numel()].view(t.shape))
            used[t.dtype] = start + t.numel()
        return views

    @torch.inference_mode()
    def begin(self) -> None:
        """A new utterance: only the prompt has been heard."""
        torch._foreach_copy_(self._convolutions, list(self._prompt))

    @torch.inference_mode()
    def put_aside(self) -> list[Tensor]:
        """Where this utterance stands, to be given to `take_up` after others were spoken."""
        return [flat.clone() for flat in self._flat.values()]

    @torch.inference_mode()
    def take_up(self, stood: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(self._flat.values()), list(stood))

    @torch.inference_mode()
    def push(
        self, ids: Tensor, cond: Tensor, *, speaker: Tensor, key: Tensor, first_frame: Tensor, following: int
    ) -> Tensor:
        """Mel (1, bands, frames) of the piece; it lives until the next call.

        ids: (1, tokens + 3), of which the last three are only looked at; cond: (1, bands, 2 · tokens),
        scaled, zero where a frame is not the prompt's; following: which of these tokens the next piece
        begins with.
        """
        tokens = ids.shape[1] - LOOKAHEAD_TOKENS
        advance = Fraction(following, tokens)
        name = (tokens, LOOKAHEAD_TOKENS, advance)
        inputs = {"ids": ids, "cond": cond, "speaker": speaker, "key": key, "first_frame": first_frame}
        if name not in self._graphs:
            before = self.put_aside()  # recording runs the piece
            self._graphs[name] = Replay(
                f"flow, a piece of {tokens} tokens",
                lambda **given: self._render(advance=advance, **given),
                inputs,
                how=self.how,
                device=self.steps.device,
                pool=self._pool,
            )
            self.take_up(before)
        return self._graphs[name](**inputs)

    def _render(
        self, ids: Tensor, cond: Tensor, speaker: Tensor, key: Tensor, first_frame: Tensor, advance: Fraction
    ) -> Tensor:
        """What is recorded."""
        noise = flow_noise(key, first_frame, cond.shape[2], cond.shape[1]).to(cond.dtype)
        mel, pasts = piece(
            self.steps,
            ids,
            cond,
            noise,
            speaker,
            self._pasts,
            ahead=LOOKAHEAD_TOKENS,
            advance=advance,
            remember=False,
        )
        left = [t for past in pasts for t in past if t.dim() == 3]
        torch._foreach_copy_(self._convolutions, left)
        return self.steps.flow.unscaled(mel)

    @torch.inference_mode()
    def finish(
        self, ids: Tensor, cond: Tensor, *, speaker: Tensor, key: Tensor, first_frame: Tensor
    ) -> Tensor:
        """The last piece, of any length: nothing follows it, and nothing is looked ahead to."""
        noise = flow_noise(key, first_frame, cond.shape[2], cond.shape[1]).to(cond.dtype)
        mel, _ = piece(
            self.steps,
            ids,
            cond,
            noise,
            speaker,
            self._pasts,
            ahead=0,
            advance=Fraction(1),
            remember=False,
        )
        return self.steps.flow.unscaled(mel)
