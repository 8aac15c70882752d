"""Helpers that all WebSocket routes share: sending with a timeout, and the receive loop.

Sending waits for a slow client, but not longer than the timeout. Messages are read one at a time, so a client
that sends faster than it is served is held back by TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from nightingale.errors import ConfigError
from nightingale.server.service.speech_turns import ClientGone

SUBPROTOCOL: Final = "nightingale.v1"
CLOSE_TIMEOUT_S: Final = 5.0

_GONE: Final = (TimeoutError, OSError, RuntimeError, WebSocketDisconnect)


class ClientSocket:
    """An accepted WebSocket: the receive loop, and sending with a timeout."""

    def __init__(self, websocket: WebSocket, timeout_s: float) -> None:
        self._websocket, self._timeout_s = websocket, timeout_s
        self.gone = asyncio.Event()
        """Set when the client has left or has stalled for longer than the timeout."""

    async def json(self, message: dict[str, Any]) -> None:
        await self._send(self._websocket.send_text(json.dumps(message)))

    async def binary(self, data: bytes) -> None:
        await self._send(self._websocket.send_bytes(data))

    async def _send(self, sending: Awaitable[None]) -> None:
        try:
            await asyncio.wait_for(sending, self._timeout_s)
        except _GONE as error:
            self.gone.set()
            raise ClientGone from error

    async def receive(self, handle: Callable[[str | bytes], Awaitable[None]], *stops: asyncio.Event) -> None:
        """Call `handle` with each message, in order, until the client is gone or one of `stops` is set."""
        receiving = asyncio.create_task(self._receive(handle))
        tasks = [receiving, *(asyncio.create_task(stop.wait()) for stop in (self.gone, *stops))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _receive(self, handle: Callable[[str | bytes], Awaitable[None]]) -> None:
        try:
            while self._websocket.client_state is WebSocketState.CONNECTED:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                text, data = message.get("text"), message.get("bytes")
                await handle(text if text is not None else data or b"")
                # A thousand small messages may have arrived at once, and neither call above needs to wait for them.
                await asyncio.sleep(0)
        except (ClientGone, WebSocketDisconnect):
            return

    async def close(self, code: int = 1000) -> None:
        """Close the connection unless the client has done so already."""
        if self._websocket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(*_GONE):
                await asyncio.wait_for(self._websocket.close(code), CLOSE_TIMEOUT_S)


async def accept(websocket: WebSocket, subprotocol: str = SUBPROTOCOL) -> ClientSocket:
    """Complete the handshake, with the subprotocol if the client offers it."""
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=subprotocol if subprotocol in offered else None)
    return ClientSocket(websocket, websocket.app.state.settings.send_timeout)


def parse_object(message: str | bytes) -> dict[str, Any]:
    """Parse a text message that must be a JSON object."""
    try:
        parsed = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError(
            "the message cannot be read",
            got=f"{len(message)} {'characters' if isinstance(message, str) else 'bytes'}",
            allowed="one JSON object in each text message",
        )
    return parsed
