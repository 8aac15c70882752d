"""From a model's name or folder to the files it needs.

Each file is looked for in this order: the folder the user gave, the hub cache, the hub. Offline stops after
the cache. What is missing is reported all at once, by file name, with the command that gets it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nightingale.errors import ConfigError, ModelMissing, UnknownModel
from nightingale.hub import files
from nightingale.hub.cards import CARDS, Card, FileCard

OnFile = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model whose files are on this machine."""

    card: Card
    folder: Path
    """Where the T3 weights are."""
    paths: Mapping[str, Path]
    """role -> file. An optional role that was not found is absent."""

    def __getitem__(self, role: str) -> Path:
        return self.paths[role]

    def get(self, role: str) -> Path | None:
        return self.paths.get(role)

    @property
    def fingerprint(self) -> str:
        """Changes when the files that turn a clip into a voice change. Cheap: names and sizes, not contents.

        Files of the hub cache resolve to blobs named by their digest, so there the contents do count.
        """
        digest = hashlib.sha256(self.card.family.encode())
        for role in ("s3gen", "voice_encoder"):
            real = self.paths[role].resolve()
            status = real.stat()
            digest.update(f"{real}:{status.st_size}:{status.st_mtime_ns}".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to look for: a card, perhaps a local folder, and the user's choices among variants."""

    card: Card
    folder: Path | None
    chosen: Mapping[str, Path | tuple[str, ...]]

    def names(self, file: FileCard) -> tuple[str, ...]:
        choice = self.chosen.get(file.role, file.names)
        return (choice.name,) if isinstance(choice, Path) else choice

    def on_disk(self, file: FileCard, cache_dir: Path | None) -> Path | None:
        """The file, from the user's own path, the user's folder or the hub cache."""
        choice = self.chosen.get(file.role)
        if isinstance(choice, Path):
            return choice
        if self.folder is not None:
            for name in self.names(file):
                if (self.folder / name).is_file():
                    return self.folder / name
            if file.role == "t3":  # a folder is a T3; only its companions may come from elsewhere
                return None
        cached = (files.in_cache(self.card, name, cache_dir) for name in self.names(file))
        return next((path for path in cached if path is not None), None)


def card_named(name: str) -> Card:
    if name not in CARDS:
        raise _unknown(name)
    return CARDS[name]


def _unknown(name: str) -> UnknownModel:
    known = ("wren", *CARDS)  # the first is in the package, not on the hub
    close = get_close_matches(name, known, n=1)
    return UnknownModel(
        "no such model",
        got=repr(name),
        allowed=f"{', '.join(known)}, or a folder with the official files",
        fix=f"Did you mean {close[0]!r}?" if close else "See `nightingale models list`.",
    )


def wanted(
    model: str | Path,
    *,
    kind: str | None = None,
    t3: str | Path | None = None,
    s3gen: str | Path | None = None,
) -> Wanted:
    """Understand the user's model and options, without looking for any file but the ones named outright."""
    if str(model) in CARDS and not isinstance(model, Path):
        if kind not in (None, model):
            raise ConfigError(
                "a named model has its own kind",
                got=f"kind={kind!r}",
                allowed=repr(model),
                fix="Leave it out.",
            )
        card, folder, found_t3 = CARDS[str(model)], None, None
    elif Path(model).expanduser().is_dir():
        folder = Path(model).expanduser()
        card, found_t3 = _recognise(folder, kind, t3)
    else:
        raise _unknown(str(model))
    chosen: dict[str, Path | tuple[str, ...]] = {}
    if found_t3 is not None:
        chosen["t3"] = found_t3
    for role, option in (("t3", t3), ("s3gen", s3gen)):
        if option is not None:
            chosen[role] = _choose(card, folder, role, option)
    return Wanted(card=card, folder=folder, chosen=chosen)


def locate(
    model: str | Path,
    *,
    offline: bool = False,
    kind: str | None = None,
    t3: str | Path | None = None,
    s3gen: str | Path | None = None,
    cache_dir: Path | None = None,
    on_file: OnFile | None = None,
) -> ModelFiles:
    """The files of `model`, downloaded first if a needed one is missing and we may.

    `kind` names the card of a folder that could be several; `t3` and `s3gen` take a variant ("v3") or a file.
    """
    want = wanted(model, kind=kind, t3=t3, s3gen=s3gen)
    paths, missing = _look(want, cache_dir)
    if missing:
        # A folder is what the user gave us: it is completed from the cache, never from the network.
        if want.folder is not None or files.is_offline(offline):
            raise _missing(want, missing, cache_dir)
        _fetch(want, paths, cache_dir, on_file)
    return ModelFiles(card=want.card, folder=paths["t3"].parent, paths=paths)


def pull(
    model: str,
    *,
    t3: str | Path | None = None,
    s3gen: str | Path | None = None,
    cache_dir: Path | None = None,
    on_file: OnFile | None = None,
) -> tuple[ModelFiles, list[str]]:
    """Download what is not cached and verify what can be verified; gives the files and remarks about them."""
    card_named(model)
    want = wanted(model, t3=t3, s3gen=s3gen)
    paths, missing = _look(want, cache_dir)
    if files.is_offline(False) and missing:
        raise _missing(want, missing, cache_dir)
    if len(paths) < len(want.card.files):
        _fetch(want, paths, cache_dir, on_file)
    verified = sum(files.verify(want.card, path) for path in paths.values())
    remarks = [f"{verified} of {len(paths)} files have a known digest, and it matches"]
    revision = paths["t3"].parent.name
    if not revision.startswith(want.card.revision_prefix):
        remarks.append(f"revision {revision} is newer than the one tested ({want.card.revision_prefix}…)")
    return ModelFiles(card=want.card, folder=paths["t3"].parent, paths=paths), remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What this machine has of one model."""

    name: str
    summary: str
    complete: bool
    bytes_here: int
    bytes_to_get: int
    """Approximate."""
    missing: tuple[str, ...]


def state(card: Card, cache_dir: Path | None = None) -> ModelState:
    """How much of a model the hub cache holds. Looks at names only, never at the network."""
    paths, missing = _look(Wanted(card=card, folder=None, chosen={}), cache_dir)
    return ModelState(
        name=card.name,
        summary=card.summary,
        complete=not missing,
        bytes_here=sum(path.stat().st_size for path in paths.values()),
        bytes_to_get=sum(file.approx_bytes for file in missing),
        missing=tuple(file.names[0] for file in missing),
    )


def _look(want: Wanted, cache_dir: Path | None) -> tuple[dict[str, Path], list[FileCard]]:
    """What is here by role, and which needed files are not."""
    found = {file.role: want.on_disk(file, cache_dir) for file in want.card.files}
    missing = [file for file in want.card.files if file.needed and found[file.role] is None]
    return {role: path for role, path in found.items() if path is not None}, missing


def _fetch(want: Wanted, paths: dict[str, Path], cache_dir: Path | None, on_file: OnFile | None) -> None:
    """Complete `paths` from the hub."""
    for file in want.card.files:
        if file.role in paths:
            continue
        if on_file is not None:
            on_file(want.names(file)[0])
        try:
            paths[file.role] = files.download(want.card, want.names(file), cache_dir)
        except ModelMissing:
            if file.needed:
                raise


def _recognise(folder: Path, kind: str | None, t3: str | Path | None) -> tuple[Card, Path | None]:
    """Which card a folder is, and its T3 where that has a name of its own (a single-language fine-tune)."""
    if kind is not None:
        return card_named(kind), None
    official = {
        card.name: card
        for card in CARDS.values()
        for name in (*card.file("t3").names, *(n for v in card.variants.get("t3", {}).values() for n in v))
        if (folder / name).is_file()
    }
    if t3 is not None:  # a T3 chosen by name says which card of a shared folder is meant
        official = {n: c for n, c in official.items() if _choice_fits(c, str(t3))} or official
    if len(official) == 1:
        return next(iter(official.values())), None
    if len(official) > 1:
        raise ConfigError(
            f"{folder} holds more than one model",
            got=", ".join(sorted(official)),
            allowed="one kind at a time",
            fix=f"Say which, such as kind={min(official)!r} (command line: -O kind={min(official)}).",
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


def _choice_fits(card: Card, t3: str) -> bool:
    variants = card.variants.get("t3", {})
    return t3 in variants or any(t3 in names for names in (card.file("t3").names, *variants.values()))


def _choose(card: Card, folder: Path | None, role: str, option: str | Path) -> Path | tuple[str, ...]:
    """A variant's file names, or the file itself."""
    variants = card.variants.get(role, {})
    if str(option) in variants:
        return variants[str(option)]
    for path in (Path(option).expanduser(), *([folder / option] if folder else [])):
        if path.is_file():
            return path
    raise ConfigError(
        f"no such {role} for {card.name!r}",
        got=f"{role}={str(option)!r}",
        allowed=" or ".join(
            [
                *variants,
                f"the path of a {role} weights file" + (" or its name in the folder" if folder else ""),
            ]
        ),
        fix="Check the path.",
    )


def _missing(want: Wanted, missing: list[FileCard], cache_dir: Path | None) -> ModelMissing:
    """Exactly which files, where we looked, and the one command that gets them."""
    names = ", ".join(" or ".join(want.names(file)) for file in missing)
    options = "".join(
        f" --{role} {variant}"
        for role, choice in want.chosen.items()
        for variant, variant_names in want.card.variants.get(role, {}).items()
        if choice == variant_names
    )
    command = f"`nightingale models pull {want.card.name}{options}`"
    looked_in = f"{want.folder} and " if want.folder else ""
    others = [
        r
        for r in files.revisions_in_cache(want.card, cache_dir)
        if not r.startswith(want.card.revision_prefix)
    ]
    hint = (
        f" The cache holds another revision ({others[0][:8]}…); its folder can be given as the model."
        if others
        else ""
    )
    if (
        want.folder is not None
        and "s3gen" in {file.role for file in missing}
        and list(want.folder.glob("s3gen_v3.*"))
    ):
        hint = " The folder holds s3gen_v3: say s3gen='v3' to use it."
    return ModelMissing(
        f"files of {want.card.name!r} are missing",
        got=f"no {names} in {looked_in}{files.cache_root(cache_dir)}",
        allowed=f"the files of {want.card.repo} at revision {want.card.revision}",
        fix=f"Put the files there, or run {command}.{hint}"
        if want.folder
        else f"Run {command} while online.{hint}",
    )
