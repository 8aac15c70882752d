"""The four families as upstream ships them: file names, sizes, seeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    seed: int
    """Of the random weights."""
    llama_config: str
    """Upstream's name of the backbone's sizes."""
    text_vocab: int
    t3_file: str
    s3gen_file: str
    voice_file: str

    @property
    def guided(self) -> bool:
        """Two rows, a perceiver, a ten-step flow; otherwise one row, a bare prompt, a two-step meanflow."""
        return self.llama_config == "Llama_520M"


FAMILIES = (
    Family(
        name="english",
        seed=101,
        llama_config="Llama_520M",
        text_vocab=704,
        t3_file="t3_cfg.safetensors",
        s3gen_file="s3gen.safetensors",
        voice_file="ve.safetensors",
    ),
    Family(
        name="multilingual",
        seed=202,
        llama_config="Llama_520M",
        text_vocab=2454,
        t3_file="t3_mtl23ls_v2.safetensors",
        s3gen_file="s3gen.pt",
        voice_file="ve.pt",
    ),
    Family(
        name="turbo",
        seed=303,
        llama_config="GPT2_medium",
        text_vocab=50276,
        t3_file="t3_turbo_v1.safetensors",
        s3gen_file="s3gen_meanflow.safetensors",
        voice_file="ve.safetensors",
    ),
    Family(
        name="nano",
        seed=404,
        llama_config="GPT2_small",
        text_vocab=50276,
        t3_file="t3_nano_v1.safetensors",
        s3gen_file="s3gen_meanflow.safetensors",
        voice_file="ve.safetensors",
    ),
)
