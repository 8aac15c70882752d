"""A model as the engine holds it, and the one in the box: wren, from the package or from a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightingale import wren
from nightingale.models.defaults import MODEL_DEFAULTS, ModelDefaults
from nightingale.errors import CheckpointError, ModelMissing
from nightingale.models.chatterbox.build import VoiceEncoders, Networks, load_encoders, load_networks
from nightingale.models.chatterbox.presets import Preset
from nightingale.models.compact import unpack
from nightingale.text.frontend import Frontend, open_frontend
from nightingale.types import Sampling
from nightingale.voices.voice import Voice


class Once:
    """The encoders, loaded on first use by whichever thread comes first."""

    def __init__(self, make: Callable[[], VoiceEncoders]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: VoiceEncoders | None = None

    def __call__(self) -> VoiceEncoders:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loaded model. Nothing in it changes while it speaks."""

    name: str
    voice_family: str
    """Which voices it can wear."""
    frontend: Frontend
    networks: Networks
    encoders: Callable[[], VoiceEncoders]
    """The networks that make voices, loaded when the first one is made."""
    defaults: ModelDefaults
    default_voice: Voice | None
    fingerprint: str
    """Changes when a clip would become another voice; the key of the voice cache."""
    notice: str | None = None
    """What the user must know before listening."""
    voices: Path | None = None
    """Folder of the voices that came with it, where that is not the package's."""
    dtype: str = "auto"
    """T3's precision, if the user has chosen one."""
    t3_file: Path | None = None
    """Where the weights of T3's layers lie, if they were left there: packed ones are used in their place."""


def default_model() -> str:
    """Wren, if its weights are in this copy of the package; else the stand-in, which says that it is one."""
    return "noise" if wren.missing(wren.folder()) else "wren"


def load_wren(folder: Path, preset: Preset) -> Model:
    """Wren from a folder with the files of `nightingale.wren`."""
    if missing := wren.missing(folder):
        raise ModelMissing(
            "wren's weights are not in this copy of the package",
            got=f"no {', '.join(missing)} in {folder}",
            allowed=", ".join(wren.FILES.values()),
            fix="Install a released package, train them (docs/training.md), or choose another model.",
        )
    files = {role: folder / name for role, name in wren.FILES.items()}
    card = _read_card(files["card"])
    return Model(
        name="wren",
        voice_family="wren",
        frontend=open_frontend("wren", folder),
        networks=load_networks(preset, files, unpack),
        encoders=Once(lambda: load_encoders(preset, files, unpack)),
        defaults=replace(
            MODEL_DEFAULTS["wren"],
            sampling=Sampling(**card["sampling"]),
            silence_ids=frozenset(card.get("silence_ids", ())),
        ),
        default_voice=Voice.load(folder / wren.VOICES / f"{card['default_voice']}.safetensors"),
        fingerprint=card["fingerprint"],
        voices=folder / wren.VOICES,
    )


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        Sampling(**card["sampling"])
        if not all(isinstance(card[key], str) for key in ("default_voice", "fingerprint")):
            raise TypeError("default_voice and fingerprint must be strings")
        if not all(isinstance(id_, int) for id_ in card.get("silence_ids", ())):
            raise TypeError("silence_ids must be whole numbers")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "wren's card cannot be read",
            got=f"{path}: {type(error).__name__}: {error}",
            allowed="a card that `nightingale train export` wrote",
            fix="Install the package again.",
        ) from error
    return card
