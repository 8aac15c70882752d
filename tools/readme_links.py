"""A metadata hook: README as the page of a package index, where links relative to the repository lead nowhere.

The address of the repository is NIGHTINGALE_REPOSITORY, or that of the GitHub Actions run that builds the package.
Without one, README is taken as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\])\((?!https?:|mailto:|#)([^)]+)\)")
"""Picture mark, text (which may be a picture), and a target in the repository."""


def repository_url(environment: Mapping[str, str]) -> str | None:
    if own := environment.get("NIGHTINGALE_REPOSITORY"):
        return own.rstrip("/")
    server, name = (environment.get(key) for key in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"))
    return f"{server}/{name}" if server and name else None


def absolute_links(text: str, repository: str) -> str:
    """Return Markdown whose links and pictures lead to files of the repository's newest commit."""

    def replaced(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        label = LINK.sub(replaced, label)
        return f"{picture}{label}({repository}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return LINK.sub(replaced, text)


class ReadmeLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := repository_url(os.environ):
            text = absolute_links(text, repository)
            metadata["urls"] = {
                "Repository": repository,
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
