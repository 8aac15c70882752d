"""The tenants of a server: which one a key belongs to, and whether it may do what it asks for.

A server without a key file has one tenant, `default`, with all rights: that of the setting `api_key`, of a file of
plain keys, or of a server that needs no key. Its voices are in the folder that all tenants share.

The middleware `check_access` looks the key of each request up, and keeps the result in a context variable, which every
task of the request inherits. So no route can forget to pass it on. Code outside of any request, such as Wyoming's
server, acts as the tenant `public`, which has only the voices that all tenants share.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from nightingale.errors import ConfigError
from nightingale.server.metrics import ServerMetrics
from nightingale.server.settings import ServerSettings
from nightingale.server.tenants.access_errors import KeyRevoked, admin_required
from nightingale.server.tenants.key_file import Tenant, hash_key, read_key_file
from nightingale.server.tenants.tenant_usage import RequestWindow, TenantCounters, TenantRequest
from nightingale.server.tenants.usage_store import SAVE_S, CharacterCounts
from nightingale.voices.home import data_folder

log = logging.getLogger("nightingale.server")

DEFAULT: Final = Tenant(name="default", role="admin")
PUBLIC: Final = Tenant(name="public")
USAGE_FILE: Final = "usage.sqlite3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The proof by which a client was identified. The tenant itself is looked up again each time, so that a change of
    the key file applies to open sockets, too."""

    key: str | None = None
    """The hash of its key; None if the server needs none."""
    tenant: str | None = None
    """The name of the tenant of a client that cannot send a key."""


_ACCESS: Final[ContextVar[Access | None]] = ContextVar("nightingale_access", default=None)


@contextlib.contextmanager
def acting_as(access: Access | None) -> Iterator[None]:
    """Let what runs inside, and the tasks that it starts, act for one client."""
    token = _ACCESS.set(access)
    try:
        yield
    finally:
        _ACCESS.reset(token)


class TenantRegistry:
    """Keys, tenants and what they use."""

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics) -> None:
        """Raise ConfigError if a file of keys cannot be read, or the key file has no tenant."""
        self._counters = TenantCounters(metrics.registry)
        self._windows: defaultdict[str, RequestWindow] = defaultdict(RequestWindow)
        self._version: tuple[int, ...] | None = None
        self.configure(settings)
        if settings.keys_file is not None and not self._tenants:
            raise ConfigError(
                "the key file contains no tenant",
                got=str(settings.keys_file),
                fix="Add one with `nightingale keys add NAME`.",
            )
        if settings.wyoming_tenant is not None:
            self.named(settings.wyoming_tenant)
        has_file = settings.keys_file is not None
        self._characters = CharacterCounts(data_folder() / USAGE_FILE if has_file else None)

    def configure(self, settings: ServerSettings) -> None:
        """Read all files of keys; if one is invalid, raise ConfigError and change nothing."""
        plain = tuple(hash_key(key) for key in settings.keys)
        version = _version(settings)
        tenants = {} if settings.keys_file is None else read_key_file(settings.keys_file)
        self._settings, self._version = settings, version
        self._set(plain, tenants)

    def _set(self, plain: tuple[str, ...], tenants: dict[str, Tenant]) -> None:
        self._plain, self._tenants = plain, tenants
        self._owners = [(key, DEFAULT) for key in plain]
        self._owners += [(key, tenant) for tenant in tenants.values() for key in tenant.keys]
        self._counters.set_names(tenants)

    def refresh(self) -> None:
        """Read the key file again if it has changed. An invalid one is logged, and the old keys stay valid."""
        if self._settings.keys_file is None or (version := _version(self._settings)) == self._version:
            return
        self._version = version
        try:
            tenants = read_key_file(self._settings.keys_file)
        except ConfigError as error:
            log.error("the key file was not read again; the old keys stay valid", extra={"error": str(error)})
            return
        self._set(self._plain, tenants)
        log.info("the key file was read again", extra={"tenants": len(tenants)})

    @property
    def needs_key(self) -> bool:
        """Return whether requests need a key. With a key file they always do, also if it became empty."""
        return bool(self._plain) or self._settings.keys_file is not None

    def identify(self, key: str | None) -> Access | None:
        """Return the access that a key gives, or None if it is not valid."""
        self.refresh()
        if not self.needs_key:
            return Access()
        access = Access(key=hash_key(key or ""))
        return access if self._owner(access) is not None else None

    def current(self) -> Tenant:
        """Return the tenant that the running task acts for; raise KeyRevoked if its key is not valid any more."""
        access = _ACCESS.get()
        if access is None:
            return PUBLIC if self.needs_key else DEFAULT
        self.refresh()
        if (tenant := self._owner(access)) is None:
            raise KeyRevoked("the key of this connection is not valid any more", fix="Connect with another.")
        return tenant

    def log_fields(self) -> dict[str, str]:
        """Return the name of the tenant as a field of a log line; none on a server that needs no key."""
        access = _ACCESS.get()
        tenant = None if access is None else self._owner(access)
        return {"tenant": tenant.name} if tenant is not None and self.needs_key else {}

    def named(self, name: str) -> Tenant:
        """Return a tenant of the key file; raise ConfigError if there is none of that name."""
        if name not in self._tenants:
            raise ConfigError("no such tenant", got=repr(name[:80]), fix="See `nightingale keys list`.")
        return self._tenants[name]

    def require_admin(self, what: str) -> None:
        """Raise AccessError, which says `what`, unless the running task acts for an admin."""
        if not self.current().is_admin:
            raise admin_required(what)

    def admit(self, chars: int = 0) -> TenantRequest:
        """Count a request for so many characters; raise LimitExceeded if it is over a limit of its tenant."""
        tenant = self.current()
        request = TenantRequest(tenant, self._windows[tenant.name], self._characters, self._counters)
        try:
            request.charge(chars)
        except BaseException as error:
            request.fail(error)
            raise
        return request

    def used_today(self, tenant: str) -> int:
        """Return how many characters a tenant has used today (UTC)."""
        return self._characters.used(tenant)

    @contextlib.asynccontextmanager
    async def saving(self) -> AsyncIterator[None]:
        """Save what tenants have used every few seconds and at the end, if there is a key file."""
        if self._settings.keys_file is None:
            yield
            return

        async def save_regularly() -> None:
            while True:
                await asyncio.sleep(SAVE_S)
                await asyncio.to_thread(self._characters.save)

        task = asyncio.create_task(save_regularly())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(self._characters.save)

    def _owner(self, access: Access) -> Tenant | None:
        if access.tenant is not None:
            return self._tenants.get(access.tenant)
        if access.key is None:
            return None if self.needs_key else DEFAULT
        # All hashes are compared, in constant time: the time does not tell which one matched, or how much of it.
        found = [tenant for key, tenant in self._owners if hmac.compare_digest(key, access.key)]
        return found[0] if found else None


def _version(settings: ServerSettings) -> tuple[int, ...] | None:
    """Return what changes when the key file is written or replaced; None if it is not there."""
    if settings.keys_file is None:
        return None
    try:
        status = settings.keys_file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
