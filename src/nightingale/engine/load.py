"""`Model`, a model as the engine holds it, and how it is found by name or folder.

Wren comes from the package (or from a folder that `nightingale train export` wrote), the official models from
the hub's cache. Weights are not read here; backends do that when they are opened.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightingale import wren
from nightingale.backends import BACKENDS
from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.profiles import Profile, profile_named
from nightingale.backends.selection import Plan, find_machine, for_model, select
from nightingale.engine.noise_model import NOISE, NOTICE, ByteTokenizer, noise_voice
from nightingale.errors import CheckpointError, ConfigError, ModelMissing
from nightingale.hub.find import has_tensor, locate
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS, ModelDefaults
from nightingale.text.frontend import Frontend, open_frontend
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

CONVERTER_WITHOUT = ("t3", "tokenizer", "merges", "added_tokens")
"""Roles of files that are needed to speak, and not to convert recordings."""
OPTIONS = ("kind", "t3", "s3gen")
"""Options of a model besides its name: see `nightingale.hub.find.locate`."""
TWO_STEP_TENSOR = "flow.decoder.estimator.time_embed_mixer.weight"
"""The tensor that only a two-step (meanflow) decoder has."""


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
    """A note that users must read before they listen."""
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


def default_model() -> str:
    """Return "wren" if its weights are in this copy of the package, else "noise", which says what it is."""
    return "noise" if wren.missing(wren.folder()) else "wren"


def load_model(
    name: str | Path, *, offline: bool, options: Mapping[str, Any], without: Collection[str] = ()
) -> Model:
    """Find a model by name or folder. without: roles of files of an official model that are not needed.

    Raises:
        ConfigError: An option is unknown, the model has none, or no installed backend can run the model.
        UnknownModel: There is no model of that name and no such folder.
        ModelMissing: The model's files are not on this machine.
    """
    for option in options:
        if option not in OPTIONS:
            raise ConfigError("unknown option", got=repr(option), allowed=", ".join(OPTIONS))
        if name == "noise" or _wren_folder(name) is not None:
            raise ConfigError(
                f"the model {str(name)!r} has no options",
                got=repr(option),
                fix="Leave it out, or choose an official model.",
            )
    if name == "noise":
        return load_noise()
    if (folder := _wren_folder(name)) is not None:
        return _load_wren(folder)
    return _load_official(name, offline=offline, options=options, without=without)


def load_noise() -> Model:
    """Return the model of test signals, the same on every machine."""
    return Model(
        voice_family="wren",
        frontend=Frontend(tokenizer=ByteTokenizer()),
        source=ModelSource(NOISE, {}),
        default_voice=noise_voice(),
        fingerprint="noise",
        voices=Path(__file__).with_name("noise_voices"),  # does not exist: wren's voices do not fit
        notice=NOTICE,
    )


def _wren_folder(name: str | Path) -> Path | None:
    folder = wren.folder() if name == "wren" else Path(name).expanduser()
    return folder if name == "wren" or (folder / wren.FILES["card"]).is_file() else None


def _load_wren(folder: Path) -> Model:
    if missing := wren.missing(folder):
        raise ModelMissing(
            "wren's weights are not in this copy of the package",
            got=f"no {', '.join(missing)} in {folder}",
            allowed=", ".join(wren.FILES.values()),
            fix="Install a released package, train them (docs/training.md), or choose another model.",
        )
    files = {role: folder / name for role, name in wren.FILES.items()}
    card = _read_card(files["card"])
    model = Model(
        voice_family="wren",
        frontend=open_frontend("wren", folder),
        source=ModelSource(_info_of("wren"), files, packed=True),
        default_voice=Voice.load(folder / wren.VOICES / f"{card['default_voice']}.safetensors"),
        fingerprint=card["fingerprint"],
        voices=folder / wren.VOICES,
    )
    silence_ids = frozenset(card.get("silence_ids", ()))
    return model.with_defaults(sampling=Sampling(**card["sampling"]), silence_ids=silence_ids)


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


def check_backend(name: str | Path) -> None:
    """Raise ConfigError if no installed backend can run a model, before gigabytes of it are downloaded."""
    if name in PRESETS:
        # The profile that every model has on the reference backend.
        select(BACKENDS, _info_of(str(name)), find_machine(BACKENDS, "cpu"), profile_named("exact"))


def _load_official(
    name: str | Path, *, offline: bool, options: Mapping[str, Any], without: Collection[str]
) -> Model:
    check_backend(name)
    files = locate(name, offline=offline, without=without, **options)
    card = files.card
    conds = files.paths.get("conds")
    return Model(
        voice_family=card.family,
        frontend=_frontend_of(card.name, files.paths),
        source=ModelSource(_info_with_decoder(card.name, files.paths["s3gen"], options), files.paths),
        default_voice=Voice.from_conds_pt(conds, family=card.family) if conds else None,
        fingerprint=files.fingerprint,
    )


def _frontend_of(name: str, paths: Mapping[str, Path]) -> Frontend:
    """Return the text front end of a model; one that converts recordings reads no text."""
    if "tokenizer" not in paths:
        return Frontend(tokenizer=ByteTokenizer(), family=name)
    return open_frontend(name, paths["tokenizer"].parent)


def plan_named(name: str | Path | None, profile: str | Profile, *, device: str) -> tuple[Plan, str | None]:
    """Return the plan of a model by its name or folder, and which of its weights are missing, in words."""
    name, missing = default_model() if name is None else name, None
    if (folder := _wren_folder(name)) is not None:
        name, absent = "wren", wren.missing(folder)
        missing = f"no {', '.join(absent)} in {folder}" if absent else None
    elif name != "noise":
        try:
            name = locate(name, offline=True).card.name
        except ModelMissing as error:
            if name not in PRESETS:
                raise
            missing = f"{error.got}; {error.fix}"
    info = NOISE if name == "noise" else _info_of(str(name))
    if not isinstance(profile, Profile):
        profile = profile_named(profile, default=info.defaults.profile)
    return select(BACKENDS, info, find_machine(BACKENDS, device, info), profile), missing


def _info_with_decoder(name: str, s3gen: Path, options: Mapping[str, Any]) -> ModelInfo:
    """Return the description of an official model with the flow of the decoder that the options choose."""
    info, chosen = _info_of(name), options.get("s3gen")
    if chosen is None or s3gen.suffix != ".safetensors":
        return info
    two_steps = has_tensor(s3gen, TWO_STEP_TENSOR)
    if chosen == "meanflow" and not two_steps:
        raise CheckpointError(
            "this is no two-step decoder",
            got=f"{s3gen} without {TWO_STEP_TENSOR}",
            allowed="Turbo's s3gen_meanflow.safetensors",
            fix=f"Run `nightingale models pull {name} --s3gen meanflow`.",
        )
    flow = replace(info.preset.flow, meanflow=two_steps)
    return replace(info, preset=replace(info.preset, flow=flow))


def default_profile(name: str) -> Profile:
    """Return the default profile of a known model."""
    info = _info_of(name)
    return for_model(profile_named(info.defaults.profile), info)


def _info_of(name: str) -> ModelInfo:
    return ModelInfo(name=name, preset=PRESETS[name], defaults=MODEL_DEFAULTS[name])
