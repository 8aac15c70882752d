"""Fixtures of all tests: a home folder of their own, and the model "noise", which needs no PyTorch.

`--suite` chooses tests: `make test` and `make test-rest` use it. Together with `make check`, which runs
`tests/project`, they run every test once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nightingale import TTS
    from nightingale.engine.load import Model

BRIEF_TOKENS = 6
LAB = Path(__file__).parent / "lab"
RULES = Path(__file__).parent / "project"
SUITES = {
    "product": "without the lab, the rules of the repository, and tests that are marked thorough",
    "rest": "the lab, and tests that are marked thorough",
    "all": "everything",
}
"""The values of `--suite`, and the tests that each runs."""

# Triton decides when a kernel is defined whether it is compiled or interpreted. Tests of any folder may be the
# first in a process to import one, so this is set before all of them.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"

with suppress(ImportError):  # the environments of other projects' clients have none
    from hypothesis import settings

    # An example may take any time: on a busy machine they do.
    settings.register_profile("suite", deadline=None)
    settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    meaning = "; ".join(f"{name}: {which}" for name, which in SUITES.items())
    parser.addoption("--suite", choices=tuple(SUITES), default="all", help=meaning)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders as a whole: reading their modules takes a while."""
    left_out = {"product": (LAB, RULES), "rest": (RULES,), "all": ()}[config.getoption("--suite")]
    return True if collection_path in left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    suite = config.getoption("--suite")
    if suite == "all":
        return
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        in_rest = LAB in item.path.parents or item.get_closest_marker("thorough") is not None
        (chosen if in_rest == (suite == "rest") else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


@pytest.fixture(autouse=True)
def _separate_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's voices, cache and defaults."""
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture(autouse=True)
def _onednn_stays_enabled() -> Iterator[None]:
    """Enable oneDNN again after each test.

    On a CPU without bf16 instructions, PyTorch's first bf16 product fails in oneDNN, and PyTorch disables oneDNN for
    the rest of the process ("mkldnn_matmul failed"). Sums of later tests would be rounded in another way.
    """
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.set_flags(True)


@pytest.fixture(scope="session", autouse=True)
def _handle_ctrl_c() -> None:
    """Handle Ctrl-C even if the shell started the tests in the background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def noise_model() -> Model:
    from nightingale.engine.load import load_noise

    return load_noise()


@pytest.fixture(scope="session")
def tts_with(noise_model: Model) -> Callable[..., TTS]:
    """Return a function that makes engines: `tts_with(default_voice=None, defaults={"drop_last_token": True})`."""
    from nightingale import TTS

    def make(*, defaults: dict[str, Any] | None = None, **changes: Any) -> TTS:
        model = noise_model.with_defaults(**{"max_new_tokens": BRIEF_TOKENS, **(defaults or {})})
        return TTS.over(replace(model, **changes))

    return make


@pytest.fixture(scope="session")
def brief(tts_with: Callable[..., TTS]) -> TTS:
    """Return an engine whose segments end after a quarter of a second."""
    return tts_with()


@pytest.fixture(scope="session")
def english(brief: TTS) -> Iterator[TTS]:
    """Return an engine that reads text as wren does, without its weights."""
    from nightingale import TTS
    from nightingale.text.english import read

    frontend = replace(brief._model.frontend, spell_out=read, family="wren")
    with TTS.over(replace(brief._model, frontend=frontend)) as tts:
        yield tts
