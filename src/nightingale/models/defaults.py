"""Defaults of each model family around its networks: sampling, limits, segmentation and reference clips.

Network sizes are in models/chatterbox/presets.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from nightingale.request_options import missing_in
from nightingale.types import Sampling
from nightingale.wren import SAMPLING as WREN_SAMPLING

StreamMode = Literal["segment", "block"]
"""Units in which audio is rendered and handed out: whole text segments, or blocks of a segment's tokens."""
SILENCE_TOKEN: Final = 4299
"""The speech token of silence in the official vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    sampling: Sampling
    exaggeration: float
    sampler: Literal["chatterbox", "turbo"]
    """The order of the sampling steps (decoding/sampling.py)."""
    ignored: frozenset[str] = frozenset()
    """Controls that the model does not have; setting one is refused rather than ignored."""
    auto_devices: frozenset[str] = frozenset()
    """Kinds of device that `device="auto"` takes before the CPU. One belongs here once it is measured to be faster."""
    profile: str = "balanced"
    """The profile when none is asked for."""
    stream: StreamMode = "segment"
    """The stream mode of profiles that leave it open (docs/streaming.md)."""
    max_new_tokens: int = 1000
    max_text_ids: int = 700
    """The longest text segment that fits the KV cache."""
    tokens_per_text_id: float | None = None
    """Limits the speech tokens of an utterance to this many per text id."""
    split_chars: int | None = 280
    """Text is split into segments of about this many characters; None leaves it whole."""
    fill_segments: bool = True
    """Put as many sentences as fit into one segment; otherwise each sentence is one."""
    silence_ids: frozenset[int] = frozenset({SILENCE_TOKEN})
    """Speech tokens of silence. If none is known, silence is detected as a repetition."""
    first_block_tokens: int | None = None
    """Size of a stream's first block, where it may be shorter than the profile's: audio starts sooner."""
    second_block_tokens: int | None = None
    """Size of the second block, which must be rendered while the first one plays."""
    closing_pause_ms: int = 0
    """Silence after the last segment: some players cut the end of a file."""
    guarded: bool = True
    """Watch for repetition, silence and a missing end, and sample again where that helps."""
    tail_silence_tokens: int = 0
    """Silence tokens that are appended before rendering."""
    drop_last_token: bool = False
    """Cut the audio of the last token before the stop, which is 40 ms of noise."""
    prompt_seconds: float = 6.0
    """The length of the reference clip that becomes T3's prompt."""
    flow_prompt_seconds: float = 10.0
    """The length of the reference clip that becomes the flow's prompt."""
    reference_longer_than_s: float = 1.0
    reference_loudness_lufs: float | None = None
    recording_loudness_lufs: float | None = None
    """The loudness of recordings that are converted, for those that are not near it; None leaves all as they are."""
    renders_recorded_mel: bool = False
    """Convert recordings with their mel besides their speech tokens (backends/shared/recorded_mel.py)."""


# CUDA is measured (docs/performance.md). MLX is not, but on a Mac it is what runs these models without PyTorch, and
# the CPU backend's kernels are not chosen there (docs/apple.md).
OFFICIAL_AUTO_DEVICES: Final = frozenset({"cuda", "mlx"})
ENGLISH: Final = ModelDefaults(
    sampling=Sampling(), exaggeration=0.5, sampler="chatterbox", auto_devices=OFFICIAL_AUTO_DEVICES
)
# PARITY: upstream HEAD drops the last token's audio for multilingual only.
#         tests/engine/test_tts.py::test_multilingual_drops_the_audio_of_its_last_token
MULTILINGUAL: Final = replace(ENGLISH, drop_last_token=True)
TURBO: Final = ModelDefaults(
    sampling=Sampling(top_p=0.95, min_p=0.0, top_k=1000, cfg_weight=0.0),
    exaggeration=0.0,
    sampler="turbo",
    auto_devices=OFFICIAL_AUTO_DEVICES,
    ignored=missing_in("turbo"),
    # PARITY: upstream draws once before its loop of 1000.
    #         tests/backends/torch/test_decoding.py::test_turbo_samples_one_more_than_its_loop
    max_new_tokens=1001,
    tail_silence_tokens=3,
    prompt_seconds=15.0,
    reference_longer_than_s=5.0,
    reference_loudness_lufs=-27.0,
)
WREN: Final = ModelDefaults(
    # On an H200 (PyTorch renders there) its real-time factor was 0.088, on the 16 CPU cores beside it 0.064
    # (dev/LOG.md). MLX was only run on a CPU.
    auto_devices=frozenset(),
    stream="block",
    sampling=WREN_SAMPLING,
    exaggeration=0.0,
    sampler="chatterbox",
    ignored=missing_in("wren"),
    max_new_tokens=750,
    # Wren has its own tokenizer; its silence tokens are measured and stored in its card.
    silence_ids=frozenset(),
    # English speech has about three tokens per text id of wren's vocabulary.
    tokens_per_text_id=6.0,
    split_chars=220,
    fill_segments=False,
    first_block_tokens=7,
    second_block_tokens=9,
    closing_pause_ms=250,
    prompt_seconds=0.0,
    # As long as the prompts it was trained with; it only matches the acoustics of a clone's recording.
    flow_prompt_seconds=1.5,
    # About as loud as its own speech. At 12 LU more or less, one of three digits of its speech tokens is another one.
    recording_loudness_lufs=-24.0,
    renders_recorded_mel=True,
)

MODEL_DEFAULTS: Final[Mapping[str, ModelDefaults]] = {
    "english": ENGLISH,
    "multilingual": MULTILINGUAL,
    "turbo": TURBO,
    "nano": TURBO,
    "wren": WREN,
    # Test signals have no stop token: each segment ends after two seconds.
    "noise": replace(ENGLISH, auto_devices=frozenset(), stream="block", max_new_tokens=50, guarded=False),
}
