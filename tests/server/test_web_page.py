"""The files of the web page: media types, security headers, and no references to other hosts."""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from pathlib import PurePosixPath

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI
from starlette.testclient import TestClient

from nightingale.server.web import web_routes


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(web_routes.router)
    return TestClient(app, base_url="http://localhost")


class Links(HTMLParser):
    """Collects the URLs and ids in a document, and the ids that it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.addresses += [given[name] for name in ("src", "href") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        for name in ("for", "aria-labelledby", "aria-describedby"):
            self.references += given.get(name, "").split()
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def index() -> Links:
    links = Links()
    links.feed(web_routes.page_files()["index.html"][0].decode())
    return links


def test_page_is_at_the_root(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Nightingale</title>" in answer.text


@pytest.mark.parametrize("name", sorted(web_routes.page_files()))
def test_each_file_has_its_media_type(client: TestClient, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200
    assert answer.content == web_routes.page_files()[name][0]
    assert answer.headers["content-type"] == web_routes.MEDIA_TYPES[PurePosixPath(name).suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_file_of_the_page_is_served() -> None:
    there = {p.relative_to(web_routes.FOLDER).as_posix() for p in web_routes.FOLDER.rglob("*") if p.is_file()}
    assert there == set(web_routes.page_files()), "a suffix has no media type"


@pytest.mark.parametrize("name", ["../app.py", "..%2f..%2fapp.py", "js/none.js", "js", "", "/etc/passwd"])
def test_other_files_cannot_be_requested(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_scripts_and_styles_are_local_and_never_inline(client: TestClient) -> None:
    policy = dict(
        part.strip().split(" ", 1) for part in client.get("/").headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not index().inline


def test_cached_file_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/page/js/main.js")
    again = client.get("/page/js/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/page/js/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", sorted(web_routes.page_files()))
def test_no_file_names_another_host(name: str) -> None:
    text = web_routes.page_files()[name][0].decode()
    hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", text))
    assert hosts <= {"http://www.w3.org/2000/svg"}, "the page must work on a machine without a network"


def test_urls_are_relative() -> None:
    rooted = re.compile(r"""(?:src|href)="/|url\(\s*["']?/|(?:fetch|import|URL)\(\s*["'`]/|from "/""")
    found = {name: rooted.findall(content.decode()) for name, (content, _) in web_routes.page_files().items()}
    assert not {name: hits for name, hits in found.items() if hits}


def test_files_named_in_the_page_exist() -> None:
    files = {address.removeprefix("page/") for address in index().addresses if address.startswith("page/")}
    assert files
    assert files <= set(web_routes.page_files())


def test_every_import_names_a_file() -> None:
    imports = [
        (name, posixpath.normpath(posixpath.join(posixpath.dirname(name), target)))
        for name, (content, _) in web_routes.page_files().items()
        for target in re.findall(r"""(?:from|URL\() ?"(\.[\w./-]+\.js)\"""", content.decode())
    ]
    assert len(imports) > 20
    assert not [pair for pair in imports if pair[1] not in web_routes.page_files()]


def test_every_referenced_id_exists_once() -> None:
    document = index()
    assert len(document.ids) == len(set(document.ids))
    assert set(document.references) <= set(document.ids)
    files = web_routes.page_files().items()
    scripts = "".join(content.decode() for name, (content, _) in files if name.endswith(".js"))
    used = set(re.findall(r'byId\("([\w-]+)"\)', scripts))
    assert len(used) > 30
    assert used <= set(document.ids), "a script uses an element that the page does not have"
    icons = {f"icon-{name}" for name in re.findall(r'(?:icon|iconButton)\("(\w+)"', scripts)}
    assert icons
    assert icons <= set(document.ids)
