"""Resolution of the voice of a request: a `Voice`, a name, a voice file, or a clip that is enrolled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from nightingale.audio.read import MAX_SECONDS, read_audio
from nightingale.backends import BACKENDS
from nightingale.backends.base import INSTALL_TORCH, Backend, Encoders, Setup
from nightingale.engine.cloning import clone
from nightingale.engine.load import Model
from nightingale.errors import VoiceError, VoiceNotFound
from nightingale.voices import library
from nightingale.voices.cache import enrolled
from nightingale.voices.voice import Voice

_KINDS: Final = "a voice's name, a voice file, or a wav, flac, ogg or mp3 clip of the speaker"


class VoiceResolver:
    """Find or make the voices of one model."""

    def __init__(self, model: Model, setup: Setup, preferred: Backend | None = None) -> None:
        """setup: the device and profile that the engine runs with. preferred: its backend clones if it can."""
        self._model, self._setup, self._preferred = model, setup, preferred

    def resolve(self, voice: Voice | str | Path | None) -> Voice:
        """Return the voice that a request means; None means the model's default voice."""
        if isinstance(voice, Voice):
            self._check_fits(voice)
            return voice
        if voice is not None:
            return self.find(voice)
        if self._model.default_voice is None:
            raise VoiceNotFound(
                f"the model {self._model.name!r} has no voice of its own here",
                got="no voice, and no conds.pt beside the weights",
                allowed=_KINDS,
                fix="Pass one, on the command line with -v.",
            )
        return self._model.default_voice

    def find(self, reference: str | Path) -> Voice:
        """Return a voice by name, from a voice file, or from a clip (enrolled once, then cached)."""
        model, path = self._model, Path(reference).expanduser()
        if library.is_name(str(reference)) and not path.is_file():
            voice = library.load(str(reference), model.voices)
        elif not path.is_file():
            raise VoiceNotFound(
                "no such voice",
                got=repr(str(reference)),
                allowed=_KINDS,
                fix="See `nightingale voices list`, or check the path.",
            )
        elif path.suffix == ".safetensors":
            voice = Voice.load(path)
        elif path.suffix == ".pt":
            voice = Voice.from_conds_pt(path, family=model.voice_family, name=path.stem)
        else:
            make = partial(self.learn, path, name=path.stem)
            voice = enrolled(path, model.voice_family, model.fingerprint, make)
        self._check_fits(voice)
        return voice

    def learn(self, clip: Path | bytes, *, name: str, max_seconds: float = MAX_SECONDS) -> Voice:
        """Make a voice from a clip, without looking for it in the cache or storing it there."""
        samples, rate_hz = read_audio(clip, max_seconds=max_seconds)
        source = clip.name if isinstance(clip, Path) else name
        family, info, encoders = self._model.voice_family, self._model.info, self._encoders()
        return clone(samples, rate_hz, name=name, source=source, family=family, encoders=encoders, info=info)

    def _encoders(self) -> Encoders:
        """Open the encoders of the first backend that has them; the preferred one is loaded already."""
        preferred = () if self._preferred is None else (self._preferred,)
        setup = replace(self._setup, precision="float32")  # whatever the renderer's is
        for backend in (*preferred, *reversed(BACKENDS)):
            if backend.unsupported_reason("renderer", self._model.info, setup) is not None:
                continue
            encoders: Encoders | None = backend.open_encoders(self._model.source, setup)
            if encoders is not None:
                return encoders
        raise VoiceError(
            f"no installed backend can clone voices for the model {self._model.name!r}",
            fix=INSTALL_TORCH,
        )

    def _check_fits(self, voice: Voice) -> None:
        model, preset = self._model, self._model.info.preset
        widths = (preset.t3.speaker_width, preset.flow.speaker_width)
        sizes = (len(voice.speaker), len(voice.flow_speaker))
        if voice.family != model.voice_family or sizes != widths:
            raise VoiceError(
                f"the voice {voice.name!r} was made for another model",
                got=f"family {voice.family!r}, speaker vectors of sizes {sizes}",
                allowed=f"family {model.voice_family!r}, sizes {widths}, for the model {model.name!r}",
                fix="Choose one of this family (`nightingale voices list`), or make it again from its clip.",
            )
