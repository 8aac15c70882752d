"""How each member of the family behaves around its networks: defaults, order of sampling, start and end.

Sizes live with the networks (models/chatterbox/presets.py); this is all else in which two members differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from nightingale.types import Sampling
from nightingale.wren import SAMPLING as WREN_SAMPLING

SILENCE_TOKEN: Final = 4299
"""The speech token of silence in the official vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    sampling: Sampling
    exaggeration: float
    sampler: Literal["chatterbox", "turbo"]
    """Whose order of sampling steps to follow."""
    ignored: frozenset[str] = frozenset()
    """Controls this member has no use for; setting one is refused rather than ignored."""
    profile: str = "exact"
    """The profile used when none is asked for: upstream's rendering, unless the model was made to stream."""
    max_new_tokens: int = 1000
    max_text_ids: int = 700
    """The longest piece of text there is memory for."""
    tokens_per_text_id: float | None = None
    """If set, an utterance may have this many speech tokens per text id, and no more: it cannot run away."""
    split_chars: int | None = 280
    """If set, text is spoken in pieces of about this many characters at most."""
    fill_pieces: bool = True
    """As much as fits goes into one piece: short text is spoken whole. Otherwise each sentence is one."""
    silence_ids: frozenset[int] = frozenset({SILENCE_TOKEN})
    """Speech tokens of which a run is silence, and not speech. None known: silence is noticed as a loop."""
    first_block_tokens: int | None = None
    """Of a stream's first block, where it need not be as long as the profile's: the sooner it is heard."""
    second_block_tokens: int | None = None
    """Of the block after it, which must be rendered while the first is played: nothing is in store yet."""
    closing_pause_ms: int = 0
    """Silence after the last piece: players swallow the end of a file that stops with its last sound."""
    guarded: bool = True
    """Watched for loops, silence and a missing end, and drawn again where that helps."""
    tail_silence_tokens: int = 0
    """Silence appended before rendering."""
    drop_last_token: bool = False
    """The last token before the stop decodes to 40 ms of noise; its audio is cut."""
    prompt_seconds: float = 6.0
    """How much of the reference clip T3 is shown."""
    flow_prompt_seconds: float = 10.0
    """How much of the reference clip the flow is shown."""
    reference_longer_than_s: float = 1.0
    reference_loudness_lufs: float | None = None


ENGLISH: Final = ModelDefaults(sampling=Sampling(), exaggeration=0.5, sampler="chatterbox")
# PARITY: upstream HEAD drops the last token's audio for multilingual only.
#         tests/engine/test_tts.py::test_multilingual_drops_the_audio_of_its_last_token
MULTILINGUAL: Final = replace(ENGLISH, drop_last_token=True)
TURBO: Final = ModelDefaults(
    sampling=Sampling(top_p=0.95, min_p=0.0, top_k=1000, cfg_weight=0.0),
    exaggeration=0.0,
    sampler="turbo",
    ignored=frozenset({"cfg_weight", "exaggeration", "min_p"}),
    # PARITY: upstream draws once before its loop of 1000.
    #         tests/engine/test_decode.py::test_turbo_draws_one_more_than_its_loop
    max_new_tokens=1001,
    tail_silence_tokens=3,
    prompt_seconds=15.0,
    reference_longer_than_s=5.0,
    reference_loudness_lufs=-27.0,
)
WREN: Final = ModelDefaults(
    profile="balanced",
    sampling=WREN_SAMPLING,
    exaggeration=0.0,
    sampler="chatterbox",
    ignored=frozenset({"cfg_weight", "exaggeration"}),
    max_new_tokens=750,
    # Wren's tokenizer is its own; which of its ids are silence is measured, and told by its card.
    silence_ids=frozenset(),
    # English speech has about three tokens per text id of wren's vocabulary.
    tokens_per_text_id=6.0,
    split_chars=220,
    fill_pieces=False,
    first_block_tokens=7,
    second_block_tokens=9,
    closing_pause_ms=250,
    prompt_seconds=0.0,
    # As long as the prompts it was trained with: shown only so that a clone's recording sounds alike.
    flow_prompt_seconds=1.5,
)

MODEL_DEFAULTS: Final[Mapping[str, ModelDefaults]] = {
    "english": ENGLISH,
    "multilingual": MULTILINGUAL,
    "turbo": TURBO,
    "nano": TURBO,
    "wren": WREN,
    # The stand-in never learned to stop, so it is stopped after two seconds, and nobody tries again.
    "noise": replace(ENGLISH, max_new_tokens=50, guarded=False),
}
