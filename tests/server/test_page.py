"""The page's files: served whole, named right, guarded, and asking nothing of any other host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import PurePosixPath

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI
from starlette.testclient import TestClient

from nightingale.server.routes import page

LINE_LIMIT = 400


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page.router)
    return TestClient(app)


class Links(HTMLParser):
    """Every address a document refers to, every id it gives, and every id it points at."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.pointed: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.addresses += [given[name] for name in ("src", "href") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        for name in ("for", "aria-labelledby", "aria-describedby"):
            self.pointed += given.get(name, "").split()
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def index() -> Links:
    links = Links()
    links.feed(page.page_files()["index.html"].content.decode())
    return links


def test_the_page_is_at_the_root(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Nightingale</title>" in answer.text


@pytest.mark.parametrize("name", sorted(page.page_files()))
def test_each_file_is_served_under_its_own_type(client: TestClient, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200
    assert answer.content == page.page_files()[name].content
    assert answer.headers["content-type"] == page.MEDIA_TYPES[PurePosixPath(name).suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_file_of_the_page_is_left_out() -> None:
    there = {p.relative_to(page.FOLDER).as_posix() for p in page.FOLDER.rglob("*") if p.is_file()}
    assert there == set(page.page_files()), "a kind of file without a media type"


@pytest.mark.parametrize("name", ["../app.py", "..%2f..%2fapp.py", "js/none.js", "js", "", "/etc/passwd"])
def test_nothing_but_the_page_can_be_asked_for(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_scripts_and_styles_come_from_here_and_are_never_inline(client: TestClient) -> None:
    policy = dict(
        part.strip().split(" ", 1) for part in client.get("/").headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not index().inline


def test_a_file_the_browser_has_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/page/js/main.js")
    again = client.get("/page/js/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/page/js/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", sorted(page.page_files()))
def test_no_file_names_another_host(name: str) -> None:
    text = page.page_files()[name].content.decode()
    hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", text))
    assert hosts <= {"http://www.w3.org/2000/svg"}, "the page must work on a machine without a network"


def test_addresses_are_relative_so_that_a_path_prefix_works() -> None:
    rooted = re.compile(r"""(?:src|href)="/|url\(\s*["']?/|(?:fetch|import|URL)\(\s*["'`]/|from "/""")
    found = {name: rooted.findall(file.content.decode()) for name, file in page.page_files().items()}
    assert not {name: hits for name, hits in found.items() if hits}


def test_what_the_page_refers_to_exists() -> None:
    files = {address.removeprefix("page/") for address in index().addresses if address.startswith("page/")}
    assert files
    assert files <= set(page.page_files())


def test_every_import_leads_to_a_file() -> None:
    for name, file in page.page_files().items():
        for target in re.findall(r"""from "(\./[\w.-]+)";""", file.content.decode()):
            assert str(PurePosixPath(name).parent / target) in page.page_files(), f"{name} imports {target}"


def test_every_id_that_is_pointed_at_is_there_once() -> None:
    document = index()
    assert len(document.ids) == len(set(document.ids))
    assert set(document.pointed) <= set(document.ids)
    scripts = "".join(f.content.decode() for n, f in page.page_files().items() if n.endswith(".js"))
    asked = set(re.findall(r'byId\("([\w-]+)"\)', scripts))
    assert asked <= set(document.ids), "a script asks for an element the page does not have"
    drawings = {f"icon-{name}" for name in re.findall(r'(?:icon|iconButton)\("(\w+)"', scripts)}
    assert drawings <= set(document.ids)


def test_no_file_of_the_page_outgrows_a_sitting() -> None:
    lines = {name: file.content.count(b"\n") for name, file in page.page_files().items()}
    assert not {name: count for name, count in lines.items() if count > LINE_LIMIT}
