"""uvicorn's WebSocket protocol, with limits for clients that do not read and for text that is not UTF-8."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

log = logging.getLogger("nightingale.server")

INVALID_DATA: Final = 1007


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Drop connections that stay full for longer than a timeout, and answer no pings meanwhile.

    uvicorn would keep the answers to all pings in memory. A client may expect only the answer to its last ping.
    """

    def __init__(self, *args: Any, send_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._send_timeout_s = send_timeout_s
        self._stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._send_timeout_s, self._drop)

    def resume_writing(self) -> None:
        self._stop_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # drops the answer

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:  # uvicorn would log a traceback
                log.info("a client sent text that is not UTF-8")
                self.conn.fail(INVALID_DATA, "invalid UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def _drop(self) -> None:
        log.info("a client has stalled and is disconnected", extra={"timeout_s": self._send_timeout_s})
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
