"""One piece of text being spoken: tokens as they are drawn, blocks as they become audible."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.backends.torch.mel_stream import audible
from nightingale.decoding.decoding import Decoding, DraftStats, PromptText, prompt_of
from nightingale.decoding.guards import ATTEMPTS, Action, Guard, limits_for, retry_seed
from nightingale.models.defaults import SILENCE_TOKEN
from nightingale.engine.model import Model
from nightingale.engine.requests.segments import Piece
from nightingale.engine.profiles import Profile
from nightingale.decoding.sampling import is_greedy
from nightingale.engine.session import Request, Timing
from nightingale.engine.rendering.time_stretch import Stretcher
from nightingale.backends.torch.renderer import Block, Cut, RenderStream
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.types import Samples


class Utterance:
    """Holds no weights and no memory of T3's; those are the model's and the runner's."""

    def __init__(
        self,
        model: Model,
        profile: Profile,
        piece: Piece,
        request: Request,
        *,
        seed: int,
        rendering: RenderStream,
        tally: DraftStats | None = None,
    ) -> None:
        self._tally = tally
        self.model, self.profile, self.piece, self.request = model, profile, piece, request
        self._seed = seed
        self._attempt = 0
        self._begin_attempt()
        self.last_token = 0
        self.rendered = False
        """Whether its last block was taken."""
        self.in_company = False
        """Others are speaking too."""
        self._rendering = rendering
        self._speed = Stretcher(CLOCKS.sample_rate_hz, request.speed)
        self._block = model.defaults.first_block_tokens or profile.first_block_tokens

    def _begin_attempt(self) -> None:
        """Nothing drawn yet. The first attempt draws as if there were no guard."""
        defaults, sampling = self.model.defaults, self.request.sampling
        self.decoding = Decoding(
            self.model.networks.t3,
            defaults=defaults,
            sampling=sampling,
            text_ids=len(self.piece.text_ids),
            seed=retry_seed(self._seed, self._attempt),
            told=PromptText(
                text=self.piece.text,
                text_ids=self.piece.text_ids,
                voice=self.request.voice,
                exaggeration=self.request.exaggeration,
            ),
            tally=self._tally,
        )
        again = self._attempt + 1 < ATTEMPTS and not is_greedy(sampling)
        limits = limits_for(self.piece.text, ceiling=self.decoding.budget)
        guard = Guard(limits, stop_id=STOP_SPEECH, silence=defaults.silence_ids, may_retry=again)
        self._guard = guard if defaults.guarded else None
        self._new: list[int] = []
        """Audible tokens that no block has taken yet."""
        self._tokens = 0
        """Tokens that blocks have taken."""
        self.must_restart = False

    def restart(self, timing: Timing) -> None:
        """Draw everything again: what came out was not speech, and nobody has heard any of it."""
        self._attempt += 1
        timing.retries += 1
        self._begin_attempt()

    def prompt(self) -> Tensor:
        """What T3 reads first."""
        return prompt_of(
            self.model.networks.t3,
            self.piece.text_ids,
            self.request.voice,
            defaults=self.model.defaults,
            sampling=self.request.sampling,
            exaggeration=self.request.exaggeration,
        )

    def accept(self, token: int) -> None:
        """The next token, as it was drawn."""
        self.last_token = token
        self.decoding.note(token)
        self._new += audible([token])
        if self._guard is not None:
            self._heed(self._guard)
        if self.decoding.finished and not self.must_restart:
            self._new += [SILENCE_TOKEN] * self.model.defaults.tail_silence_tokens

    def _heed(self, guard: Guard) -> None:
        """Stop or begin anew if the tokens so far are no speech."""
        if self.last_token == STOP_SPEECH and not self.decoding.finished:
            return  # Turbo's first draw, which is not looked at
        verdict = guard.observe(self.last_token)
        self.must_restart = verdict.action is Action.RETRY
        if verdict.action is Action.STOP:
            self.decoding.finished = True
            del self._new[max(0, verdict.keep_tokens - self._tokens) :]

    @property
    def block_ready(self) -> bool:
        """Whether there is something to render now."""
        return self._cut() is not None

    @property
    def company(self) -> Hashable:
        """Whose next blocks may be rendered with this one's; None where none is ready."""
        cut = self._cut()
        return None if cut is None else self._rendering.company(cut)

    def _cut(self) -> Cut | None:
        if self.rendered or self.must_restart or not (self.decoding.finished or self.profile.streaming):
            return None
        return self._rendering.cut(len(self._new), finished=self.decoding.finished, wanted=self._block)

    def take_block(self, timing: Timing) -> Block:
        """The next block, which is ready. Its tokens are not taken back."""
        cut = self._cut()
        assert cut is not None
        count, final = cut
        ids, self._new = self._new[:count], self._new[count:]
        self._tokens += count
        if self._guard is not None:
            self._guard.commit(self._tokens)
        timing.tokens += count
        self._block = self._next_block_tokens(first=self._tokens == count)
        self.rendered = final
        return Block(
            rendering=self._rendering,
            ids=ids,
            final=final,
            alone=not self.in_company,
            timing=timing,
        )

    def _next_block_tokens(self, *, first: bool) -> int:
        """first: the block before it was."""
        largest, defaults = self.profile.largest_block_tokens, self.model.defaults
        if self.in_company and self._rendering.largest_in_company:
            return largest
        if first and defaults.second_block_tokens is not None:
            return defaults.second_block_tokens
        return min(2 * self._block, largest)

    def finish(self, block: Block, samples: Samples) -> Samples:
        """What is heard of a block that was rendered."""
        if not self._tokens:
            return np.zeros(0, np.float32)
        if block.final and self.model.defaults.drop_last_token and self._tokens > 1:
            samples = samples[: len(samples) - CLOCKS.samples_per_token]  # which the family garbles
        samples = self._speed.push(samples, final=block.final)
        return np.pad(samples, (0, self.piece.pause_samples)) if block.final else samples
