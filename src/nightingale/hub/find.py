"""From a model's name or folder to the files it needs.

Each file is looked up in this order: the user's folder, the hub cache, the hub. Offline stops after the
cache. One error lists all missing files with the command that downloads them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from nightingale.errors import CheckpointError, ConfigError, ModelMissing, UnknownModel
from nightingale.hub import hub_cache
from nightingale.hub.cards import CARDS, Card, FileCard, card_of_file
from nightingale.hub.download_progress import DownloadMeter, OnDownload


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model whose files are on this machine."""

    card: Card
    paths: Mapping[str, Path]
    """Role -> file. An optional role that was not found is absent."""

    @property
    def folder(self) -> Path:
        """The folder of the T3 weights."""
        return self.paths["t3"].parent

    @property
    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of the files that turn a clip into a voice.

        Files of the hub cache resolve to blobs named by their digest, so for them contents count.
        """
        digest = hashlib.sha256(self.card.family.encode())
        for role in ("s3gen", "voice_encoder"):
            real = self.paths[role].resolve()
            status = real.stat()
            digest.update(f"{real}:{status.st_size}:{status.st_mtime_ns}".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The files to look up: a card, an optional local folder, and the user's choices among variants."""

    card: Card
    folder: Path | None = None
    chosen: Mapping[str, Path | tuple[str, ...]]

    def names(self, file: FileCard) -> tuple[str, ...]:
        choice = self.chosen.get(file.role, file.names)
        return (choice.name,) if isinstance(choice, Path) else choice

    def on_disk(self, file: FileCard) -> Path | None:
        """Return the file from the user's own path, the user's folder or the hub cache."""
        choice = self.chosen.get(file.role)
        if isinstance(choice, Path):
            return choice
        if self.folder is not None:
            for name in self.names(file):
                if (self.folder / name).is_file():
                    return self.folder / name
            if file.role == "t3":  # the T3 defines the folder; only other files may come from the cache
                return None
        cached = (hub_cache.in_cache(card_of_file(self.card, name), name) for name in self.names(file))
        return next((path for path in cached if path is not None), None)


def resolve(
    model: str | Path,
    *,
    kind: str | None = None,
    t3: str | Path | None = None,
    s3gen: str | Path | None = None,
) -> ModelRequest:
    """Interpret the user's model and options, without looking up files other than the ones named.

    `model` is the name of a card, or a folder with the official files; `kind` is the card of a folder that could
    be several; `t3` and `s3gen` are a variant ("v3", "meanflow") or a file each. Raises UnknownModel if there is no
    such card or folder, ConfigError if an option does not fit, and ModelMissing if the folder holds no T3 weights.
    """
    chosen: dict[str, Path | tuple[str, ...]] = {}
    folder: Path | None = None
    if str(model) in CARDS and not isinstance(model, Path):
        if kind not in (None, model):
            raise ConfigError("a named model has its own kind", got=f"kind={kind!r}", allowed=repr(model))
        card = CARDS[model]
    elif (folder := Path(model).expanduser()).is_dir():
        card, found_t3 = _identify(folder, kind, t3)
        if found_t3 is not None:
            chosen["t3"] = found_t3
    else:
        raise _unknown_model(str(model))
    for role, option in (("t3", t3), ("s3gen", s3gen)):
        if option is not None:
            chosen[role] = _choose(card, folder, role, option)
    return ModelRequest(card=card, folder=folder, chosen=chosen)


def locate(
    model: str | Path,
    *,
    offline: bool = False,
    optional: bool = False,
    without: Collection[str] = (),
    on_download: OnDownload | None = None,
    **options: Any,
) -> ModelFiles:
    """Return the files of a model, after downloading needed ones that are missing.

    The options are those of `resolve`. `offline`, like HF_HUB_OFFLINE, raises `ModelMissing` instead of
    downloading; `optional` also downloads files that the model works without; `without` names roles that are not
    needed. `on_download` is told the progress of a download.
    """
    request = _without(resolve(model, **options), without)
    paths, missing = _look_up(request)
    # The user's folder is completed from the cache, never from the network.
    local = request.folder is not None or offline or is_offline()
    if missing and local:
        raise _missing_files(request, missing)
    wanted = [file for file in request.card.files if file.role not in paths]
    wanted = wanted if missing or (optional and not local) else []
    sizes = {request.names(file)[0]: file.approx_bytes for file in wanted}
    meter = None if on_download is None else DownloadMeter(sizes, on_download)
    for file in wanted:
        with nullcontext() if file.needed else suppress(ModelMissing):
            names = request.names(file)
            paths[file.role] = hub_cache.download(card_of_file(request.card, names[0]), names, meter)
    return ModelFiles(card=request.card, paths=paths)


def _without(request: ModelRequest, roles: Collection[str]) -> ModelRequest:
    """Return a request that leaves out the files of some roles."""
    files = tuple(file for file in request.card.files if file.role not in roles)
    return replace(request, card=replace(request.card, files=files)) if roles else request


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids to use the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def bytes_to_download(model: str | Path, *, without: Collection[str] = (), **options: Any) -> int:
    """Return about how many bytes `locate` would download; 0 if all needed files are here."""
    _, missing = _look_up(_without(resolve(model, **options), without))
    return sum(file.approx_bytes for file in missing)


def has_tensor(path: Path, name: str) -> bool:
    """Return whether a .safetensors file holds a tensor of that name; only its header is read."""
    try:
        with safe_open(path, framework="np") as file:
            return name in file.keys()  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "a weight file cannot be read",
            got=f"{path}: {error}",
            allowed="a whole .safetensors file",
            fix="The file is truncated or of another kind: fetch it again with `nightingale models pull`.",
        ) from error


