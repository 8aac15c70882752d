"""When the words of a segment are said: attention aligned with tokens, then refined by the energy of the audio.

Words are known while a segment is still being decoded: one is handed out as soon as its audio is there and later
tokens can hardly change its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from nightingale.backends.base import Decoder, ModelInfo
from nightingale.clocks import CLOCKS
from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.word_alignment import WordAligner
from nightingale.engine.rendering.speech_energy import FRAMES_PER_S, REACH_FRAMES, SpeechEnergy
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.text.source_words import SegmentSource, SourceWord
from nightingale.types import Samples, TimedWord

FRAMES_PER_TOKEN: Final = FRAMES_PER_S // CLOCKS.token_rate_hz
SETTLED_TOKENS: Final = 4
"""Tokens after which the end of a word is taken as certain."""


def check_timing(request: Mapping[str, Any], model: ModelInfo, decoder: Decoder) -> None:
    """Raise ConfigError if a request asks for timestamps and they are not available."""
    if request.get("timestamps", False):
        check_heads(model.name, model.preset.t3)
        if not decoder.traces_attention:
            raise ConfigError(
                "words cannot be timed here",
                got=f"a decoder of {model.name!r} that hides its attention",
                fix="Leave out timestamps.",
                param="timestamps",
            )


def check_heads(model: str, config: T3Config) -> None:
    """Raise ConfigError if none of the model's attention heads is known to follow the text."""
    if not config.traced_heads:
        timed = [name for name, preset in PRESETS.items() if preset.t3.traced_heads]
        raise ConfigError(
            f"the words of {model!r} cannot be timed",
            got="a model of which no attention head is known to follow the text",
            allowed=", ".join(timed),
            fix="Choose another model, or leave out timestamps and captions.",
            param="timestamps",
        )


class WordTimer:
    """Time the words of one segment."""

    def __init__(self, source: SegmentSource, config: T3Config) -> None:
        starts, stops = config.start_text is not None, config.stop_text is not None
        self.columns = [-1] * starts + source.id_words + [-1] * stops
        """The spoken word of each id of the framed text; -1 for none."""
        self.trace = AttentionTrace(config.traced_heads, text_ids=len(self.columns), starts=config.starts)
        self._source = source
        self._energy = SpeechEnergy()
        self._aligner = WordAligner(self.columns, len(source.words))
        self._rows: list[int] = []
        """The row of the trace that each token of the audio was sampled from."""
        self._tokens = 0
        self._final = False
        """Tokens whose audio was rendered, and whether that is all."""
        self._taken = 0
        self._last_end = 0
        """Spoken words that were handed out, and the end of the last of them, in frames."""

    def accept(self, token: int, *, rendered: bool) -> None:
        """Take the next token as it was sampled; those that are not rendered have no audio."""
        if rendered:
            self._rows.append(len(self.trace.tokens))
        self.trace.tokens.append(token)

    def push(self, samples: Samples, *, tokens: int, final: bool) -> None:
        """Add the audio of some tokens."""
        self._energy.push(samples)
        self._tokens += tokens
        self._final = final

    def take(self, speed: float) -> list[TimedWord]:
        """Return the words whose audio is complete, each once, timed from the first sample of the segment."""
        path = self._align()
        if len(path) <= SETTLED_TOKENS and not self._final:
            return []
        complete = self._aligner.words if self._final else path[-1 - SETTLED_TOKENS]
        found: list[TimedWord] = []
        for source, first, last in self._groups():
            if last >= complete:
                break
            start, end = self._frames(path, first)[1], self._frames(path, last + 1)[0]
            if end + REACH_FRAMES > self._energy.frames and not self._final:
                break
            start = max(start, self._last_end)
            end = min(max(end, start + 1), self._energy.frames)
            found.append(
                TimedWord(
                    word=source.text,
                    start_s=start / FRAMES_PER_S / speed,
                    end_s=end / FRAMES_PER_S / speed,
                    start_char=source.start,
                    end_char=source.end,
                )
            )
            self._taken = last + 1
            self._last_end = end
        return found

    def _align(self) -> list[int]:
        """Align the tokens so far; return the word of each."""
        rows = self._rows[: self._tokens] if self._final else self._rows
        if new := rows[self._aligner.tokens :]:
            attention = self.trace.attention(new[0])
            self._aligner.extend(attention[[row - new[0] for row in new]])
        return self._aligner.path(final=self._final)

    def _groups(self) -> Iterator[tuple[SourceWord, int, int]]:
        """Yield the author's words that were not handed out, and the first and last of their spoken words."""
        numbers = range(self._taken, self._aligner.words)
        for source, group in groupby(numbers, key=self._source.words.__getitem__):
            spoken = list(group)
            yield source, spoken[0], spoken[-1]

    def _frames(self, path: Sequence[int], word: int) -> tuple[int, int]:
        """Return where the word before `word` ends and where `word` starts, in frames of the energy."""
        frame = bisect_left(path, word) * FRAMES_PER_TOKEN
        if 0 < word < self._aligner.words:
            frame -= FRAMES_PER_TOKEN // 2  # on average, a token that is of two words belongs to both equally
        return self._energy.divide(frame)
