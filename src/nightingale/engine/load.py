"""A model's name or folder to everything the engine needs of it.

Wren comes from the package (or from a folder that `nightingale train export` wrote), the others from the hub.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nightingale import wren
from nightingale.engine.habits import HABITS, Habits
from nightingale.errors import CheckpointError, ConfigError, DeviceError, ModelMissing
from nightingale.hub.find import locate
from nightingale.models.chatterbox.build import Listeners, Speakers, load_listeners, load_speakers
from nightingale.models.chatterbox.presets import PRESETS, Preset
from nightingale.models.compact import unpack
from nightingale.text.frontend import Frontend, open_frontend
from nightingale.values import Sampling
from nightingale.voices.voice import Voice

OPTIONS = ("kind", "t3", "s3gen")
"""What may be said about a model besides its name: see `nightingale.hub.find.locate`."""


class Once:
    """The listeners, loaded on first use by whichever thread comes first."""

    def __init__(self, make: Callable[[], Listeners]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: Listeners | None = None

    def __call__(self) -> Listeners:
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
    speakers: Speakers
    listeners: Callable[[], Listeners]
    """The networks that make voices, loaded when the first one is made."""
    habits: Habits
    default_voice: Voice | None
    fingerprint: str
    """Changes when a clip would become another voice; the key of the voice cache."""
    notice: str | None = None
    """What the user must know before listening."""


def default_model() -> str:
    """Wren, if its weights are in this copy of the package; else the stand-in, which says that it is one."""
    return "noise" if wren.missing(wren.folder()) else "wren"


def load_model(
    name: str | Path, *, device: str, dtype: str, offline: bool, options: Mapping[str, Any]
) -> Model:
    """The model on its device, ready to speak."""
    for option in options:
        if option not in OPTIONS:
            raise ConfigError(
                "unknown option", got=repr(option), allowed=", ".join(OPTIONS), fix="Check the spelling."
            )
        if name == "noise":
            raise ConfigError(
                "the model 'noise' has no options", got=repr(option), allowed="none", fix="Leave it out."
            )
    place, precision = choose_device(device), choose_dtype(dtype)
    if name == "noise":
        from nightingale.engine.standin import load_noise

        model = load_noise()
    elif name == "wren" or (Path(name).expanduser() / wren.FILES["card"]).is_file():
        folder = wren.folder() if name == "wren" else Path(name).expanduser()
        model = load_wren(folder, PRESETS["wren"])
    else:
        model = _load_official(name, offline=offline, options=options)
    return replace(
        model,
        speakers=Speakers(
            t3=model.speakers.t3.to(place, precision),
            flow=model.speakers.flow.to(place, torch.float32),
            hift=model.speakers.hift.to(place, torch.float32),
        ),
    )


def _load_official(name: str | Path, *, offline: bool, options: Mapping[str, Any]) -> Model:
    files = locate(name, offline=offline, **options)
    card = files.card
    preset = PRESETS[card.name]
    conds = files.get("conds")
    return Model(
        name=card.name,
        voice_family=card.family,
        frontend=open_frontend(card.name, files["tokenizer"].parent),
        speakers=load_speakers(preset, files.paths),
        listeners=Once(lambda: load_listeners(preset, files.paths)),
        habits=HABITS[card.name],
        default_voice=Voice.from_conds_pt(conds, family=card.family) if conds else None,
        fingerprint=files.fingerprint,
    )


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
        speakers=load_speakers(preset, files, unpack),
        listeners=Once(lambda: load_listeners(preset, files, unpack)),
        habits=replace(
            HABITS["wren"],
            sampling=Sampling(**card["sampling"]),
            silence_ids=frozenset(card.get("silence_ids", ())),
        ),
        default_voice=Voice.load(folder / wren.VOICES / f"{card['default_voice']}.safetensors"),
        fingerprint=card["fingerprint"],
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


def choose_device(asked: str) -> torch.device:
    """The device asked for, or the best one there is."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DeviceError(
            "the device cannot be used",
            got=f"{asked!r} ({str(error).splitlines()[0]})",
            allowed="auto, cpu, or a device this build of torch sees",
            fix="See `nightingale doctor`.",
        ) from error
    return device


def choose_dtype(asked: str) -> torch.dtype:
    """T3's precision. The flow and the vocoder stay in float32: their error is heard directly."""
    dtypes = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
    if asked not in dtypes:
        raise ConfigError(
            "unknown dtype", got=repr(asked), allowed=", ".join(dtypes), fix="Pick one of these."
        )
    return dtypes[asked]
