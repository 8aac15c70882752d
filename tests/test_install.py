"""The command that installs an extra works from any folder, whatever the package was installed from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from nightingale import install
from nightingale.cli.commands import app
from nightingale.errors import ConfigError
from nightingale.install import install_command, other_package

WHEEL = "/a/dist/nightingale_tts-0.2.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("origin", "extra", "command"),
    [
        ({"url": "file:///a/clone", "dir_info": {}}, "server", "pip install '/a/clone[server]'"),
        ({"url": "file:///my%20files/clone"}, "server", "pip install '/my files/clone[server]'"),
        ({"url": "file:///a/clone"}, "lab", "pip install /a/clone /a/clone/src/nightingale_lab"),
        ({"url": f"file://{WHEEL}"}, "torch", f"pip install '{WHEEL}[torch]'"),
        ({"url": f"file://{WHEEL}"}, "lab", f"pip install --find-links /a/dist '{WHEEL}[lab]'"),
        (
            {"url": "https://example.org/n.git", "vcs_info": {"vcs": "git"}},
            "ja",
            "pip install 'nightingale-tts[ja] @ git+https://example.org/n.git'",
        ),
        (None, "server", "pip install 'nightingale-tts[server]'"),  # from an index
        # The package again, without an extra.
        (None, "", "pip install nightingale-tts"),
        ({"url": "file:///my%20files/clone"}, "", "pip install '/my files/clone'"),
        (
            {"url": "https://example.org/n.git", "vcs_info": {"vcs": "git"}},
            "",
            "pip install 'nightingale-tts @ git+https://example.org/n.git'",
        ),
    ],
)
def test_an_extra_is_added_to_the_installation_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: Any, extra: str, command: str
) -> None:
    installed = SimpleNamespace(read_text=lambda _: origin and json.dumps(origin))
    monkeypatch.setattr(install, "__file__", str(tmp_path / "site-packages" / "nightingale" / "install.py"))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: installed)
    assert install_command(extra) == command


def test_a_checkout_is_installed_again_so_that_it_can_be_edited() -> None:
    root = Path(__file__).parents[1]
    assert install_command("hub") == f"pip install -e '{root}[hub]'"
    assert install_command("lab") == f"pip install -e {root} {root}/src/nightingale_lab"


@pytest.mark.parametrize(
    ("published", "command"), [(False, "pip install '.[hub]'"), (True, "pip install 'nightingale-tts[hub]'")]
)
def test_a_copy_that_pip_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, published: bool, command: str
) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(install, "__file__", str(tmp_path / "lib" / "nightingale" / "install.py"))
    monkeypatch.setattr("importlib.metadata.distribution", absent)
    monkeypatch.setattr(install, "PUBLISHED", published)
    assert install_command("hub") == command


@pytest.mark.parametrize(
    ("name", "owned", "found"),
    [
        ("nightingale", "nightingale/core.py,,", True),
        ("Nightingale", "", True),
        ("birdsong", "birdsong/a.py,,\nnightingale/__init__.py,sha256=x,1\n", True),
        ("birdsong", "birdsong/nightingale/__init__.py,,", False),
        ("nightingale-lab", "nightingale_lab/__init__.py,,", False),
        ("nightingale_tts", "nightingale/__init__.py,,", False),
    ],
)
def test_another_package_with_our_import_name_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, owned: str, found: bool
) -> None:
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "RECORD").write_text(owned)
    assert other_package() is None
    monkeypatch.syspath_prepend(tmp_path)
    assert other_package() == (name if found else None)
    printed = CliRunner().invoke(app, ["doctor", "--quick"])
    told = [line for line in printed.stdout.splitlines() if line.startswith("import name")]
    if not found:
        assert not told
        return
    assert printed.exit_code == 1
    assert "BROKEN" in told[0]
    root = Path(__file__).parents[1]
    again = f"pip install --force-reinstall --no-deps -e {root}"
    assert f"pip uninstall {name}, then {again}" in printed.stdout


def test_the_command_says_so_when_the_other_package_has_replaced_our_files(tmp_path: Path) -> None:
    folder = tmp_path / "nightingale-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: nightingale\nVersion: 1.0\n")
    code = (
        "import sys; sys.argv = ['nightingale', 'doctor']; import nightingale; del nightingale.__version__\n"
        "from nightingale.cli.main import main; main()"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(install.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "pip uninstall nightingale, then pip install" in done.stderr
    assert "Traceback" not in done.stderr
