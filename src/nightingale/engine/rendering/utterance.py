"""One text segment being synthesized: tokens as they are sampled, blocks as they can be rendered."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from nightingale.backends.base import Block, BlockCut, Recorded, RenderStream
from nightingale.backends.profiles import Profile
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.guards import ATTEMPTS, Action, Guard, limits_for
from nightingale.decoding.philox import retry_seed
from nightingale.decoding.sampling import is_greedy
from nightingale.engine.load import Model
from nightingale.engine.rendering.time_stretch import TimeStretcher
from nightingale.engine.rendering.word_timer import WordTimer
from nightingale.engine.requests.recorded_segments import RecordedSegment
from nightingale.engine.requests.segments import TextSegment
from nightingale.engine.session import Request, Timing
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, SPEECH_CODES
from nightingale.models.chatterbox.t3.config import STOP_SPEECH
from nightingale.models.defaults import SILENCE_TOKEN
from nightingale.types import Samples, TimedWord

FAST_GROWTH: Final = 5
"""The size of a block over that of the one before it, where long blocks cost hardly more than short ones."""
LONG_BLOCKS: Final = 2
"""The largest block there, over the profile's."""


class BlockLimits(NamedTuple):
    """The limits of the next block of an utterance; by default those of a request that runs alone."""

    concurrent: bool = False
    """True while other requests are being served too."""
    takes_all: bool = False
    """True if a block takes all tokens that are there, up to `tokens_in_time`."""
    tokens_in_time: float = math.inf
    """The largest block that leaves enough time for the blocks of other requests."""


