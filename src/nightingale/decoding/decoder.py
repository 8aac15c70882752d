"""Everybody's next tokens: drawn on the host from a runner's scores, or on the device and read a little late.

The worker knows only `Decoder`. Who is speaking is told by slot, and known again by its `Decoding`: a token
drawn ahead for an attempt that was given up, or for somebody who has left, reaches nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from nightingale.backends.torch.runner import Runner, Turn
from nightingale.decoding.decoding import Decoding
from nightingale.types import Sampling

Drawn = list[int] | Exception
"""Tokens in order, perhaps none yet; or what went wrong for this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaking:
    """Who takes part in a step."""

    slot: int
    decoding: Decoding
    last_token: int


class Decoder(Protocol):
    at_once: int
    """So many may begin between two steps."""

    @property
    def bytes(self) -> int:
        """What T3's memory takes, however many are speaking."""

    def begin(self, slot: int, decoding: Decoding, prompt: Tensor) -> list[int]:
        """Read a prompt (rows, time, width) into a slot; the first token, if it is known already."""

    def step(self, speaking: list[Speaking]) -> list[Drawn]:
        """For each of them the tokens that are new. What was drawn is not noted: the utterance does that."""

    def leave(self, slot: int) -> None:
        """Whoever was there is done."""

    def move(self, source: int, target: int) -> None:
        """Bring an utterance to another slot, so that slots in use have no gaps."""

    def wipe(self, slot: int) -> None:
        """After a fault: what is not a number must not reach the slot's next utterance."""


class HostDecoder:
    """One token a step, each from its request's own generator on the host: the reference."""

    at_once = 1  # a prompt takes long, and everybody else waits

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    @property
    def bytes(self) -> int:
        return self.runner.bytes

    def begin(self, slot: int, decoding: Decoding, prompt: Tensor) -> list[int]:
        return [decoding.draw(self.runner.begin(slot, prompt))]

    def step(self, speaking: list[Speaking]) -> list[Drawn]:
        turns = [Turn(slot=s.slot, token=s.last_token, position=s.decoding.drawn) for s in speaking]
        return [
            self._draw(one.decoding, scores)
            for one, scores in zip(speaking, self._scores(turns), strict=True)
        ]

    def _scores(self, turns: list[Turn]) -> list[Tensor | Exception]:
        """Of all together; if that fails, each alone, which shows whose fault it was."""
        try:
            return list(self.runner.step(turns))
        except Exception:
            return [self._scores_alone(turn) for turn in turns]

    def _scores_alone(self, turn: Turn) -> Tensor | Exception:
        try:
            return self.runner.step([turn])[0]
        except Exception as error:
            return error

    def _draw(self, decoding: Decoding, scores: Tensor | Exception) -> Drawn:
        if isinstance(scores, Exception):
            return scores
        try:
            return [decoding.draw(scores)]
        except Exception as error:
            return error

    def leave(self, slot: int) -> None:
        """The slot's memory is written over by whoever comes next."""

    def move(self, source: int, target: int) -> None:
        self.runner.move(source, target)

    def wipe(self, slot: int) -> None:
        self.runner.wipe(slot)


class Pending(Protocol):
    def take(self) -> list[list[int]]:
        """Of each slot, the tokens drawn in one launch; a negative one: its scores were no numbers."""


class DeviceDecoder(Protocol):
    """What draws by itself: `DecodeLoop` in backends/cuda/decoder.py."""

    @property
    def bytes(self) -> int: ...
    def begin(self, slot: int, prompt: Tensor, *, sampling: Sampling, seed: int, budget: int) -> None: ...
    def launch(self, steps: int) -> Pending: ...
    def release(self, slot: int) -> None: ...
    def move(self, source: int, target: int) -> None: ...
    def wipe(self, slot: int) -> None: ...


class GraphDecoder:
    """Several steps are launched at a time, and their tokens read while the next ones run.

    So tokens come late by as many steps as were launched, and a few more may be drawn for somebody who has
    ended. A seed gives the same tokens each time and in any company: in float32, those of `HostDecoder`.
    """

    at_once = 16  # who begins together is rendered together

    def __init__(self, decoder: DeviceDecoder, *, steps: int) -> None:
        self._decoder, self._steps = decoder, steps
        self._under_way: tuple[Pending, Mapping[Decoding, int]] | None = None
        """Tokens to come, and in which slot each utterance was when they were asked for."""

    @property
    def bytes(self) -> int:
        return self._decoder.bytes

    def begin(self, slot: int, decoding: Decoding, prompt: Tensor) -> list[int]:
        self._decoder.begin(
            slot,
            prompt,
            sampling=decoding.sampling,
            seed=decoding.seed,
            budget=decoding.budget,
        )
        return []

    def step(self, speaking: list[Speaking]) -> list[Drawn]:
        following = self._decoder.launch(self._steps)
        earlier = self._under_way
        self._under_way = following, {one.decoding: one.slot for one in speaking}
        if earlier is None:
            return [[] for _ in speaking]
        pending, slots = earlier
        tokens = pending.take()
        return [_checked(tokens[slots[s.decoding]]) if s.decoding in slots else [] for s in speaking]

    def leave(self, slot: int) -> None:
        self._decoder.release(slot)

    def move(self, source: int, target: int) -> None:
        self._decoder.move(source, target)

    def wipe(self, slot: int) -> None:
        self._decoder.wipe(slot)


def _checked(tokens: list[int]) -> Drawn:
    if any(token < 0 for token in tokens):
        return ArithmeticError("T3's scores are not finite numbers")
    return list(tokens)
