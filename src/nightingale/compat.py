"""The Python API of chatterbox-tts on this engine: change one import in programs written for it.

    from chatterbox.tts import ChatterboxTTS            # before
    from nightingale.compat import ChatterboxTTS        # after

Names, order and defaults of the parameters are upstream's. The differences:

- **Voices belong to calls.** Upstream stores the voice on the model, so that `audio_prompt_path` of one call
  changes the voice of all later calls, in every thread. Here it is used for its own call only.
  `prepare_conditionals` sets the voice of the calls that name none, as upstream does; a call that is running
  keeps its voice.
- **Seeds.** `torch.manual_seed(n)` before `generate` makes it repeatable, as upstream, but the samples differ
  from upstream's. Threads share torch's generator; use `TTS.say(seed=n)` if their order matters.
- **Errors** are those of `nightingale.errors`. The audio has no watermark; docs/conversion.md says how to add it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nightingale.engine import TTS
from nightingale.engine.conversion import VoiceConverter
from nightingale.errors import ConfigError
from nightingale.request_options import SEED_LIMIT
from nightingale.text.languages import LANGUAGES
from nightingale.voices.voice import Voice

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SUPPORTED_LANGUAGES = dict(LANGUAGES)

_log = logging.getLogger(__name__)


class _Chatterbox:
    """Base of the three models that speak."""

    MODEL: ClassVar[str]

    def __init__(self, tts: TTS, device: str = "cpu") -> None:
        self.tts = tts
        """The engine, with `stream`, `session` and the rest of its API."""
        self.device, self.sr = device, tts.sample_rate_hz
        self.conds: Voice | None = None
        """The voice of calls that name none; None is the model's own."""

    @classmethod
    def _load(cls, model: str | Path, device: str | torch.device, **options: Any) -> Self:
        name = _device_name(device)
        return cls(TTS(model, device=name, profile="exact", **options), name)

    @classmethod
    def from_pretrained(cls, device: str | torch.device = "cpu") -> Self:
        return cls._load(cls.MODEL, device)

    @classmethod
    def from_local(cls, ckpt_dir: str | Path, device: str | torch.device = "cpu") -> Self:
        return cls._load(Path(ckpt_dir), device, kind=cls.MODEL)  # a folder does not say what it holds

    def prepare_conditionals(self, wav_fpath: str | Path, exaggeration: float = 0.5) -> None:
        """Make this clip the voice of later calls. As upstream, only `generate` uses exaggeration."""
        del exaggeration
        self.conds = self.tts.voice(wav_fpath)

    def _say(
        self, text: str, audio_prompt_path: str | Path | None, language_id: str | None = None, **controls: Any
    ) -> Tensor:
        """Speak; `generate` of each model passes its own parameters on."""
        import torch

        # Read once: another thread may call `prepare_conditionals` at any time.
        voice = self.tts.voice(audio_prompt_path) if audio_prompt_path else self.conds
        language, seed = language_id or None, _drawn_seed()
        audio = self.tts.say(text, voice=voice, language=language, seed=seed, **controls)
        return torch.from_numpy(audio.samples).unsqueeze(0)


class ChatterboxTTS(_Chatterbox):
    """The English model."""

    MODEL = "english"

    def generate(
        self,
        text: str,
        repetition_penalty: float = 1.2,
        min_p: float = 0.05,
        top_p: float = 1.0,
        audio_prompt_path: str | Path | None = None,
        exaggeration: float = 0.5,
        cfg_weight: float = 0.5,
        temperature: float = 0.8,
    ) -> Tensor:
        """Return audio of shape (1, samples), float32 at `sr`."""
        return self._say(
            text,
            audio_prompt_path,
            repetition_penalty=repetition_penalty,
            min_p=min_p,
            top_p=top_p,
            exaggeration=exaggeration,
            cfg_weight=cfg_weight,
            temperature=temperature,
        )


class ChatterboxMultilingualTTS(_Chatterbox):
    """The model for 23 languages."""

    MODEL = "multilingual"

    @classmethod
    def from_pretrained(cls, device: str | torch.device = "cpu", t3_model: str | None = None) -> Self:
        return cls._load(cls.MODEL, device, **_t3_option(t3_model))

    @classmethod
    def from_local(
        cls, ckpt_dir: str | Path, device: str | torch.device = "cpu", t3_model: str | None = None
    ) -> Self:
        return cls._load(Path(ckpt_dir), device, kind=cls.MODEL, **_t3_option(t3_model))

    @classmethod
    def get_supported_languages(cls) -> dict[str, str]:
        return dict(SUPPORTED_LANGUAGES)

    def generate(
        self,
        text: str,
        language_id: str | None,
        audio_prompt_path: str | Path | None = None,
        exaggeration: float = 0.5,
        cfg_weight: float = 0.5,
        temperature: float = 0.8,
        repetition_penalty: float = 1.2,
        min_p: float = 0.05,
        top_p: float = 1.0,
    ) -> Tensor:
        """Return audio of shape (1, samples), float32 at `sr`."""
        return self._say(
            text,
            audio_prompt_path,
            language_id,
            repetition_penalty=repetition_penalty,
            min_p=min_p,
            top_p=top_p,
            exaggeration=exaggeration,
            cfg_weight=cfg_weight,
            temperature=temperature,
        )


