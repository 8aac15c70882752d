"""The key file: its format, `nightingale keys`, reading it again, and the reload of settings at SIGHUP."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from live_server import LiveServer, live_server
from plain_http import HTTP
from tenant_clients import KEYS, header, tenant_server, write_tenants
from typer.testing import CliRunner, Result

from nightingale import TTS, ConfigError
from nightingale.cli.commands import app
from nightingale.server.metrics import ServerMetrics
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale.server.settings_reload import RELOADED, reload_settings
from nightingale.server.tenants.key_file import Tenant, hash_key, new_key, read_key_file, write_key_file
from nightingale.server.tenants.tenant_registry import TenantRegistry
from nightingale.voices import library
from nightingale.voices.voice import Voice

HASH = hash_key("k")
LIMIT_S = 60


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    full = Tenant(
        name="a-b_2",
        keys=(HASH, hash_key("other")),
        role="admin",
        concurrent_requests=0,
        requests_per_minute=60,
        characters_per_day=100_000,
    )
    tenants = {"a-b_2": full, "plain": Tenant(name="plain")}
    write_key_file(tmp_path / "new" / "keys.toml", tenants)
    assert read_key_file(tmp_path / "new" / "keys.toml") == tenants


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not toml", "not valid TOML"),
        ("port = 1", "unknown table"),
        ("tenants = 1", "unknown table"),
        ("[tenants]\nann = 1", "not a table"),
        ("[tenants.Ann]\nkeys = []", "cannot be the name"),
        ("[tenants.'../ann']\nkeys = []", "cannot be the name"),
        ("[tenants.default]\nkeys = []", "cannot be the name"),
        ("[tenants.ann]\nkey = ''", "allowed: keys"),
        ("[tenants.ann]\nname = 'bob'\nkeys = []", "unknown key"),
        ("[tenants.ann]", "the keys of ann"),
        ("[tenants.ann]\nkeys = ['ng_a-key-that-is-not-hashed']", "the keys of ann"),
        ("[tenants.ann]\nkeys = ''", "the keys of ann"),
        (f"[tenants.ann]\nkeys = ['{HASH}']\nrole = 'root'", "the role"),
        (f"[tenants.ann]\nkeys = ['{HASH}']\nconcurrent_requests = -1", "concurrent_requests"),
        (f"[tenants.ann]\nkeys = ['{HASH}']\nrequests_per_minute = true", "requests_per_minute"),
        (f"[tenants.ann]\nkeys = ['{HASH}']\ncharacters_per_day = 1.5", "characters_per_day"),
        (f"[tenants.ann]\nkeys = ['{HASH}']\n[tenants.bob]\nkeys = ['{HASH}']", "same key"),
    ],
)
def test_an_invalid_file_is_refused_without_showing_keys(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as refused:
        read_key_file(file)
    assert "not-hashed" not in str(refused.value)
    with pytest.raises(ConfigError):
        TenantRegistry(ServerSettings(keys_file=file), ServerMetrics())


def test_a_server_needs_a_tenant_to_start(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("")
    with pytest.raises(ConfigError, match="no tenant"):
        TenantRegistry(ServerSettings(keys_file=tmp_path / "keys.toml"), ServerMetrics())
    with pytest.raises(ConfigError, match="cannot be read"):
        TenantRegistry(ServerSettings(keys_file=tmp_path / "missing.toml"), ServerMetrics())


def test_keys_have_256_random_bits() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == len("ng_") + 43 for key in keys)


def nightingale(*arguments: str, file: Path) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments, "--keys-file", str(file)])


def test_commands_add_rotate_and_remove_a_tenant(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"

    def is_valid(key: str) -> bool:
        return TenantRegistry(ServerSettings(keys_file=file), ServerMetrics()).identify(key) is not None

    key = nightingale("add", "ann", "--characters-per-day", "100", file=file).stdout.strip()
    assert key not in file.read_text()
    assert is_valid(key)
    assert nightingale("add", "ann", file=file).exit_code == 2
    assert nightingale("add", "Ann", file=file).exit_code == 2
    os.chmod(file, 0o600)
    second = nightingale("rotate", "ann", "--keep-old", file=file).stdout.strip()
    assert is_valid(key)
    assert is_valid(second)
    third = nightingale("rotate", "ann", "--keep-old", file=file).stdout.strip()
    assert [is_valid(each) for each in (key, second, third)] == [False, True, True]
    fourth = nightingale("rotate", "ann", file=file).stdout.strip()
    assert [is_valid(each) for each in (second, third, fourth)] == [False, False, True]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "the permissions have changed"
    assert nightingale("add", "boss", "--admin", file=file).exit_code == 0
    (ann, boss) = json.loads(nightingale("list", "--json", file=file).stdout)
    assert (ann["name"], ann["keys"], ann["characters_per_day"]) == ("ann", 1, 100)
    assert (boss["name"], boss["role"]) == ("boss", "admin")
    assert "sha256" not in nightingale("list", file=file).stdout
    assert nightingale("remove", "ann", file=file).exit_code == 0
    assert not is_valid(fourth)
    for command in ("rotate", "remove"):
        assert nightingale(command, "ann", file=file).exit_code == 2


def test_voices_of_a_removed_tenant_are_not_inherited(tmp_path: Path, noise_model: Any) -> None:
    file, voice = tmp_path / "keys.toml", noise_model.default_voice
    assert isinstance(voice, Voice)
    nightingale("add", "ann", file=file)
    library.add("anna", voice, tenant="ann")
    assert "anna" in nightingale("remove", "ann", file=file).stderr
    refused = nightingale("add", "ann", file=file)
    assert (refused.exit_code, "anna" in refused.stderr) == (2, True)
    assert nightingale("add", "ann", "--keep-voices", file=file).exit_code == 0
    assert nightingale("remove", "ann", "--delete-voices", file=file).exit_code == 0
    assert library.locate("anna", tenant="ann") is None
    assert nightingale("add", "ann", file=file).exit_code == 0


def test_commands_find_the_file_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, ["keys", "list"]).exit_code == 2
    monkeypatch.setenv("NIGHTINGALE_KEYS_FILE", str(tmp_path / "keys.toml"))
    assert CliRunner().invoke(app, ["keys", "add", "ann"]).exit_code == 0
    assert list(read_key_file(tmp_path / "keys.toml")) == ["ann"]


def status(server: LiveServer, name: str) -> int:
    return HTTP.get(f"{server.http}/v1/models", headers=header(name)).status_code


def test_the_key_file_is_read_again_when_it_changes(
    brief: TTS, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"

    def errors() -> int:
        return sum(record.levelno == logging.ERROR for record in caplog.records)

    with tenant_server(brief, file) as server:
        write_tenants(file, Tenant(name="ann"), Tenant(name="cy", keys=(hash_key(KEYS["ann"]),)))
        assert [status(server, name) for name in ("ann", "bob")] == [200, 200], "cy has the key of ann now"
        write_tenants(file, Tenant(name="ann"))
        assert [status(server, name) for name in ("ann", "bob")] == [401, 200]
        for broken in ("[tenants", "[tenants.ann]\nkeys = ['ng_plain']"):
            file.write_text(broken)
            before = errors()
            assert [status(server, name) for name in ("ann", "bob", "bob")] == [401, 200, 200]
            assert errors() == before + 1, "the error is not logged once"
        file.unlink()
        assert status(server, "bob") == 200
        write_tenants(file)
        assert status(server, "ann") == 200
        file.write_text("")
        assert status(server, "bob") == 401, "the last tenant was removed, and its key is still valid"
        assert HTTP.get(f"{server.http}/v1/models").status_code == 401
    assert "ng_plain" not in caplog.text


def test_reload_changes_the_settings_that_are_documented(
    brief: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "nightingale.toml"
    config.write_text('api_key = "one"')
    monkeypatch.setattr(logging.getLogger("nightingale"), "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("uvicorn"), "level", logging.WARNING)
    settings = ServerSettings.load(config)
    service = SpeechService(settings, brief)

    def reload(text: str) -> None:
        config.write_text(text)
        reload_settings(service, lambda: ServerSettings.load(config))

    with live_server(brief, service, api_key="one") as server:

        def code(key: str) -> int:
            return HTTP.get(f"{server.http}/v1/models", headers={"xi-api-key": key}).status_code

        reload('api_key = "two"\nlog_level = "warning"\nuploads = false\nport = 1\nmax_voices = 7')
        assert [code(key) for key in ("one", "two")] == [401, 200]
        assert (settings.uploads, settings.max_voices, settings.port) == (False, 7, 8880)
        assert logging.getLogger("nightingale").level == logging.WARNING
        assert "port" in str([vars(record).get("settings") for record in caplog.records])
        for broken in ("api_key =", 'api_key = "three"\nmax_voices = -1', 'api_key_file = "/no/such/file"'):
            reload(broken)
            assert caplog.records[-1].levelno == logging.ERROR
            assert [code(key) for key in ("two", "three")] == [200, 401]
        assert "three" not in caplog.text


def test_reload_does_not_open_an_address_of_others_to_everyone(tmp_path: Path) -> None:
    config = tmp_path / "nightingale.toml"
    config.write_text('host = "0.0.0.0"\napi_key = "one"')
    service = SpeechService(ServerSettings.load(config))
    config.write_text('host = "0.0.0.0"')
    reload_settings(service, lambda: ServerSettings.load(config))
    assert service.tenants.identify("one") is not None
    assert service.tenants.identify(None) is None


def test_settings_that_are_reloaded_exist() -> None:
    assert set(RELOADED) <= set(ServerSettings.model_fields)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_reloads_a_running_server(tmp_path: Path) -> None:
    plain = tmp_path / "keys.txt"
    plain.write_text("one\n")
    (tmp_path / ".env").write_text("NIGHTINGALE_MAX_VOICES=3\n")
    command = [sys.executable, "-m", "nightingale", "serve", "--model", "noise", "--port", "0"]
    env = {**os.environ, "NIGHTINGALE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--api-key-file", str(plain)], stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    ) as process:
        try:
            assert process.stderr is not None
            url = next(line.split()[-1] for line in process.stderr if "listens on" in line)

            def until(expected: Callable[[], bool]) -> None:
                deadline = time.monotonic() + LIMIT_S
                while not expected():
                    assert time.monotonic() < deadline, "SIGHUP changed nothing"
                    time.sleep(0.02)

            def code(key: str) -> int:
                return HTTP.get(f"{url}/v1/models", headers={"xi-api-key": key}).status_code

            assert [code(key) for key in ("one", "two")] == [200, 401]
            plain.write_text("two\n")
            process.send_signal(signal.SIGHUP)
            until(lambda: code("two") == 200)
            assert code("one") == 401
        finally:
            process.kill()
