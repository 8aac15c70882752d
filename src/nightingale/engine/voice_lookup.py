"""Resolution of the voice of a request: a `Voice`, a name, a voice file, or a clip that is enrolled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from numpy.typing import ArrayLike

from nightingale.audio.read import MAX_SECONDS, check_clip, read_audio
from nightingale.backends import BACKENDS
from nightingale.backends.base import Backend, Encoders, Setup, how_to_install_torch
from nightingale.engine.cloning import clone
from nightingale.engine.load import Model
from nightingale.engine.requests.recordings import file_contents
from nightingale.errors import VoiceError, VoiceNotFound
from nightingale.files import as_path
from nightingale.types import AudioChunk, Samples
from nightingale.voices import library
from nightingale.voices.aliases import DEFAULT, resolve_alias
from nightingale.voices.blend import blend, is_blend, parse_blend
from nightingale.voices.cache import enrolled
from nightingale.voices.voice import Voice

VoiceReference = str | Path | bytes | BinaryIO | AudioChunk | tuple[ArrayLike, int]
"""A voice's name or a blend, the path of a voice file or of a clip, the clip's contents or an open file of them, or its
audio: an `Audio`, or (samples, sample rate in hertz)."""

_KINDS: Final = (
    "a voice's name, a blend such as heart(2)+emma, a voice file, or a clip of the speaker: the path, contents or "
    "file object of a wav, flac, ogg or mp3 file, or (samples, sample rate)"
)
_CLIP: Final = "clip"
"""The name of a voice that is made from a clip without one."""


class VoiceResolver:
    """Find or make the voices of one model."""

    def __init__(self, model: Model, setup: Setup, preferred: Backend | None = None) -> None:
        """setup: the device and profile that the engine runs with. preferred: its backend clones if it can."""
        self._model = model
        self._setup = setup
        self._preferred = preferred
        self._opened: Encoders | None = None

    def resolve(self, voice: Voice | VoiceReference | None) -> Voice:
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

    def find(self, reference: VoiceReference) -> Voice:
        """Return a voice by name, from a voice file, or from a clip (enrolled once, then cached)."""
        voice = self._named(reference) if isinstance(reference, str | Path) else self._of_clip(reference)
        self._check_fits(voice)
        return voice

    def named(self, name: str) -> Voice:
        """Return a voice or a blend by name alone: unlike `find`, it opens no file that the name may be a path of."""
        if is_blend(name):
            return self._blended(name)
        if not library.is_name(name.lower()):
            raise VoiceNotFound(
                "no such voice", got=repr(name[:40]), allowed="a name", fix="See `nightingale voices list`."
            )
        voice = self._by_name(name.lower())
        self._check_fits(voice)
        return voice

    def names(self) -> tuple[str, ...]:
        """Return the names of the voices that the model can use."""
        family, own = self._model.voice_family, self._model.default_voice
        names = {entry.name for entry in library.entries(self._model.voices) if entry.family == family}
        return tuple(sorted(names | ({own.name} if own is not None else set())))

    def learn(self, clip: Path | bytes, *, name: str, max_seconds: float = MAX_SECONDS) -> Voice:
        """Make a voice from a clip, without looking for it in the cache or storing it there."""
        samples, rate_hz = read_audio(clip, max_seconds=max_seconds)
        return self._clone(samples, rate_hz, name=name, source=clip.name if isinstance(clip, Path) else name)

    def _named(self, reference: str | Path) -> Voice:
        model, path = self._model, as_path(reference).expanduser()
        name = str(reference).lower()
        if isinstance(reference, str) and not path.is_file():
            if library.is_name(name):
                return self._by_name(name)
            if is_blend(name):
                return self._blended(name)
        if not path.is_file():
            raise VoiceNotFound(
                "no such voice",
                got=repr(str(reference)),
                allowed=_KINDS,
                fix="See `nightingale voices list`, or check the path.",
            )
        if path.suffix == ".safetensors":
            return Voice.load(path)
        if path.suffix == ".pt":
            return Voice.from_conds_pt(path, family=model.voice_family, name=path.stem)
        return self._enrol(path, partial(self.learn, path, name=path.stem))

    def _blended(self, spec: str) -> Voice:
        return blend([(self.named(name), weight) for name, weight in parse_blend(spec)])

    def _by_name(self, name: str) -> Voice:
        """Return a voice of the library, else the model's own, else the one that the name is an alias of."""
        model, own = self._model, self._model.default_voice
        if library.locate(name, model.voices) is None:
            if name == DEFAULT or (own is not None and name == own.name):
                return self.resolve(None)
            entries = library.entries(model.voices)
            builtin = [one.name for one in entries if one.builtin and one.family == model.voice_family]
            builtin = builtin or ([own.name] if own is not None else [])
            if (known := resolve_alias(name, builtin)) is not None:
                return self._by_name(known)
        return library.load(name, model.voices)

    def _of_clip(self, reference: object) -> Voice:
        """Return the voice of a clip in memory: the contents of a file, a file object, or samples."""
        if isinstance(reference, AudioChunk):
            reference = (reference.samples, reference.sample_rate_hz)
        if isinstance(reference, tuple) and len(reference) == 2:
            samples, rate_hz = check_clip(*reference)
            make = partial(self._clone, samples, rate_hz, name=_CLIP, source=_CLIP)
            return self._enrol(samples.tobytes() + f"|{rate_hz}".encode(), make)
        contents = file_contents(reference, "voice", _KINDS)
        return self._enrol(contents, partial(self.learn, contents, name=_CLIP))

    def _enrol(self, clip: Path | bytes, make: Callable[[], Voice]) -> Voice:
        return enrolled(clip, self._model.voice_family, self._model.fingerprint, make)

    def _clone(self, samples: Samples, rate_hz: int, *, name: str, source: str) -> Voice:
        family, info, encoders = self._model.voice_family, self._model.info, self.encoders()
        return clone(samples, rate_hz, name=name, source=source, family=family, encoders=encoders, info=info)

    def encoders(self) -> Encoders:
        """Return the encoders, which are opened when they are first needed."""
        self._opened = self._opened or self._open_encoders()
        return self._opened

    def _open_encoders(self) -> Encoders:
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
            fix=how_to_install_torch(),
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
