"""`nightingale models`: list the known models, download them, and find their files."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

from nightingale.cli import options
from nightingale.cli.console import format_size, note
from nightingale.cli.options import argument, option

BUILTIN_MODEL = "wren"
"""The model that is part of the package."""
T3 = Annotated[str | None, option("A variant of the speech model, such as v3.")]
S3Gen = Annotated[str | None, option("A variant of the decoder: v3, or meanflow with two steps.")]


def list_models(as_json: options.AsJson = False) -> None:
    """List the known models, whether their files are here, and their default profiles."""
    from nightingale import wren
    from nightingale.engine.load import default_profile
    from nightingale.engine.requests.early_checks import tags_of
    from nightingale.hub.cards import CARDS
    from nightingale.hub.find import ModelState, state

    absent = wren.missing(wren.folder())
    builtin = ModelState(
        name=BUILTIN_MODEL,
        summary="the built-in model: English, ten speakers, for any CPU",
        complete=not absent,
        bytes_here=sum(file.stat().st_size for file in wren.folder().rglob("*.*") if file.is_file()),
        bytes_to_get=0,
        missing=tuple(absent),
    )
    states = [builtin, *(state(card) for card in CARDS.values())]
    profiles = [default_profile(one.name) for one in states]
    if as_json:
        about = [
            {"profile": profile.name, "stream": profile.stream, "tags": tags_of(one.name)}
            for one, profile in zip(states, profiles, strict=True)
        ]
        print(json.dumps([asdict(one) | more for one, more in zip(states, about, strict=True)]))
        return
    for one, profile in zip(states, profiles, strict=True):
        where = "in the package" if one is builtin else "cached"
        here = f"{where}, {format_size(one.bytes_here)}"
        absence = f"missing, about {format_size(one.bytes_to_get)} to download"
        defaults = f"{profile.name}, stream={profile.stream}"
        tags = f"; tags: {' '.join(tags_of(one.name))}" if tags_of(one.name) else ""
        print(f"{one.name:<14}{here if one.complete else absence:<36}{defaults:<26}{one.summary}{tags}")


def pull(
    name: Annotated[str, argument("MODEL", "A name of `nightingale models list`.")],
    t3: T3 = None,
    s3gen: S3Gen = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Download a model's files into the hub cache and check them."""
    from nightingale import wren
    from nightingale.cli.downloads import download_reports, size_of
    from nightingale.hub import find
    from nightingale.hub.cards import CARDS

    if name == BUILTIN_MODEL:
        folder, remarks = wren.folder(), [f"{name} is part of the package: nothing to download"]
    else:
        chosen: dict[str, Any] = {"t3": t3, "s3gen": s3gen}
        missing_bytes = find.bytes_to_download(name, **chosen) if name in CARDS else 0
        if missing_bytes and not quiet:
            note(f"{name}: {size_of(name, missing_bytes)}")
        with download_reports(name, as_json=as_json, quiet=quiet) as report:
            found, remarks = find.pull(name, on_download=report, **chosen)
        folder = found.folder
    for remark in () if quiet else remarks:
        note(remark)
    print(json.dumps({"model": name, "folder": str(folder), "remarks": remarks}) if as_json else folder)


def path(
    name: Annotated[str, argument("MODEL", "A name or a folder.")], t3: T3 = None, s3gen: S3Gen = None
) -> None:
    """Print the path of each file of a model; never uses the network."""
    from nightingale import wren
    from nightingale.hub.find import locate

    if name == BUILTIN_MODEL:
        paths = {role: wren.folder() / file for role, file in wren.FILES.items()}
    else:
        paths = dict(locate(name, offline=True, t3=t3, s3gen=s3gen).paths)
    for role, file in paths.items():
        print(f"{role}\t{file}")
