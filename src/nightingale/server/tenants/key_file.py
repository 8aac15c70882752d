"""The key file: the tenants of a server with the hashes of their keys, their roles and their limits, in TOML.

    [tenants.acme]
    keys = ["sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"]
    role = "admin"
    concurrent_requests = 4
    requests_per_minute = 60
    characters_per_day = 100000

Only hashes are stored. A key is 256 random bits, so that neither a salt nor a slow hash is needed: those make it
expensive to try likely passwords, and there are no likely keys to try.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from nightingale.errors import ConfigError
from nightingale.files import write_whole
from nightingale.voices.library import is_name

KEY_BYTES: Final = 32
KEY_PREFIX: Final = "ng_"
"""Scanners for leaked secrets can find keys by it."""
RESERVED: Final = ("default", "public")
"""Names of the tenants that are in no key file (tenant_registry.py)."""
ROLES: Final = ("tenant", "admin")
LIMITS: Final = ("concurrent_requests", "requests_per_minute", "characters_per_day")

HEADER: Final = """\
# Tenants of `nightingale serve --keys-file`. Limits may be edited here; the server reads the file again when it
# changes. `nightingale keys` rewrites it and keeps no other comments.
"""
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A client of the server, its keys and its limits."""

    name: str
    keys: tuple[str, ...] = ()
    """Hashes of its keys (`hash_key`): usually one, and two while a key is replaced."""
    role: str = "tenant"
    concurrent_requests: int | None = None
    """Requests for speech, conversions and uploads at once; None for this and the others means no limit."""
    requests_per_minute: int | None = None
    """Requests for speech, conversions and uploads in any 60 seconds."""
    characters_per_day: int | None = None
    """Characters of text in a calendar day (UTC)."""

    @property
    def is_admin(self) -> bool:
        """Return whether it may share and delete the voices of all, and read the metrics."""
        return self.role == "admin"

    @property
    def folder(self) -> str | None:
        """Return the name of the folder of its voices; None if it has none of its own."""
        return None if self.name in RESERVED else self.name


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_key(key: str) -> str:
    """Return the form in which a key is stored."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_key_file(path: Path) -> dict[str, Tenant]:
    """Return the tenants by name; raise ConfigError, which never contains a value of `keys`, for an invalid file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "the key file cannot be read", got=str(error), fix="Correct --keys-file."
        ) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError("the key file is not valid TOML", got=str(error), fix=f"Correct {path}.") from error
    tables = document.pop("tenants", {})
    if document or not isinstance(tables, dict):
        raise ConfigError(
            "the key file has an unknown table",
            got=", ".join(document) or "a value `tenants`",
            allowed="[tenants.NAME]",
            fix=f"Correct {path}.",
        )
    found = {name: _tenant(name, table, path) for name, table in tables.items()}
    hashes = [key for tenant in found.values() for key in tenant.keys]
    if len(set(hashes)) < len(hashes):
        raise ConfigError("two tenants of the key file have the same key", fix=f"Correct {path}.")
    return found


def write_key_file(path: Path, tenants: Mapping[str, Tenant]) -> None:
    """Replace the file as a whole, with the owner and the permissions that it had."""
    before = path.stat() if path.is_file() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    text = HEADER + "".join(f"\n{_table(tenant)}" for tenant in tenants.values())
    write_whole(path, text.encode())
    if before is not None:
        os.chmod(path, before.st_mode)
        with suppress(OSError, AttributeError):  # only root may; Windows has no owners of this kind
            os.chown(path, before.st_uid, before.st_gid)


def _table(tenant: Tenant) -> str:
    keys = ", ".join(f'"{key}"' for key in tenant.keys)
    lines = [f"[tenants.{tenant.name}]", f"keys = [{keys}]", f'role = "{tenant.role}"']
    lines += [f"{name} = {limit}" for name in LIMITS if (limit := getattr(tenant, name)) is not None]
    return "\n".join(lines) + "\n"


def check_tenant_name(name: str) -> None:
    """Raise ConfigError for a name that no tenant may have."""
    if not is_name(name) or name in RESERVED:
        raise ConfigError(
            "this cannot be the name of a tenant",
            got=repr(name[:80]),
            allowed=f"1 to 64 of a-z, 0-9, _ and -, and neither {' nor '.join(RESERVED)}",
        )


def _tenant(name: str, table: Any, path: Path) -> Tenant:
    def problem(what: str, allowed: str, got: str | None = None) -> ConfigError:
        fix = f"Correct [tenants.{name}] in {path}."
        return ConfigError(f"the key file is invalid: {what}", got=got, allowed=allowed, fix=fix)

    check_tenant_name(name)
    known = [field.name for field in fields(Tenant) if field.name != "name"]
    if not isinstance(table, dict):
        raise problem(f"tenants.{name} is not a table", allowed="a table")
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            raise problem("an unknown key", got=repr(key), allowed=", ".join(close or known))
    keys = table.get("keys")
    # A value that is no hash is not shown: it may be a key.
    if not isinstance(keys, list) or not all(isinstance(key, str) and _HASH.fullmatch(key) for key in keys):
        raise problem(f"the keys of {name}", allowed="a list of hashes that `nightingale keys` has written")
    if (role := table.get("role", "tenant")) not in ROLES:
        raise problem("the role", got=repr(role), allowed=" or ".join(ROLES))
    for limit in LIMITS:
        value = table.get(limit, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise problem(limit, got=repr(value)[:40], allowed="an integer that is not negative")
    return Tenant(**{**table, "name": name, "keys": tuple(keys)})
