"""Settings of the server: sources, their order, and errors about invalid values."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import nightingale
from nightingale.errors import ConfigError
from nightingale.server import settings as settings_module
from nightingale.server.service.model_loading import load_engine
from nightingale.server.settings import PREFIX, ServerSettings, unknown_keys

SOURCE = Path(nightingale.__file__).parents[1]


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings that do not come from the test."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings_module, "default_config", lambda: tmp_path / "none.toml")


@pytest.mark.parametrize(("spelled", "streams"), [("auto", "auto"), ("4", 4), (2, 2)])
def test_the_number_of_streams_is_a_number_or_auto(spelled: object, streams: object) -> None:
    assert ServerSettings.load(max_streams=spelled).max_streams == streams
    for wrong in ("0", "many", -1):
        with pytest.raises(ConfigError, match="max_streams"):
            ServerSettings.load(max_streams=wrong)


def test_the_stream_mode_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerSettings.load().stream is None
    monkeypatch.setenv("NIGHTINGALE_STREAM", "block")
    assert ServerSettings.load().stream == "block"
    assert ServerSettings.load(stream="segment").stream == "segment"
    with pytest.raises(ConfigError, match=r"'stream'.*'blocks'.*'segment' or 'block'"):
        ServerSettings.load(stream="blocks")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ("balanced", "block")),
        ({"profile": "exact"}, ("exact", "segment")),
        ({"profile": "default", "stream": "block"}, ("balanced+stream=block", "block")),
        ({"profile": "balanced"}, ("balanced", "block")),
        ({"profile": "balanced", "stream": "segment"}, ("balanced+stream=segment", "segment")),
    ],
)
def test_the_engine_of_a_server_has_the_profile_of_its_settings(
    asked: dict[str, Any], expected: tuple[str, str]
) -> None:
    with load_engine(ServerSettings.load(model="noise", **asked)) as tts:
        assert (tts.plan.profile.name, tts.plan.profile.stream) == expected


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nightingale.toml"
    file.write_text('port = 1\nhost = "::1"\nslots = 3\ncors = ["https://a"]\nspeling = 1\n')
    monkeypatch.setenv("NIGHTINGALE_PORT", "2")
    monkeypatch.setenv("NIGHTINGALE_SLOTS", "4")
    monkeypatch.setenv("NIGHTINGALE_OPTION", "t3=v3, kind=multilingual")
    monkeypatch.setenv("NIGHTINGALE_SPELING", "x")
    settings = ServerSettings.load(file, port=3, slots=None)
    assert (settings.port, settings.host, settings.slots) == (3, "::1", 4)
    assert settings.cors == ["https://a"]
    assert settings.option == {"t3": "v3", "kind": "multilingual"}
    assert unknown_keys(file) == ["NIGHTINGALE_SPELING", f"speling in {file}"]


def test_misspelled_key_in_the_env_file_is_found(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "NIGHTINGALE_PORT=7\nexport NIGHTINGALE_SPELING='x'\nCOMPOSE_FILE=a\n# NIGHTINGALE_X=1\n"
    )
    assert ServerSettings.load().port == 7
    assert unknown_keys() == ["NIGHTINGALE_SPELING in .env"]


def test_variable_that_is_no_setting_is_unknown_in_the_env_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from the environment only, so the user must be warned that the file has no effect."""
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    assert unknown_keys() == []
    (tmp_path / ".env").write_text("NIGHTINGALE_HOME=/elsewhere\n")
    assert unknown_keys() == ["NIGHTINGALE_HOME in .env"]


def test_every_variable_in_the_source_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = (SOURCE / "nightingale", SOURCE / "nightingale_lab")
    source = "".join(path.read_text() for package in packages for path in package.rglob("*.py"))
    read = set(re.findall(r"[\"'](NIGHTINGALE_[A-Z_]+)[\"']", source))
    assert {"NIGHTINGALE_HOME", "NIGHTINGALE_UPSTREAM_PYTHON"} <= read
    for name in read:
        monkeypatch.setenv(name, "x")
    assert unknown_keys() == []


@pytest.mark.parametrize(
    ("written", "seconds"), [("5m", 300), ("0", 0), ("-1", -1), ("1.5h", 5400), ("30s", 30)]
)
def test_durations_may_have_units(written: str, seconds: float) -> None:
    assert ServerSettings(keep_alive=written).keep_alive == seconds


@pytest.mark.parametrize(
    "flags", [{"port": 99999}, {"keep_alive": "soon"}, {"log_level": "loud"}, {"slots": 0}]
)
def test_invalid_setting_is_named(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(flags))):
        ServerSettings.load(**flags)


def test_aliases_that_differ_only_in_case_must_agree() -> None:
    assert ServerSettings(voice_aliases="Anna=heart, anna=Heart").voice_aliases == {"anna": "heart"}
    with pytest.raises(ConfigError, match="upper and lower case"):
        ServerSettings.load(voice_aliases="Anna=heart, anna=emma")


def test_missing_or_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.toml"):
        ServerSettings.load(tmp_path / "nope.toml")
    (tmp_path / "bad.toml").write_text("port = = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        ServerSettings.load(tmp_path / "bad.toml")


def test_address_other_than_loopback_needs_a_key_or_insecure(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        ServerSettings(host=host).check_bind()
    for host in ("0.0.0.0", "::", "192.168.1.5", "tts.lan"):
        with pytest.raises(ConfigError, match="--insecure"):
            ServerSettings(host=host).check_bind()
        ServerSettings(host=host, insecure=True).check_bind()
        ServerSettings(host=host, api_key="k").check_bind()
    keys = tmp_path / "keys"
    keys.write_text("# for the kitchen\nalpha\n\nbeta \n")
    assert ServerSettings(api_key_file=keys, api_key="gamma").keys == ("gamma", "alpha", "beta")
    keys.write_text("\n")
    with pytest.raises(ConfigError, match="contains no key"):
        ServerSettings(host="0.0.0.0", api_key_file=keys).check_bind()
