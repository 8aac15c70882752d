"""Chatterbox's own Python interface over our engine: one changed import for programs written for it.

    from chatterbox.tts import ChatterboxTTS            # before
    from nightingale.compat import ChatterboxTTS        # after

Names, order and defaults of the parameters are upstream's. What differs, on purpose:

- **Voices do not race.** Upstream keeps the voice on the model, so that `audio_prompt_path` in one call
  changes the voice of every later call, in every thread. Here it counts for its own call only.
  `prepare_conditionals` sets the voice of the calls that name none, as upstream does; a call that has begun
  keeps the one it found.
- **Seeds.** `torch.manual_seed(n)` before `generate` makes it repeatable, as it does upstream, but the
  samples are this engine's. Threads share torch's generator and so its order; `TTS.say(seed=n)` does not.
- **Errors** are those of `nightingale.errors`. Audio carries no watermark.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from nightingale.decoding.seeds import SEED_LIMIT
from nightingale.engine import TTS
from nightingale.errors import ConfigError
from nightingale.text.languages import LANGUAGES
from nightingale.voices.voice import Voice

SUPPORTED_LANGUAGES = {code: language.name for code, language in LANGUAGES.items()}

_log = logging.getLogger(__name__)


class _Chatterbox:
    """What the three have in common."""

    MODEL: ClassVar[str]

    def __init__(self, tts: TTS, device: str = "cpu") -> None:
        self.tts = tts
        """The engine: `stream`, `session` and everything else it can do."""
        self.device = device
        self.sr = tts.sample_rate_hz
        self.conds: Voice | None = None
        """The voice of calls that name none; None is the model's own."""

    @classmethod
    def _load(cls, model: str | Path, device: str | torch.device, **options: Any) -> Self:
        place = str(device)
        if place == "mps" and not torch.backends.mps.is_available():
            place = "cpu"  # as upstream does
        return cls(TTS(model, device=place, profile="exact", **options), place)

    def prepare_conditionals(self, wav_fpath: str | Path, exaggeration: float = 0.5) -> None:
        """Make this clip the voice of later calls.

        exaggeration: accepted for upstream's sake; there, too, the one given to `generate` is what is heard.
        """
        del exaggeration
        self.conds = self.tts.voice(wav_fpath)

    def _say(
        self, text: str, audio_prompt_path: str | Path | None, language: str | None = None, **controls: Any
    ) -> Tensor:
        # Read once: another thread may call `prepare_conditionals` at any time.
        voice = self.tts.voice(audio_prompt_path) if audio_prompt_path else self.conds
        seed = int(torch.randint(SEED_LIMIT, (), dtype=torch.int64))
        audio = self.tts.say(text, voice=voice, language=language, seed=seed, **controls)
        return torch.from_numpy(audio.samples).unsqueeze(0)


class ChatterboxTTS(_Chatterbox):
    """The English model."""

    MODEL = "english"

    @classmethod
    def from_pretrained(cls, device: str | torch.device = "cpu") -> Self:
        return cls._load(cls.MODEL, device)

    @classmethod
    def from_local(cls, ckpt_dir: str | Path, device: str | torch.device = "cpu") -> Self:
        return cls._load(Path(ckpt_dir), device, kind=cls.MODEL)

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
        """(1, samples) float32 at `sr`."""
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
    """The model of 23 languages."""

    MODEL = "multilingual"

    @classmethod
    def from_pretrained(cls, device: str | torch.device = "cpu", t3_model: str | None = None) -> Self:
        return cls._load(cls.MODEL, device, **_t3(t3_model))

    @classmethod
    def from_local(
        cls, ckpt_dir: str | Path, device: str | torch.device = "cpu", t3_model: str | None = None
    ) -> Self:
        return cls._load(Path(ckpt_dir), device, kind=cls.MODEL, **_t3(t3_model))

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
        """(1, samples) float32 at `sr`."""
        return self._say(
            text,
            audio_prompt_path,
            language_id or None,
            exaggeration=exaggeration,
            cfg_weight=cfg_weight,
            temperature=temperature,
            repetition_penalty=repetition_penalty,
            min_p=min_p,
            top_p=top_p,
        )


class ChatterboxTurboTTS(_Chatterbox):
    """Turbo, or with `nano=True` its small sister."""

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
        """(1, samples) float32 at `sr`. min_p, exaggeration and cfg_weight do nothing, as upstream."""
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


def _t3(t3_model: str | None) -> dict[str, str]:
    """Upstream says "v3", "t3_mtl23ls_v3", or the name of either's or another's file."""
    if t3_model is None:
        return {}
    variant = t3_model.removeprefix("t3_mtl23ls_").removesuffix(".safetensors")
    return {"t3": variant if variant in ("v2", "v3") else t3_model}


def _check_loudness(norm_loudness: bool) -> None:
    if not norm_loudness:
        raise ConfigError(
            "a reference clip is always brought to one loudness",
            got="norm_loudness=False",
            allowed="True",
            fix="Leave it out.",
        )
