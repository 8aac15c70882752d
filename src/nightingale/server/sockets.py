"""What every WebSocket route does alike: who may come in, what goes out, what comes in.

One client can be slow, silent, gone or mad; none of it may cost the others anything. What goes out waits for
the client, and not for ever; what comes in is read one message at a time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.auth import FOREIGN, UNAUTHORIZED, is_foreign, is_right, key_of
from nightingale.server.problems import problem_of
from nightingale.server.settings import Settings
from nightingale.server.turn import ListenerGone

SUBPROTOCOL: Final = "nightingale.v1"
KEY_SUBPROTOCOL: Final = "nightingale.key."
"""Browsers cannot set headers on a socket. They can offer subprotocols, and those are not written to logs as
addresses are: `new WebSocket(url, ["nightingale.v1", "nightingale.key." + base64url(key)])`."""


class Outlet:
    """The way out to one client."""

    def __init__(self, websocket: WebSocket, patience_s: float) -> None:
        """patience_s: a client that takes nothing for so long is let go."""
        self._websocket, self._patience_s = websocket, patience_s
        self.gone = asyncio.Event()

    async def json(self, message: dict[str, Any]) -> None:
        await self._send(self._websocket.send_text(json.dumps(message)))

    async def binary(self, data: bytes) -> None:
        await self._send(self._websocket.send_bytes(data))

    async def _send(self, sending: Awaitable[None]) -> None:
        try:
            await asyncio.wait_for(sending, self._patience_s)
        except (TimeoutError, OSError, RuntimeError, WebSocketDisconnect) as error:
            self.gone.set()
            raise ListenerGone from error


def offered_key(websocket: WebSocket) -> str | None:
    """The key in the subprotocols a browser offers, if there is one."""
    for offer in websocket.scope.get("subprotocols", []):
        if offer.startswith(KEY_SUBPROTOCOL):
            coded = offer.removeprefix(KEY_SUBPROTOCOL)
            try:
                return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
            except (binascii.Error, ValueError):
                return ""
    return None


async def admit(websocket: WebSocket) -> bool:
    """Whether this client may come in; if not, it has been told so. It still has to be welcomed."""
    settings: Settings = websocket.app.state.settings
    key = key_of(websocket.headers)
    if not is_right(websocket.app.state.keys, offered_key(websocket) if key is None else key):
        await websocket.send_denial_response(UNAUTHORIZED.response)
    elif is_foreign(websocket.headers, settings):
        await websocket.send_denial_response(FOREIGN.response)
    else:
        return True
    return False


async def welcome(websocket: WebSocket) -> None:
    """Accept, naming our subprotocol if the client asked for one."""
    wanted = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in wanted else None)


async def refuse(websocket: WebSocket, error: NightingaleError) -> None:
    """Say no before the handshake, in HTTP, where every client looks for the reason."""
    retry_after_ms = websocket.app.state.speaker.retry_after_ms
    await websocket.send_denial_response(problem_of(error, retry_after_ms).response)


def read_object(text: str | bytes) -> dict[str, Any]:
    """A message that must be a JSON object."""
    try:
        message = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ConfigError(
            "this message cannot be read",
            got=f"{len(text)} {'characters' if isinstance(text, str) else 'bytes'}",
            allowed="one JSON object in each text message",
            fix="Send JSON.",
        )
    return message


async def converse(
    websocket: WebSocket, each: Callable[[str | bytes], Awaitable[None]], *stops: asyncio.Event
) -> None:
    """Hand over each message, in order, until the client leaves or one of `stops` is set."""
    talking = asyncio.create_task(_read(websocket, each))
    waiting = [talking, *(asyncio.create_task(stop.wait()) for stop in stops)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            talking.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def _read(websocket: WebSocket, each: Callable[[str | bytes], Awaitable[None]]) -> None:
    try:
        while websocket.client_state is WebSocketState.CONNECTED:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text, data = message.get("text"), message.get("bytes")
            await each(text if text is not None else data or b"")
    except (ListenerGone, WebSocketDisconnect):
        return


async def hang_up(websocket: WebSocket, code: int = 1000, reason: str = "") -> None:
    """Close, if the client has not done so already."""
    if websocket.application_state is WebSocketState.CONNECTED:
        try:
            await asyncio.wait_for(websocket.close(code, reason), 5.0)
        except (TimeoutError, OSError, RuntimeError, WebSocketDisconnect):
            return
