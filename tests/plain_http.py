"""An HTTP client for servers on this machine: no certificates to load, no connection kept open."""

from __future__ import annotations

import httpx

HTTP = httpx.Client(verify=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
