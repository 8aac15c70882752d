"""`nightingale docs`: the pages that help texts and errors name, from the installed package or the checkout."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

from nightingale.cli.options import argument
from nightingale.errors import ConfigError

PACKAGE = Path(__file__).parents[1]


def docs(
    page: Annotated[str | None, argument("[PAGE]", "A page, such as text or docs/text.md.")] = None,
) -> None:
    """List the pages of the documentation, or show PAGE."""
    pages = find_pages()
    if page is None:
        for name, path in pages.items():
            print(f"{name:<22}{page_title(path)}")
        return
    name = page.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name not in pages:
        raise ConfigError("there is no such page", got=page, allowed=", ".join(pages))
    # Comments mark the numbers that `make docs` fills in.
    text = re.sub(r"<!--.*?-->", "", pages[name].read_text(encoding="utf-8"))
    if sys.stdout.isatty():
        from pydoc import pager

        pager(text)
    else:
        print(text, end="")


def find_pages() -> dict[str, Path]:
    """Return the pages by name. A checkout has them beside src, a wheel in the package."""
    for folder in (PACKAGE / "docs", PACKAGE.parents[1] / "docs"):
        if found := sorted(folder.rglob("*.md")):
            return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}
    raise ConfigError("this installation has no documentation", fix="Install a released package.")


def page_title(path: Path) -> str:
    """Return the first heading of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")
