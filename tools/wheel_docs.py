"""A build hook: puts the pages of docs/ into the wheel, where `nightingale docs` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelDocs(BuildHookInterface):
    """Adds each page as nightingale/docs/PAGE.md, without the pictures."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the pages of the checkout are read
            return
        folder = Path(self.root) / "docs"
        for page in folder.rglob("*.md"):
            build_data["force_include"][str(page)] = f"nightingale/docs/{page.relative_to(folder).as_posix()}"
