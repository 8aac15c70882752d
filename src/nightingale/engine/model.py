"""A model as the engine holds it: text front end, voices, and where backends find its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.models.defaults import ModelDefaults
from nightingale.text.frontend import Frontend
from nightingale.voices.voice import Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model by name, ready to be opened by backends. Nothing in it changes while it is used."""

    voice_family: str
    """The family whose voices it can use."""
    frontend: Frontend
    source: ModelSource
    default_voice: Voice | None
    fingerprint: str
    """Changes when a clip would become another voice; part of the voice cache's key."""
    notice: str | None = None
    """What a user must know before listening."""
    voices: Path | None = None
    """Folder of the voices that came with the model, where that is not the package's."""

    @property
    def info(self) -> ModelInfo:
        return self.source.info

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def defaults(self) -> ModelDefaults:
        return self.info.defaults

    def with_defaults(self, **changes: Any) -> Model:
        """Return the same model with other defaults; weights that were loaded stay shared."""
        info = replace(self.info, defaults=replace(self.defaults, **changes))
        return replace(self, source=self.source.with_info(info))
