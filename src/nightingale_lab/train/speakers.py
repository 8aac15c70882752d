"""The speakers that wren learns: the teacher's named voices, and the built-in voices that are made of them.

`voices.safetensors`, written by the stage `voice-encoder`, holds two unit vectors per named voice, each the
mean over its clips: `af_heart` from wren's own voice encoder and `af_heart.teacher` from that encoder's
teacher. T3 and the flow are trained on the vectors of the teacher, so these become the built-in voices;
wren's own encoder, which is close but not equal, serves cloned voices.
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
TEACHER_SUFFIX: Final = ".teacher"
SPEAKER_SHARES: Final[Mapping[str, float]] = {
    "af_heart": 0.20, "af_bella": 0.06, "af_sarah": 0.05, "bf_emma": 0.06, "af_aoede": 0.04,
    "am_michael": 0.06, "am_fenrir": 0.06, "am_puck": 0.05, "bm_george": 0.12, "bm_fable": 0.05,
}  # fmt: skip
"""Each named voice's share of the lines. Blends of voices get the rest, since cloning needs many speakers."""
BLENDED_SPEAKERS: Final = 300
FLOW_BLENDS: Final[Mapping[str, Mapping[str, float]]] = {
    "bm_george": {"bm_george": 0.5, "am_fenrir": 0.3, "am_puck": 0.1, "bf_emma": 0.1},
}
"""Voices whose flow has a mixture of vectors, because the vocoder renders their own timbre less well (dev/LOG.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInVoice:
    """One built-in voice."""

    teacher_name: str
    """The teacher's name for it: accent, sex, underscore, name."""
    speaker: Tensor
    """(256,): for T3."""
    flow_speaker: Tensor
    """(256,): the same, or a mixture (`FLOW_BLENDS`)."""

    @property
    def name(self) -> str:
        return self.teacher_name.partition("_")[2]

    @property
    def summary(self) -> str:
        accent, sex = ACCENTS[self.teacher_name[0]], SEXES[self.teacher_name[1]]
        return f"{sex}, {accent} English, after {TEACHER}'s {self.teacher_name}"

    def card(self) -> str:
        """Return the Markdown page beside the voice's file."""
        blend = FLOW_BLENDS.get(self.teacher_name, {})
        others = ", ".join(
            f"{share:.0%} of {name}'s" for name, share in blend.items() if name != self.teacher_name
        )
        mixed = f"  The vector of the flow is mixed with {others}, which sounds cleaner.\n" if others else ""
        return (
            f"# {self.name}\n\n"
            f"Built into wren: {self.summary}.\n\n"
            f"- **Provenance.** A synthetic speaker. Wren was trained on speech that {TEACHER} made with\n"
            f"  its voice `{self.teacher_name}`; this file holds one speaker vector, the mean over those clips.\n"
            f"{mixed}"
            "  No recording of a person is in it.\n"
            f"- **Licence.** The teacher's weights and voices are under {LICENCE}; this file is under the\n"
            "  licence of the package.\n"
            f'- **Use.** `nightingale say "Hello." -v {self.name}`\n'
        )


def mean_speakers(speaker: Tensor, voice: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Return one unit vector per name: the mean over the clips whose voice number is the name's index.

    speaker: (clips, width). voice: (clips,).
    """
    means = {}
    for number, name in enumerate(names):
        vectors = speaker[voice == number].float()
        if not len(vectors) or not bool(vectors.any()):
            raise ConfigError(
                "a named voice has no clips with a speaker vector",
                got=f"{len(vectors)} clips of {name}",
                allowed="at least one",
                fix="Synthesize more lines, or name fewer voices.",
            )
        means[name] = F.normalize(vectors.mean(0), dim=0).contiguous()
    return means


def flow_speaker(name: str, speakers: Mapping[str, Tensor]) -> Tensor:
    """Return the vector of a voice for the flow: its own, or a mixture of those that are all there."""
    blend = FLOW_BLENDS.get(name, {})
    if not blend or not set(blend) <= set(speakers):
        return speakers[name]
    return F.normalize(sum((speakers[one] * share for one, share in blend.items()), torch.zeros(())), dim=0)


def read_built_in_voices(path: Path, default: str) -> list[BuiltInVoice]:
    """Return the built-in voices of a voices.safetensors, the default first, the others by name."""
    tensors = read_tensors(path)
    speakers = {
        name: tensors.get(name + TEACHER_SUFFIX, own).to(torch.float32)
        for name, own in tensors.items()
        if not name.endswith(TEACHER_SUFFIX)
    }
    voices = [
        BuiltInVoice(teacher_name=name, speaker=speaker, flow_speaker=flow_speaker(name, speakers))
        for name, speaker in speakers.items()
    ]
    names = [voice.teacher_name for voice in voices]
    invalid = [n for n in names if n[:1] not in ACCENTS or n[1:2] not in SEXES or not n.partition("_")[2]]
    if invalid or default not in {voice.name for voice in voices}:
        raise ConfigError(
            "the file does not hold the built-in voices",
            got=f"{', '.join(invalid) or ', '.join(names) or 'no voices'} in {path}",
            allowed=f"names such as af_heart, among them one for the default voice {default!r}",
            fix="Run the stage voice-encoder, or choose another default.",
        )
    return sorted(voices, key=lambda voice: (voice.name != default, voice.name))
