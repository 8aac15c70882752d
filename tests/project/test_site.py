"""The documentation site builds without a warning, has players, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from project.source_tree import ROOT, load_tool


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr
    return folder


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    found = (page.relative_to(site) for page in site.rglob("*.html"))
    built = {page.with_suffix("") for page in found if page.parts[0] != "demo"}
    assert pages == built - {Path("404")}
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    assert {Path(name).with_suffix("") for name in re.findall(r": ([\w/-]+\.md)$", navigation, re.M)} == pages


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loaded = re.compile(
        r'<(?:script|img|audio|source|iframe)[^>]*\ssrc="(https?:)?//|<link[^>]*href="(https?:)?//'
    )
    assert not [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())]
    assert not [
        css.name for css in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", css.read_text())
    ]


def test_every_voice_can_be_played(site: Path) -> None:
    page = (site / "wren.html").read_text()
    players = re.findall(r'<audio controls preload="none" src="([^"]+)"', page)
    voices = list((ROOT / "src" / "nightingale" / "wren" / "voices").glob("*.safetensors"))
    assert len(players) == 4 * len(voices)
    assert all((site / player).stat().st_size > 5000 for player in players)
    assert sum(sample.stat().st_size for sample in (ROOT / "docs" / "samples").iterdir()) < 2_000_000


def test_marks_of_numbers_are_not_in_the_pages(site: Path) -> None:
    assert not [page.name for page in site.rglob("*.html") if "<!--wren." in page.read_text()]


def test_the_browser_page_is_added_where_its_model_and_runtime_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = load_tool("site_hooks")
    hooks.on_post_build(config={"site_dir": str(tmp_path / "without")})
    assert not (tmp_path / "without" / "demo").exists() or (hooks.DEMO / "model").exists()
    demo = tmp_path / "browser"
    for name in ("model/export.json", f"{hooks.RUNTIME}/ort.wasm.min.mjs", "index.html"):
        (demo / name).parent.mkdir(parents=True, exist_ok=True)
        (demo / name).touch()
    monkeypatch.setattr(hooks, "DEMO", demo)
    hooks.on_post_build(config={"site_dir": str(tmp_path)})
    assert (tmp_path / "demo" / "index.html").is_file()
    assert (tmp_path / "demo" / hooks.RUNTIME / "ort.wasm.min.mjs").is_file()


class PageFile:
    src_uri = "performance.md"


class Page:
    file = PageFile()


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("See [dev/LOG.md](../dev/LOG.md).", "See dev/LOG.md."),
        ("See [the log](../dev/LOG.md#a).", "See the log (`dev/LOG.md` in the repository)."),
        ("See [wren](wren.md).", "See [wren](wren.md)."),
        ("See [text.md](text.md#ssml).", "See [Text](text.md#ssml)."),
        ("A <!--wren.rtf-->0.1<!----> here.", "A 0.1 here."),
    ],
)
def test_links_that_leave_the_site_become_text(markdown: str, shown: str) -> None:
    assert load_tool("site_hooks").on_page_markdown(markdown, page=Page()) == shown


def test_a_link_to_a_file_that_does_not_exist_stops_the_build() -> None:
    with pytest.raises(Exception, match=r"gone\.py, which does not exist"):
        load_tool("site_hooks").on_page_markdown("[x](../src/gone.py)", page=Page())
