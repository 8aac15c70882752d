"""`nightingale keys`: the tenants of a server. A key is printed once; the file has only its hash."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nightingale.cli import options
from nightingale.cli.console import note
from nightingale.cli.options import argument, option
from nightingale.errors import ConfigError
from nightingale.install import install_command

if TYPE_CHECKING:
    from nightingale.server.tenants.key_file import Tenant
    from nightingale.voices.library import Entry

Name = Annotated[str, argument("NAME", "Name of the tenant: a-z, 0-9, _ and -.")]
KeysFile = Annotated[
    Path | None, option("The key file.", "--keys-file", default="the setting keys_file of the server")
]


def list_tenants(keys_file: KeysFile = None, as_json: options.AsJson = False) -> None:
    """List the tenants with their roles and limits."""
    from nightingale.server.tenants.key_file import LIMITS

    tenants = _read(_path(keys_file))
    if as_json:
        shown = [{**asdict(tenant), "keys": len(tenant.keys)} for tenant in tenants.values()]
        print(json.dumps(shown))
        return
    for tenant in tenants.values():
        limits = [f"{name}={limit}" for name in LIMITS if (limit := getattr(tenant, name)) is not None]
        keys = f"{len(tenant.keys)} key{'' if len(tenant.keys) == 1 else 's'}"
        print(f"{tenant.name:<20}{tenant.role:<8}{keys:<8}{' '.join(limits) or 'no limits'}")
    if not tenants:
        note("no tenants yet; add one with `nightingale keys add NAME`")


def add_tenant(
    name: Name,
    keys_file: KeysFile = None,
    admin: Annotated[
        bool, option("May share and delete the voices of all, and read metrics.", "--admin")
    ] = False,
    concurrent_requests: Annotated[int | None, option("Maximum number of requests at once.", min=0)] = None,
    requests_per_minute: Annotated[int | None, option("Maximum number of requests a minute.", min=0)] = None,
    characters_per_day: Annotated[int | None, option("Maximum number of characters a day.", min=0)] = None,
    keep_voices: Annotated[
        bool, option("Take over the voices of a former tenant of that name.", "--keep-voices")
    ] = False,
) -> None:
    """Add a tenant and print its key, which is shown only this once."""
    from nightingale.server.tenants.key_file import (
        Tenant,
        check_tenant_name,
        hash_key,
        new_key,
        write_key_file,
    )

    check_tenant_name(name)
    path = _path(keys_file)
    tenants = _read(path)
    if name in tenants:
        fix = f"For a new key: nightingale keys rotate {name}."
        raise ConfigError("a tenant of that name exists", got=repr(name), fix=fix)
    if (voices := _own_voices(name)) and not keep_voices:
        raise ConfigError(
            "a former tenant of that name has left voices",
            got=", ".join(voice.name for voice in voices),
            fix="Choose another name, or say --keep-voices if it is the same tenant; "
            f"`nightingale keys remove {name} --delete-voices` deletes them.",
        )
    key = new_key()
    tenants[name] = Tenant(
        name=name,
        keys=(hash_key(key),),
        role="admin" if admin else "tenant",
        concurrent_requests=concurrent_requests,
        requests_per_minute=requests_per_minute,
        characters_per_day=characters_per_day,
    )
    write_key_file(path, tenants)
    note(f"{name} was added to {path}. This is its key; it is not stored and cannot be shown again:")
    print(key)


def rotate(
    name: Name,
    keys_file: KeysFile = None,
    keep_old: Annotated[
        bool, option("Let the key before stay valid, until the next rotation.", "--keep-old")
    ] = False,
) -> None:
    """Replace the key of a tenant and print the new one. A running server uses it from the next request on."""
    from nightingale.server.tenants.key_file import hash_key, new_key, write_key_file

    path = _path(keys_file)
    tenants = _read(path)
    tenant = _named(tenants, name)
    key = new_key()
    tenants[name] = replace(tenant, keys=(hash_key(key), *(tenant.keys[:1] if keep_old else ())))
    write_key_file(path, tenants)
    note(
        f"The key before {'stays valid until the next rotation' if keep_old else 'is not valid any more'}. The new key:"
    )
    print(key)


def remove_tenant(
    name: Name,
    keys_file: KeysFile = None,
    delete_voices: Annotated[bool, option("Delete its voices, too.", "--delete-voices")] = False,
) -> None:
    """Remove a tenant: its keys are not valid any more. Its voices stay unless --delete-voices is given."""
    from nightingale.server.tenants.key_file import check_tenant_name, write_key_file
    from nightingale.voices import library

    check_tenant_name(name)
    path = _path(keys_file)
    tenants = _read(path)
    voices = _own_voices(name)
    if not (name not in tenants and delete_voices and voices):  # the voices of a former tenant may be deleted
        _named(tenants, name)
        del tenants[name]
        write_key_file(path, tenants)
    for voice in voices if delete_voices else []:
        library.remove(voice.name, tenant=name)
    if voices:
        outcome = "were deleted" if delete_voices else f"stay in {voices[0].path.parent}"
        note(f"its voices {outcome}: {', '.join(voice.name for voice in voices)}")


def _path(keys_file: Path | None) -> Path:
    """Return the key file that was given, else that of the server's settings."""
    if keys_file is not None:
        return keys_file
    try:
        from nightingale.server.settings import ServerSettings
    except ImportError as error:
        raise ConfigError(
            "the packages of the server are not installed",
            got=str(error),
            fix=install_command("server"),
        ) from error
    configured = ServerSettings.load().keys_file
    if configured is None:
        fix = "Pass --keys-file, or set keys_file in nightingale.toml or NIGHTINGALE_KEYS_FILE."
        raise ConfigError("no key file is given", fix=fix)
    return configured


def _read(path: Path) -> dict[str, Tenant]:
    from nightingale.server.tenants.key_file import read_key_file

    return read_key_file(path) if path.exists() else {}


def _named(tenants: dict[str, Tenant], name: str) -> Tenant:
    if name not in tenants:
        allowed = ", ".join(tenants) or "none yet"
        raise ConfigError(
            "no such tenant", got=repr(name), allowed=allowed, fix="See `nightingale keys list`."
        )
    return tenants[name]


def _own_voices(tenant: str) -> list[Entry]:
    from nightingale.voices.library import entries

    return [entry for entry in entries(tenant=tenant) if entry.tenant == tenant]
