"""Run the shell commands of README and the quick start as printed, in an empty environment: `make walk`.

Each page is walked from its top in a copy of the repository, with a new home folder and a new virtual environment.
pip installs our own package from the copy, and what it needs from the index that this machine has. Blocks that need a
GPU, another system or large downloads have `<!-- walk: skip REASON -->` before them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", ROOT / "docs" / "quickstart.md") if path.is_file()]
LIMIT_S = 900
BLOCK = re.compile(
    r"^(?P<skip><!-- walk: skip .+? -->\n+)?```sh\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
SERVES = re.compile(r"\b(nightingale|make) serve\b")
PRINTED = {
    "nightingale voices list": "emma",
    "nightingale doctor": "nightingale",
    "nightingale --version": "nightingale",
}
"""Beginnings of commands, and what they print."""
WRITTEN = {"make say": "hello.wav"}
"""Beginnings of commands, and what they write, if no option says so."""
KEPT = (
    "PATH",
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Variables that a new user's shell has, besides those of pip."""


def commands(page: str) -> list[str]:
    """Return the commands of the `sh` blocks that are not skipped; lines that end in a backslash go on."""
    found = []
    for block in BLOCK.finditer(page):
        if block["skip"] is None:
            joined = block["text"].replace("\\\n", " ")
            found += [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return found


@dataclass(slots=True, kw_only=True)
class Shell:
    """A shell whose folder and variables stay from command to command, and whose servers run in the background."""

    folder: Path
    variables: dict[str, str]
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: str) -> str:
        """Run a command to its end and return what it printed; fail if it fails."""
        state = self.folder.parent / "state"
        script = f'{command}\nstatus=$?\n{{ pwd; env -0; }} > "{state}"\nexit $status'
        done = self._start(script, subprocess.PIPE)
        out, _ = done.communicate(timeout=LIMIT_S)
        printed = out.decode(errors="replace")
        assert done.returncode == 0, f"`{command}` ended with {done.returncode}:\n{printed[-4000:]}"
        folder, _, variables = state.read_text(encoding="utf-8").partition("\n")
        self.folder = Path(folder)
        self.variables = dict(line.split("=", 1) for line in variables.split("\0") if "=" in line)
        return printed

    def serve(self, command: str) -> str:
        """Start a server and wait until it listens; return its address."""
        log = self.folder.parent / f"server-{len(self.servers)}.log"
        with log.open("wb") as file:
            server = self._start(command, file)
        self.servers.append(server)
        end = time.monotonic() + LIMIT_S
        while not (found := re.search(r"listens on (http://\S+)", log.read_text(encoding="utf-8"))):
            assert server.poll() is None, log.read_text(encoding="utf-8")[-4000:]
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.2)
        return found[1]

    def _start(self, script: str, out: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=out,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def close(self) -> None:
        for server in self.servers:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell in a copy of the repository, with an empty home and a new environment that is activated."""
    clone, home, environment = tmp_path / "nightingale", tmp_path / "home", tmp_path / "venv"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    variables = {name: os.environ[name] for name in os.environ if name in KEPT or name.startswith("PIP_")}
    variables |= {"HOME": str(home), "PATH": f"{environment / 'bin'}:{variables['PATH']}"}
    made = Shell(folder=clone, variables=variables)
    yield made
    made.close()


def check(shell: Shell, command: str, printed: str) -> None:
    """Check what a command printed, and the file that it wrote."""
    words = next((said for start, said in PRINTED.items() if start in command), "")
    assert words in printed, f"`{command}` printed {printed[-500:]!r}"
    option = re.search(r"\s-o\s+(\S+)", command)
    name = option[1] if option else next((name for start, name in WRITTEN.items() if start in command), None)
    if name is None:
        return
    path = shell.folder / name
    if path.suffix == ".wav":
        with wave.open(str(path)) as audio:
            assert audio.getnframes() > 0.3 * audio.getframerate(), f"`{command}` wrote a short {name}"
            assert any(audio.readframes(audio.getnframes())), f"`{command}` wrote silence"
    else:
        assert path.is_dir() or path.stat().st_size > 1000, f"`{command}` wrote a short {name}"


@pytest.mark.package
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_stranger_can_run_every_command_as_printed(page: Path, shell: Shell) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        started = time.monotonic()
        if SERVES.search(command):
            address = shell.serve(command)
            with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
                assert answer.status == 200
        else:
            check(shell, command, shell.run(command))
        print(f"{page.name}: {time.monotonic() - started:5.1f} s  {command}")


def test_the_pages_begin_with_an_installation_and_a_sentence() -> None:
    for page in PAGES:
        first = commands(page.read_text(encoding="utf-8"))[:3]
        assert any("pip install ." in command for command in first), page.name
        assert any("nightingale say" in command for command in first), page.name


def test_skipped_blocks_comments_and_long_lines() -> None:
    page = """
```sh
# a comment
one  # with a comment of its own
two \\
  three
```
<!-- walk: skip needs a GPU -->
```sh
four
```
```python
five
```
<!-- walk: skip needs a Mac -->

```sh
six
```

```sh
seven
```
"""
    assert commands(page) == ["one  # with a comment of its own", "two    three", "seven"]
