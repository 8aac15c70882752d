"""Cards of the official models: the files each needs, and the repository and revision they come from.

Everything here is data; `nightingale.hub.find` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCard:
    """One role in a model and the file names that can fill it, in order of preference."""

    role: str
    names: tuple[str, ...]
    approx_bytes: int = 0
    """Shown before a download; 0 means small."""
    needed: bool = True
    """False if the model works without it (a default voice, a table for one language)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One model: its repository and its files."""

    name: str
    family: str
    """The family of voices it accepts: "chatterbox" or "turbo"."""
    summary: str
    repo: str
    revision: str
    """The revision to download: a full commit hash, or a branch where no full hash is known."""
    revision_prefix: str
    """First digits of the tested commit. Equal to `revision` where that is a full hash."""
    files: tuple[FileCard, ...]
    variants: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Role -> variant name -> file names, for options such as `t3="v3"`."""
    borrowed: Mapping[str, str] = field(default_factory=dict)
    """Files of variants that are in another model's repository: file name -> name of that model's card."""

    def file(self, role: str) -> FileCard:
        return next(file for file in self.files if file.role == role)

    @property
    def t3_names(self) -> frozenset[str]:
        """The names of all T3 files, variants included."""
        variants = self.variants.get("t3", {}).values()
        return frozenset(name for names in (self.file("t3").names, *variants) for name in names)


_BASE_REPO: Final = "ResembleAI/chatterbox"
_BASE_REVISION: Final = "5bb1f6ee58e50c3b8d408bc82a6d3740c2db6e18"

_S3GEN = FileCard(role="s3gen", names=("s3gen.safetensors", "s3gen.pt"), approx_bytes=1_060_000_000)
_VOICE_ENCODER = FileCard(role="voice_encoder", names=("ve.safetensors", "ve.pt"), approx_bytes=5_700_000)
_CONDS = FileCard(role="conds", names=("conds.pt",), needed=False)

# Differs from s3gen only in the vocoder. Nothing upstream loads it by default, so neither do we.
# Turbo's decoder reads the same speech tokens and takes two steps in place of ten guided ones.
_MEANFLOW_FILE: Final = "s3gen_meanflow.safetensors"
_S3GEN_VARIANTS: Final = {
    "v3": ("s3gen_v3.safetensors", "s3gen_v3.pt"),
    "meanflow": (_MEANFLOW_FILE,),
}

ENGLISH: Final = Card(
    name="english",
    family="chatterbox",
    summary="English, 0.5 B parameters, guidance and exaggeration",
    repo=_BASE_REPO,
    revision=_BASE_REVISION,
    revision_prefix=_BASE_REVISION,
    files=(
        FileCard(role="t3", names=("t3_cfg.safetensors", "t3_cfg.pt"), approx_bytes=2_130_000_000),
        _S3GEN,
        _VOICE_ENCODER,
        FileCard(role="tokenizer", names=("tokenizer.json",)),
        _CONDS,
    ),
    variants={"s3gen": _S3GEN_VARIANTS},
    borrowed={_MEANFLOW_FILE: "turbo"},
)

MULTILINGUAL: Final = replace(
    ENGLISH,
    name="multilingual",
    summary="23 languages, 0.5 B parameters, guidance and exaggeration",
    files=(
        FileCard(role="t3", names=("t3_mtl23ls_v2.safetensors",), approx_bytes=2_140_000_000),
        _S3GEN,
        _VOICE_ENCODER,
        FileCard(role="tokenizer", names=("grapheme_mtl_merged_expanded_v1.json",)),
        FileCard(role="cangjie", names=("Cangjie5_TC.json",), needed=False),  # Chinese only
        _CONDS,
    ),
    variants={
        "t3": {"v2": ("t3_mtl23ls_v2.safetensors",), "v3": ("t3_mtl23ls_v3.safetensors",)},
        "s3gen": _S3GEN_VARIANTS,
    },
)

# Only the first digits of these two revisions are known, and the hub takes only full hashes: the branch is
# downloaded and compared with these digits and with the file digests below.
TURBO: Final = Card(
    name="turbo",
    family="turbo",
    summary="English, 0.35 B parameters, two-step decoder, [laugh] and other tags",
    repo="ResembleAI/chatterbox-turbo",
    revision="main",
    revision_prefix="749d1c1a",
    files=(
        FileCard(role="t3", names=("t3_turbo_v1.safetensors",), approx_bytes=1_920_000_000),
        FileCard(role="s3gen", names=(_MEANFLOW_FILE,), approx_bytes=1_070_000_000),
        FileCard(role="voice_encoder", names=("ve.safetensors",), approx_bytes=5_700_000),
        FileCard(role="tokenizer", names=("vocab.json",)),
        FileCard(role="merges", names=("merges.txt",)),
        FileCard(role="added_tokens", names=("added_tokens.json",)),
        _CONDS,
    ),
)

NANO: Final = replace(
    TURBO,
    name="nano",
    summary="English, 0.14 B parameters in use, two-step decoder",
    repo="ResembleAI/chatterbox-nano",
    revision_prefix="71ccd1d0",
    files=(
        FileCard(role="t3", names=("t3_nano_v1.safetensors",), approx_bytes=870_000_000),
        *TURBO.files[1:],
    ),
)

CARDS: Final[Mapping[str, Card]] = {card.name: card for card in (ENGLISH, MULTILINGUAL, TURBO, NANO)}


def card_of_file(card: Card, name: str) -> Card:
    """Return the card whose repository holds a file of `card`."""
    return CARDS[card.borrowed[name]] if name in card.borrowed else card


SHA256: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    # (repository, file) -> first and last digits of its SHA-256, as far as they are known.
    (_BASE_REPO, "ve.pt"): ("4b16d836", "79f1"),
    (_BASE_REPO, "t3_mtl23ls_v3.safetensors"): ("5abca832", "5953"),
    (_BASE_REPO, "s3gen.pt"): ("9b9ff07e", "d2a3"),
    (_BASE_REPO, "grapheme_mtl_merged_expanded_v1.json"): ("69632f47", "7dbf"),
    (TURBO.repo, "t3_turbo_v1.safetensors"): ("fcf1f8c1", ""),
    (TURBO.repo, "ve.safetensors"): ("f0921cab", ""),
    (TURBO.repo, _MEANFLOW_FILE): ("d65cb687", ""),
    (TURBO.repo, "conds.pt"): ("b1852099", ""),
    (TURBO.repo, "vocab.json"): ("f6bd25a6", ""),
    (TURBO.repo, "merges.txt"): ("1ce16647", ""),
    (TURBO.repo, "added_tokens.json"): ("72e4ab6a", ""),
}
