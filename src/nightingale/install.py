"""The commands that install this package and its extras, for the error messages that name one.

Read this when the package is published: `PUBLISHED` is the one place that says whether an index has it.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

NAME: Final = "nightingale-tts"
PUBLISHED: Final = False
"""True once PyPI has the package (dev/releasing.md). Until then the pages install it from a clone."""


def install_command(extra: str = "") -> str:
    """Return the pip command that adds an extra to this installation, or installs it again, from any folder.

    pip gets the checkout that runs, or what the package was installed from: a folder, a wheel, or an address. Only a
    package that came from an index has its name there.
    """
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return _from_path(checkout, extra, "-e ")
    # Here, since the engine imports this module and urllib.request imports ssl.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "null")
    except PackageNotFoundError:
        if not PUBLISHED:
            return _from_path(Path(), extra)
        origin = None
    if origin is None:
        return f"pip install {_wanted(NAME, extra)}"
    url = str(origin["url"])
    if url.startswith("file:"):
        return _from_path(Path(url2pathname(unquote(urlsplit(url).path))), extra)
    prefix = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    name = f"{NAME}[{extra}]" if extra else NAME
    return f"pip install '{name} @ {prefix}{url}'"


def other_package() -> str | None:
    """Return the name of an installed package that has our import name and overwrites our files; None if none has."""
    from importlib.metadata import distributions

    for one in distributions():
        name = str(one.metadata["Name"])
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain == "nightingale":
            return name
        if plain != NAME and "\nnightingale/__init__.py," in f"\n{one.read_text('RECORD') or ''}":
            return name
    return None


def _wanted(what: str, extra: str) -> str:
    return shlex.quote(f"{what}[{extra}]" if extra else what)


def _from_path(path: Path, extra: str, option: str = "") -> str:
    """Return the command for a folder or a wheel. The lab is a package of its own, which lies beside them."""
    wanted = _wanted(str(path), extra)
    if extra == "lab" and path.suffix == ".whl":
        wanted = f"--find-links {shlex.quote(str(path.parent))} {wanted}"
    elif extra == "lab":
        wanted = f"{shlex.quote(str(path))} {shlex.quote(str(path / 'src' / 'nightingale_lab'))}"
    return f"pip install {option}{wanted}"
