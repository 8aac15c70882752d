"""The four families as upstream ships them, and the environment that upstream runs in.

This module needs the standard library only: our process reads it, and so does upstream's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

SPEECH_CODES: Final = 6561
PACKAGES: Final = (
    "torch==2.13.0",
    "numpy==1.26.4",
    "scipy==1.17.1",
    "librosa==0.11.0",
    "soxr==1.1.0",
    "soundfile==0.14.0",
    "transformers==5.2.0",
    "tokenizers==0.22.2",
    "diffusers==0.29.0",
    "safetensors==0.5.3",
    "omegaconf==2.4.0",
    "einops==0.8.2",
    "pyloudnorm==0.2.0",
    "onnx==1.23.2",
    "setuptools==80.9.0",
)
WITHOUT_DEPENDENCIES: Final = (
    "chatterbox-tts==0.1.7",
    "s3tokenizer==0.3.0",
    "conformer==0.3.2",
    "resemble-perth==1.0.1",
    "torchaudio==2.11.0",
)
"""These ask for older versions of the packages above, or for CUDA."""
REMOVED: Final = ("lib/python3*/site-packages/torchaudio/lib/*.so",)
"""Libraries linked to CUDA. Without them torchaudio is pure Python, which is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    backbone: str
    """Upstream's name of T3's sizes."""
    text_vocab: int
    t3_file: str
    s3gen_file: str
    voice_encoder_file: str = "ve.safetensors"

    @property
    def guided(self) -> bool:
        """True for CFG, a perceiver and a ten-step flow; false for one row and a two-step meanflow."""
        return self.backbone == "Llama_520M"

    @property
    def voice_family(self) -> str:
        """The family of voices in our terms."""
        return "chatterbox" if self.guided else "turbo"


NANO: Final = Family(
    name="nano",
    backbone="GPT2_small",
    text_vocab=50276,
    t3_file="t3_nano_v1.safetensors",
    s3gen_file="s3gen_meanflow.safetensors",
)
TURBO: Final = Family(
    name="turbo",
    backbone="GPT2_medium",
    text_vocab=50276,
    t3_file="t3_turbo_v1.safetensors",
    s3gen_file="s3gen_meanflow.safetensors",
)
ENGLISH: Final = Family(
    name="english",
    backbone="Llama_520M",
    text_vocab=704,
    t3_file="t3_cfg.safetensors",
    s3gen_file="s3gen.safetensors",
)
MULTILINGUAL: Final = Family(
    name="multilingual",
    backbone="Llama_520M",
    text_vocab=2454,
    t3_file="t3_mtl23ls_v2.safetensors",
    s3gen_file="s3gen.pt",
    voice_encoder_file="ve.pt",
)
FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family for family in (NANO, TURBO, ENGLISH, MULTILINGUAL)
}
"""The fastest first."""
CONDS_FILE: Final = "conds.pt"
"""The default voice of a model."""
LEAST_TOKENS, TOKENS_PER_TEXT_ID = 30, 1.2
"""Random weights do not know where a text ends, so its length decides. Text ids are bytes here."""


def tokens_for(text_ids: int) -> int:
    """Return how many speech tokens both sides make for a text of that many ids."""
    return LEAST_TOKENS + ceil(TOKENS_PER_TEXT_ID * text_ids)
