"""Who speaks: the teacher's voices that wren learns by name, and the built-in voices made of them.

`voices.safetensors`, written by the stage `voice-encoder`, holds one unit vector per named voice, the mean
over its clips: under the teacher's name (`af_heart`) as wren's own encoder hears it, under `af_heart.teacher`
as the encoder's teacher does. T3 and the flow were told speakers by the encoder's teacher, so the built-in
voices are its vectors; wren's own ear, which is near but not the same, serves clones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.errors import ConfigError
from nightingale.models.checkpoint import read_tensors

TEACHER: Final = "Kokoro-82M"
LICENCE: Final = "Apache-2.0"
SEXES: Final = {"f": "female", "m": "male"}
ACCENTS: Final = {"a": "American", "b": "British"}
HEARD_BY_TEACHER: Final = ".teacher"
SHARES: Final[Mapping[str, float]] = {
    "af_heart": 0.20, "af_bella": 0.06, "af_sarah": 0.05, "bf_emma": 0.06, "af_aoede": 0.04,
    "am_michael": 0.06, "am_fenrir": 0.06, "am_puck": 0.05, "bm_george": 0.06, "bm_fable": 0.03,
}  # fmt: skip
"""Voice -> share of the lines. What is left goes to blends, for cloning needs many speakers."""
BLENDS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CastVoice:
    """One built-in voice."""

    theirs: str
    """The teacher's name: accent, sex, underscore, name."""
    speaker: Tensor
    """(256,)"""

    @property
    def name(self) -> str:
        return self.theirs.partition("_")[2]

    @property
    def summary(self) -> str:
        return f"{SEXES[self.theirs[1]]}, {ACCENTS[self.theirs[0]]} English, after {TEACHER}'s {self.theirs}"

    def card(self) -> str:
        """The page beside the voice's file."""
        return (
            f"# {self.name}\n\n"
            f"Built into wren: {self.summary}.\n\n"
            f"- **Provenance.** A synthetic speaker. Wren was trained on speech that {TEACHER} made with\n"
            f"  its voice `{self.theirs}`; this file holds one speaker vector, the mean over those clips.\n"
            "  No recording of a person is in it.\n"
            f"- **Licence.** The teacher's weights and voices are under {LICENCE}; this file is under the\n"
            "  licence of the package.\n"
            f'- **Use.** `nightingale say "Hello." -v {self.name}`\n'
        )


def mean_speakers(speaker: Tensor, voice: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """One unit vector per name; name i has the clips whose voice number is i. speaker: (clips, width)."""
    means = {}
    for number, name in enumerate(names):
        mine = speaker[voice == number].float()
        if not len(mine) or not bool(mine.any()):
            raise ConfigError(
                "a named voice has no measured clips",
                got=f"{len(mine)} clips of {name}",
                allowed="at least one clip with a speaker vector",
                fix="Speak more lines, or name fewer voices.",
            )
        means[name] = F.normalize(mine.mean(0), dim=0).contiguous()
    return means


def read_cast(path: Path, default: str) -> list[CastVoice]:
    """The built-in voices of a voices.safetensors, the default first, the others by name."""
    held = read_tensors(path)
    cast = [
        CastVoice(theirs=name, speaker=held.get(name + HEARD_BY_TEACHER, own).to(torch.float32))
        for name, own in held.items()
        if not name.endswith(HEARD_BY_TEACHER)
    ]
    odd = [v.theirs for v in cast if v.theirs[:1] not in ACCENTS or v.theirs[1:2] not in SEXES or not v.name]
    if odd or default not in {voice.name for voice in cast}:
        raise ConfigError(
            "the built-in voices cannot be cast",
            got=f"{', '.join(odd) or ', '.join(v.theirs for v in cast) or 'no voices'} in {path}",
            allowed=f"names such as af_heart, among them one for the default voice {default!r}",
            fix="Run the stage voice-encoder, or choose another default.",
        )
    return sorted(cast, key=lambda voice: (voice.name != default, voice.name))
