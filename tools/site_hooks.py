"""Hooks of the site build (mkdocs.yml): links that leave docs/ become text, links to audio become players.

The pages are written for GitHub, a pager and the site alike, as plain Markdown. Here, links to audio files become
players, links that show the name of a file show the title of its page, and links to files outside docs/ become text,
since those files are not part of the site.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples" / "browser"
RUNTIME = Path("node_modules/onnxruntime-web/dist")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
NAMED = re.compile(r"\[(?:[\w-]+/)*[\w-]+\.md\]\(((?:\.\./|[\w-]+/)*[\w-]+\.md)(#[\w-]+)?\)")
NUMBER = re.compile(r"<!--[a-z][\w.-]*-->(.*?)<!---->")
AUDIO = re.compile(r'<a href="([^"]+\.mp3)">(.*?)</a>')


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Remove the marks of numbers, and replace links to files outside docs/ by their text.

    Raises:
        PluginError: such a file does not exist.
    """
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def text_only(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which does not exist")
        path = target.relative_to(ROOT).as_posix()
        return link[1] if path in link[1] else f"{link[1]} (`{path}` in the repository)"

    def with_title(link: re.Match[str]) -> str:
        target = folder / link[1]
        return f"[{page_title(target)}]({link[1]}{link[2] or ''})" if target.is_file() else link[0]

    return NAMED.sub(with_title, LINK.sub(text_only, NUMBER.sub(r"\1", markdown)))


def page_title(path: Path) -> str:
    """Return the first heading of a page."""
    return path.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]


def on_page_content(html: str, **_: Any) -> str:
    """Show a player for each link to an audio file."""
    player = (
        r'<span class="player-name">\2</span><audio controls preload="none" src="\1" aria-label="\2"></audio>'
    )
    return AUDIO.sub(player, html)


def on_post_build(config: Any, **_: Any) -> None:
    """Add the page that speaks in a browser as demo/, if its model and its runtime are there."""
    if (DEMO / "model" / "export.json").is_file() and (DEMO / RUNTIME).is_dir():
        target = Path(config["site_dir"]) / "demo"
        for part in ("model", RUNTIME):
            shutil.copytree(DEMO / part, target / part, dirs_exist_ok=True)
        for page in DEMO.glob("*.*"):
            shutil.copy(page, target)
