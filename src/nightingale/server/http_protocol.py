"""uvicorn's HTTP protocol, with a limit of the time in which a client must send the headers of a request."""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S: Final = 20.0
"""Maximum time from a connection, or from the first byte of a later request, to the end of its headers."""
REQUEST_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedHttpProtocol(H11Protocol):
    """Closes connections whose headers do not arrive in time; uvicorn would keep them for ever."""

    headers_s = HEADERS_S
    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._headers_due = self.loop.call_later(self.headers_s, self._refuse)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._headers_due is None:
            self._headers_due = self.loop.call_later(self.headers_s, self._refuse)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _refuse(self) -> None:
        self._headers_due = None
        if self.conn.their_state is h11.IDLE:
            self.transport.write(REQUEST_TIMEOUT)
            self.transport.close()