def pull(model: str, **options: Any) -> tuple[ModelFiles, list[str]]:
    """Download what is not cached (see `locate`), verify known digests, and return files and remarks."""
    if model not in CARDS:
        raise _unknown_model(model)
    found = locate(model, optional=True, **options)
    card, paths = found.card, found.paths
    verified = sum(hub_cache.verify(card_of_file(card, path.name), path) for path in paths.values())
    remarks = [f"{verified} of {len(paths)} files have a known digest, and it matches"]
    revision, tested = found.folder.name, card.revision_prefix
    if not revision.startswith(tested):
        remarks.append(f"revision {revision} is newer than the one tested ({tested}…)")
    return found, remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """The part of one model that is on this machine; `bytes_to_get` is approximate."""

    name: str
    summary: str
    complete: bool
    bytes_here: int
    bytes_to_get: int
    missing: tuple[str, ...]


def state(card: Card) -> ModelState:
    """Return how much of a model the hub cache holds. It looks at file names only."""
    paths, missing = _look_up(ModelRequest(card=card, chosen={}))
    return ModelState(
        name=card.name,
        summary=card.summary,
        complete=not missing,
        bytes_here=sum(path.stat().st_size for path in paths.values()),
        bytes_to_get=sum(file.approx_bytes for file in missing),
        missing=tuple(file.names[0] for file in missing),
    )


def _look_up(request: ModelRequest) -> tuple[dict[str, Path], list[FileCard]]:
    """Return the files on disk by role, and the needed files that are missing."""
    found = {file.role: request.on_disk(file) for file in request.card.files}
    missing = [file for file in request.card.files if file.needed and found[file.role] is None]
    return {role: path for role, path in found.items() if path is not None}, missing


def _identify(folder: Path, kind: str | None, t3: str | Path | None) -> tuple[Card, Path | None]:
    """Return the card of a folder, and its T3 if that has another name (a single-language fine-tune)."""
    if kind is not None:
        if kind not in CARDS:
            raise _unknown_model(kind)
        return CARDS[kind], None
    official = [card for card in CARDS.values() if any((folder / name).is_file() for name in card.t3_names)]
    # The name of a T3 says which card of a shared folder is meant.
    named = [card for card in official if str(t3) in {*card.t3_names, *card.variants.get("t3", {})}]
    official = named or official
    if len(official) == 1:
        return official[0], None
    if official:
        first = min(card.name for card in official)
        raise ConfigError(
            f"{folder} holds more than one model",
            got=", ".join(sorted(card.name for card in official)),
            fix=f"Say which, such as kind={first!r} (command line: -O kind={first}).",
        )
    tuned = sorted(folder.glob("t3_*.safetensors"))
    multilingual = CARDS["multilingual"]
    if (folder / multilingual.file("tokenizer").names[0]).is_file() and (len(tuned) == 1 or t3 is not None):
        return multilingual, tuned[0] if len(tuned) == 1 else None
    raise ModelMissing(
        f"no official T3 weights in {folder}",
        got=", ".join(path.name for path in tuned) or "no t3_*.safetensors",
        allowed=", ".join(card.file("t3").names[0] for card in CARDS.values()),
        fix="Put the official files there, or say kind=… and t3=… for a file with another name.",
    )


def _choose(card: Card, folder: Path | None, role: str, option: str | Path) -> Path | tuple[str, ...]:
    """Return a variant's file names, or the file that the option names."""
    variants = card.variants.get(role, {})
    if str(option) in variants:
        return variants[str(option)]
    for path in (Path(option).expanduser(), *([folder / option] if folder else [])):
        if path.is_file():
            return path
    file = f"the path of a {role} weights file" + (" or its name in the folder" if folder else "")
    own = any(str(option) in name for name in card.file(role).names)
    raise ConfigError(
        f"no such {role} for {card.name!r}",
        got=f"{role}={str(option)!r}",
        allowed=" or ".join([*variants, file]),
        fix=f"Leave the option out: {card.file(role).names[0]} is this model's own." if own else None,
    )


def _unknown_model(name: str) -> UnknownModel:
    known = ("wren", *CARDS)  # wren is in the package, not on the hub
    close = get_close_matches(name, known, n=1)
    return UnknownModel(
        "no such model",
        got=repr(name),
        allowed=f"{', '.join(known)}, or a folder with the official files",
        fix=f"Did you mean {close[0]!r}?" if close else "See `nightingale models list`.",
    )


def _missing_files(request: ModelRequest, missing: list[FileCard]) -> ModelMissing:
    """Name the missing files, the places searched, and the command that downloads them."""
    card, folder = request.card, request.folder
    names = ", ".join(" or ".join(request.names(file)) for file in missing)
    options = "".join(
        f" --{role} {variant}"
        for role, choice in request.chosen.items()
        for variant, variant_names in card.variants.get(role, {}).items()
        if choice == variant_names
    )
    command = f"`nightingale models pull {card.name}{options}`"
    revisions = hub_cache.revisions_in_cache(card)
    others = [revision for revision in revisions if not revision.startswith(card.revision_prefix)]
    hint = ""
    if folder and "s3gen" in {file.role for file in missing} and list(folder.glob("s3gen_v3.*")):
        hint = " The folder holds s3gen_v3: say s3gen='v3' to use it."
    elif others:
        hint = f" The cache holds another revision ({others[0][:8]}…); its folder can be given as the model."
    return ModelMissing(
        f"files of {card.name!r} are missing",
        got=f"no {names} in {f'{folder} and ' if folder else ''}{hub_cache.cache_root()}",
        allowed=f"the files of {card.repo} at revision {card.revision}",
        fix=f"{f'Put the files there, or run {command}' if folder else f'Run {command} while online'}.{hint}",
    )