class ChatterboxTurboTTS(_Chatterbox):
    """Turbo, or with `nano=True` the smaller model of its family."""

    MODEL = "turbo"

    @classmethod
    def from_pretrained(cls, device: str | torch.device = "cpu", nano: bool = False) -> Self:
        return cls._load("nano" if nano else cls.MODEL, device)

    @classmethod
    def from_local(cls, ckpt_dir: str | Path, device: str | torch.device = "cpu", nano: bool = False) -> Self:
        return cls._load(Path(ckpt_dir), device, kind="nano" if nano else cls.MODEL)

    def prepare_conditionals(
        self, wav_fpath: str | Path, exaggeration: float = 0.5, norm_loudness: bool = True
    ) -> None:
        _check_loudness(norm_loudness)
        super().prepare_conditionals(wav_fpath, exaggeration)

    def generate(
        self,
        text: str,
        repetition_penalty: float = 1.2,
        min_p: float = 0.0,
        top_p: float = 0.95,
        audio_prompt_path: str | Path | None = None,
        exaggeration: float = 0.0,
        cfg_weight: float = 0.0,
        temperature: float = 0.8,
        top_k: int = 1000,
        norm_loudness: bool = True,
    ) -> Tensor:
        """Return audio of shape (1, samples); min_p, exaggeration and cfg_weight have no effect."""
        _check_loudness(norm_loudness)
        if min_p > 0 or exaggeration > 0 or cfg_weight > 0:
            _log.warning("Turbo has no min_p, exaggeration or cfg_weight; they are ignored.")
        return self._say(
            text,
            audio_prompt_path,
            repetition_penalty=repetition_penalty,
            top_p=top_p,
            temperature=temperature,
            top_k=top_k,
        )


class ChatterboxVC:
    """Voice conversion. It loads S3Gen and the voice encoder of the English model, and no T3."""

    def __init__(self, s3gen: VoiceConverter, device: str = "cpu", ref_dict: Voice | None = None) -> None:
        """Convert with the networks of `s3gen`; ref_dict is the target voice of calls that name none."""
        self.s3gen, self.device, self.sr = s3gen, device, s3gen.sample_rate_hz
        self.ref_dict = ref_dict

    @classmethod
    def _load(cls, model: str | Path, device: str | torch.device, **options: Any) -> Self:
        name = _device_name(device)
        return cls(VoiceConverter.load(model, device=name, profile="exact", **options), name)

    @classmethod
    def from_pretrained(cls, device: str | torch.device = "cpu") -> Self:
        return cls._load("english", device)

    @classmethod
    def from_local(cls, ckpt_dir: str | Path, device: str | torch.device = "cpu") -> Self:
        return cls._load(Path(ckpt_dir), device, kind="english")

    def set_target_voice(self, wav_fpath: str | Path) -> None:
        """Make this clip the target of later calls."""
        self.ref_dict = self.s3gen.voice(wav_fpath)

    def generate(self, audio: str | Path, target_voice_path: str | Path | None = None) -> Tensor:
        """Return the recording in the target voice: (1, samples), float32 at `sr`."""
        import torch

        voice = self.s3gen.voice(target_voice_path) if target_voice_path else self.ref_dict
        converted = self.s3gen.convert(audio, voice=voice, seed=_drawn_seed())
        return torch.from_numpy(converted.samples).unsqueeze(0)


def _device_name(device: str | torch.device) -> str:
    import torch

    name = str(device)
    # As upstream does.
    return "cpu" if name == "mps" and not torch.backends.mps.is_available() else name


def _drawn_seed() -> int:
    """Return a seed from torch's generator, so that `torch.manual_seed` makes a call repeatable."""
    import torch

    return int(torch.randint(SEED_LIMIT, (), dtype=torch.int64))


def _t3_option(t3_model: str | None) -> dict[str, str]:
    """Convert upstream's name of a T3 variant: "v3", "t3_mtl23ls_v3", or a file name."""
    variant = (t3_model or "").removeprefix("t3_mtl23ls_").removesuffix(".safetensors")
    return {"t3": variant if variant in ("v2", "v3") else t3_model} if t3_model is not None else {}


def _check_loudness(norm_loudness: bool) -> None:
    if not norm_loudness:
        what = "reference clips are always normalized in loudness"
        raise ConfigError(what, got="norm_loudness=False", fix="Leave it out.")
