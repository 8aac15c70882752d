"""Sizes, special ids and prompt layout of T3 in each model. This file is free of torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nightingale.errors import TextTooLong

START_SPEECH = 6561
STOP_SPEECH = 6562
PERCEIVER_HEADS = 4
PERCEIVER_QUERIES = 32
"""Vectors that the perceiver compresses a speech prompt to."""
UNUSED_BY_T3 = frozenset({"tfmr.embed_tokens.weight", "tfmr.wte.weight", "text_head.weight"})
"""Weights that only training needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama backbone; the defaults are those of the official 0.5 B model."""

    layers: int = 30
    width: int = 1024
    heads: int = 16
    ffn: int = 4096
    rope_theta: float = 500_000.0
    rope_scaling: bool = True

    @property
    def parameters(self) -> int:
        """The weights that one step reads."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.ffn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config:
    """Sizes of a GPT-2 backbone; the defaults are Turbo's."""

    layers: int = 24
    width: int = 1024
    heads: int = 16
    positions: int = 8196

    @property
    def parameters(self) -> int:
        """The weights that one step reads."""
        return self.layers * 12 * self.width**2


@dataclass(frozen=True, slots=True, kw_only=True)
class T3Config:
    """Sizes of T3, and the layout of its prompt."""

    backbone: LlamaConfig | Gpt2Config
    text_vocab: int
    speech_vocab: int
    prompt_tokens: int
    """The largest number of speech tokens of the reference clip in the prompt."""
    start_text: int | None
    stop_text: int | None
    starts: int
    """Start-of-speech tokens before the first generated token."""
    learned_positions: tuple[int, int] | None
    """Rows of the learned position tables of text and speech; None if there are none."""
    perceiver: bool
    """Compress the prompt to 32 vectors and add an emotion vector; otherwise the prompt is used as it is."""
    head_bias: bool
    speaker_width: int = 256
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) of the attention heads that follow the text, which time words (docs/captions.md); empty if none is
    known."""

    @property
    def traced_heads(self) -> tuple[tuple[int, int], ...]:
        """The alignment heads, without those of layers that a smaller backbone of the family lacks."""
        layers, heads = self.backbone.layers, self.backbone.heads
        return tuple((layer, head) for layer, head in self.alignment_heads if layer < layers and head < heads)

    def frame_text(self, text_ids: list[int]) -> list[int]:
        """Return the text ids between the start and stop ids, where the model has them."""
        start, stop = self.start_text, self.stop_text
        return [*([] if start is None else [start]), *text_ids, *([] if stop is None else [stop])]

    def checked_text(self, text_ids: list[int], *, max_new_tokens: int) -> list[int]:
        """Return `frame_text`; raise TextTooLong if the model has no positions for it and so many tokens."""
        framed, limit = self.frame_text(text_ids), None
        if self.learned_positions is not None:
            limit = self.learned_positions[0]
        elif isinstance(self.backbone, Gpt2Config):
            # One position table serves the speaker, the prompt, the text, the start token and the speech tokens.
            limit = self.backbone.positions - (1 + self.prompt_tokens + self.starts + max_new_tokens)
        if limit is not None and len(framed) > limit:
            raise TextTooLong(
                "the text is too long for this model",
                got=f"{len(framed)} text ids",
                allowed=f"at most {limit}",
                fix="Split the text into sentences and speak them one by one.",
            )
        return framed

    def prompt_length(self, text_ids: int) -> int:
        """Return the largest number of positions that the prompt takes for this many text ids."""
        conditioning = 1 + (PERCEIVER_QUERIES + 1 if self.perceiver else self.prompt_tokens)
        framing = (self.start_text is not None) + (self.stop_text is not None)
        return conditioning + text_ids + framing + self.starts


ENGLISH = T3Config(
    backbone=LlamaConfig(),
    text_vocab=704,
    speech_vocab=8194,
    prompt_tokens=150,
    start_text=255,
    stop_text=0,
    # PARITY: upstream feeds the start token twice; dropping one changes every token.
    #         tests/models/test_t3.py::test_the_prompt_ends_with_two_equal_starts
    starts=2,
    learned_positions=(2050, 4100),
    perceiver=True,
    head_bias=False,
    # Those that upstream's analyzer of hallucinations reads.
    alignment_heads=((12, 15), (13, 11), (9, 2)),
)
MULTILINGUAL = replace(ENGLISH, text_vocab=2454)
TURBO = T3Config(
    backbone=Gpt2Config(),
    text_vocab=50276,
    speech_vocab=6563,
    prompt_tokens=375,
    start_text=None,
    stop_text=None,
    starts=1,
    learned_positions=None,
    perceiver=False,
    head_bias=True,
    # The one of resemble-ai/chatterbox#563 that its author timed words by, on Turbo's weights.
    alignment_heads=((4, 6),),
)
# Nano is another network, whose heads have not been searched.
NANO = replace(TURBO, backbone=Gpt2Config(layers=12, width=768, heads=12), alignment_heads=())