class Utterance:
    """The state of one segment. It holds no weights and no KV cache."""

    def __init__(
        self,
        model: Model,
        profile: Profile,
        segment: TextSegment,
        request: Request,
        *,
        seed: int,
        stream: RenderStream,
    ) -> None:
        self.model = model
        self.profile = profile
        self.segment = segment
        self.request = request
        self._seed = seed
        self._stream = stream
        self._attempt = 0
        self._start_attempt()
        self.last_token = 0
        self.rendered = False
        """True after the last block was taken."""
        self._fixed_blocks = isinstance(segment, RecordedSegment) and segment.live
        """True if blocks do not grow, because larger ones would wait for more of a recording that arrives."""
        self._stretcher = TimeStretcher(CLOCKS.sample_rate_hz, request.speed)
        self.block_tokens = (
            profile.first_block_tokens
            or model.defaults.first_block_tokens
            or stream.first_block_tokens
            or profile.smallest_block_tokens
        )
        """Tokens that the next block should have."""

    def shrink_next_block(self) -> None:
        """Let the next block be as small as possible, because its listener competes with others now."""
        self.block_tokens = min(self.block_tokens, self.profile.smallest_block_tokens)

    def _start_attempt(self) -> None:
        """Start with no tokens. The first attempt samples as if there were no guard."""
        defaults, sampling = self.model.defaults, self.request.sampling
        source, config = self.segment.source, self.model.info.preset.t3
        self._timer = None if source is None else WordTimer(source, config)
        self.decoding = Decoding(
            Prompt(
                text=self.segment.text,
                text_ids=self.segment.text_ids,
                voice=self.request.voice,
                exaggeration=self.request.exaggeration,
                guided=sampling.cfg_weight > 0,
                trace=None if self._timer is None else self._timer.trace,
            ),
            vocab=self.model.info.preset.t3.speech_vocab,
            defaults=defaults,
            sampling=sampling,
            seed=retry_seed(self._seed, self._attempt),
        )
        may_retry = self._attempt + 1 < ATTEMPTS and not is_greedy(sampling)
        limits = limits_for(self.segment.text, ceiling=self.decoding.budget)
        guard = Guard(limits, stop_id=STOP_SPEECH, silence=defaults.silence_ids, may_retry=may_retry)
        self._guard = guard if defaults.guarded else None
        self._waiting: list[int] = []
        """Speech tokens that no block has taken yet."""
        self._recorded: Recorded | None = None
        """The recording that these were read from, if the model renders it with its mel."""
        self._taken = 0
        """Speech tokens that blocks have taken."""
        self.must_restart = False

    def restart(self, timing: Timing) -> None:
        """Sample the segment again: the tokens were not speech, and none of them was rendered."""
        self._attempt += 1
        timing.retries += 1
        self._start_attempt()

    def accept(self, token: int) -> None:
        """Take the next token as it was sampled."""
        self.last_token = token
        self.decoding.append(token)
        if token < SPEECH_CODES:  # control ids never reach the flow
            self._waiting.append(token)
        if self._timer is not None:
            self._timer.accept(token, rendered=token < SPEECH_CODES)
        if self._guard is not None:
            self._apply(self._guard)
        if self.decoding.finished and not self.must_restart:
            self._waiting += [SILENCE_TOKEN] * self.model.defaults.tail_silence_tokens

    def feed(self, segment: RecordedSegment) -> None:
        """Take speech tokens of a recording, which no guard watches: they were not sampled."""
        self._guard = None
        if (known := segment.recorded) is not None:
            if self._recorded is None:
                shape = (CLOCKS.frames_per_token * len(self._waiting), known.mel.shape[1])
                earlier = np.full(shape, np.nan, np.float32)
            else:
                earlier = self._recorded.mel
            self._recorded = replace(known, mel=np.concatenate([earlier, known.mel]))
        self._waiting += segment.speech_tokens
        self.decoding.finished = segment.ends_utterance

    def _take_recorded(self, tokens: int) -> Recorded | None:
        """Take the mel of the next tokens, if there is a recording."""
        if (known := self._recorded) is None:
            return None
        self._recorded = known.part(tokens, tokens + len(self._waiting))
        return known.part(0, tokens)

    def _apply(self, guard: Guard) -> None:
        """Stop or restart if the tokens so far are not speech."""
        if self.last_token == STOP_SPEECH and not self.decoding.finished:
            return  # Turbo's first draw, whose stop token does not count
        verdict = guard.observe(self.last_token)
        self.must_restart = verdict.action is Action.RETRY
        if verdict.action is Action.STOP:
            self.decoding.finished = True
            del self._waiting[max(0, verdict.keep_tokens - self._taken) :]

    @property
    def has_block(self) -> bool:
        """True if a block can be rendered now."""
        return self._next_cut() is not None

    @property
    def least_block_tokens(self) -> int:
        """Tokens of the next block, if it is made as small as possible."""
        if not self.profile.in_blocks:
            return len(self._waiting)
        return min(self.block_tokens, self.profile.smallest_block_tokens)

    @property
    def _wanted_tokens(self) -> int:
        """Tokens that the next block should have: all of them where segments are rendered whole."""
        return self.block_tokens if self.profile.in_blocks else len(self._waiting)

    @property
    def surplus_tokens(self) -> int:
        """Tokens beyond those of the next block."""
        return len(self._waiting) - self.block_tokens

    @property
    def batch_key(self) -> Hashable:
        """A key that is equal for blocks that can be rendered together; None where no block is ready."""
        cut = self._next_cut()
        return None if cut is None else self._stream.batch_key(cut)

    def _next_cut(self) -> BlockCut | None:
        if self.rendered or self.must_restart or not (self.decoding.finished or self.profile.in_blocks):
            return None
        return self._stream.next_cut(
            len(self._waiting), finished=self.decoding.finished, wanted=self._wanted_tokens
        )

    def take_block(self, timing: Timing, limits: BlockLimits) -> Block:
        """Take the next block, which must be ready. Its tokens cannot be dropped any more."""
        if limits.takes_all:
            self.block_tokens = self._all_tokens(limits)
        elif self._taken and limits.concurrent:
            self.block_tokens = self._in_time(self.block_tokens, limits)
        cut = self._next_cut()
        assert cut is not None
        tokens = self._waiting[: cut.tokens]
        self._waiting = self._waiting[cut.tokens :]
        recorded = self._take_recorded(cut.tokens)
        self._taken += cut.tokens
        if self._guard is not None:
            self._guard.commit(self._taken)
        timing.tokens += cut.tokens
        self.block_tokens = self._next_block_tokens(limits, first=self._taken == cut.tokens)
        self.rendered = cut.final
        return Block(
            stream=self._stream,
            tokens=tokens,
            first=timing.tokens == cut.tokens,
            final=cut.final,
            alone=not limits.concurrent,
            recorded=recorded,
            record=timing.record,
        )

    def _next_block_tokens(self, limits: BlockLimits, *, first: bool) -> int:
        """Return the size of the next block; first: the block before it was the first one."""
        largest, defaults = self.profile.largest_block_tokens, self.model.defaults
        if limits.takes_all:  # all tokens that are there when its turn comes: it need not wait for many
            return self.profile.smallest_block_tokens
        if self._fixed_blocks:
            return self.block_tokens
        if self._stream.prefers_large_batches:
            return min(FAST_GROWTH * self.block_tokens, LONG_BLOCKS * largest)
        if first and defaults.second_block_tokens is not None and self.profile.first_block_tokens is None:
            return defaults.second_block_tokens
        tokens = min(2 * self.block_tokens, largest)
        return self._in_time(tokens, limits) if limits.concurrent else tokens

    def _all_tokens(self, limits: BlockLimits) -> int:
        """Return the size of a block that takes the tokens that are there; the rest too, if that is known."""
        waiting = len(self._waiting)
        limit = int(min(limits.tokens_in_time, LONG_BLOCKS * self.profile.largest_block_tokens))
        if self.decoding.finished and waiting <= limit:
            return waiting + 1
        return max(self.block_tokens, min(waiting - LOOKAHEAD_TOKENS, limit))

    def _in_time(self, tokens: int, limits: BlockLimits) -> int:
        return max(self.profile.smallest_block_tokens, int(min(tokens, limits.tokens_in_time)))

    def finish(self, block: Block, samples: Samples) -> Samples:
        """Return the audio of a rendered block: trimmed, time-stretched, with the pause after the segment."""
        if not self._taken:
            return np.zeros(0, np.float32)
        sampled = bool(self.segment.text_ids)
        if block.final and sampled and self.model.defaults.drop_last_token and self._taken > 1:
            samples = samples[: len(samples) - CLOCKS.samples_per_token]  # the family garbles its last token
        if self._timer is not None:
            self._timer.push(samples, tokens=len(block.tokens), final=block.final)
        samples = self._stretcher.push(samples, final=block.final)
        return np.pad(samples, (0, self.segment.pause_samples)) if block.final else samples

    def take_words(self) -> list[TimedWord]:
        """Return the words whose audio is complete, each once, timed from the first sample of the segment."""
        return [] if self._timer is None else self._timer.take(self.request.speed)
