"""Errors of requests that a key does not allow. They exist in the server only; http_errors.py has their codes."""

from __future__ import annotations

from nightingale.errors import NightingaleError, QueueFull


class AccessError(NightingaleError):
    """The key does not allow the request."""


class KeyRevoked(AccessError):
    """The key was removed or replaced after the connection was opened."""


class LimitExceeded(QueueFull):
    """A limit of the tenant does not allow the request before `retry_after_s` has passed."""

    limit = "requests_per_minute"
    """The name of the limit in the key file."""


class ConcurrencyExceeded(LimitExceeded):
    """The tenant has as many requests at once as it may."""

    limit = "concurrent_requests"


class QuotaExceeded(LimitExceeded):
    """The tenant has used up the characters of a day."""

    limit = "characters_per_day"


def admin_required(what: str) -> AccessError:
    """Return the error to raise if a tenant would change what all tenants use, and is no admin."""
    return AccessError(what, allowed="a key with the role admin", fix="Ask the operator of the server.")
