"""The conversation of a session of OpenAI's Realtime API: its messages, and the events about them."""

from __future__ import annotations

import secrets
from typing import Any, Final

from nightingale.errors import ConfigError
from nightingale.server.websocket_io import ClientSocket

MAX_ITEMS: Final = 64
"""Messages that a conversation remembers, and that may wait for a response."""
MAX_ID_CHARS: Final = 64
TEXT_PARTS: Final = ("input_text", "output_text", "text")
SPOKEN_ROLES: Final = ("user", "assistant")


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"


class RealtimeConversation:
    """The messages of one socket, in order, and what is sent about them."""

    def __init__(self, socket: ClientSocket, *, beta: bool) -> None:
        """beta: send events under the names of the API's beta version."""
        self.id, self.beta = new_id("conv"), beta
        self._socket = socket
        self._items: dict[str, dict[str, Any]] = {}
        self.unspoken: list[str] = []
        """Messages for the next response."""

    async def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self._socket.json({"type": kind, "event_id": new_id("event"), **fields})

    async def add(self, given: object) -> None:
        """Add a message of the client."""
        text = message_text(given)
        assert isinstance(given, dict)
        if len(self.unspoken) >= MAX_ITEMS:
            allowed = f"at most {MAX_ITEMS}"
            raise ConfigError(
                "too many messages wait for a response", allowed=allowed, fix="Send response.create."
            )
        item_id = given.get("id")
        item = {
            "id": item_id[:MAX_ID_CHARS] if isinstance(item_id, str) and item_id else new_id("item"),
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": given["role"],
            "content": given["content"],
        }
        if item["role"] in SPOKEN_ROLES and text.strip() and item["id"] not in self.unspoken:
            self.unspoken.append(item["id"])
        await self.update(item)
        await self.update(item)

    async def update(self, item: dict[str, Any]) -> None:
        """Add an item, or replace it when it is done. The beta version has no event for the latter."""
        is_new = item["id"] not in self._items
        self._items[item["id"]] = item
        for old in list(self._items)[: max(0, len(self._items) - MAX_ITEMS)]:
            if old not in self.unspoken:
                del self._items[old]
        if is_new or not self.beta:
            ids = list(self._items)
            index = ids.index(item["id"])
            kind = "created" if self.beta else "added" if is_new else "done"
            previous = ids[index - 1] if index else None
            await self.send(f"conversation.item.{kind}", previous_item_id=previous, item=item)

    def find(self, item_id: object) -> dict[str, Any]:
        if not isinstance(item_id, str) or item_id not in self._items:
            raise ConfigError("no such item", got=repr(item_id)[:80], param="item_id")
        return self._items[item_id]

    def remove(self, item_id: object) -> None:
        del self._items[self.find(item_id)["id"]]
        self.unspoken = [each for each in self.unspoken if each != item_id]

    def text_for(self, response: dict[str, Any]) -> str:
        """Return what a response says: its input, else the messages since the last one, else its instructions."""
        given, instructions = response.get("input"), response.get("instructions")
        if isinstance(given, list):
            items = [self._resolve(item) for item in given]
        elif self.unspoken:
            items = [self._items[item_id] for item_id in self.unspoken]
        else:
            return instructions if isinstance(instructions, str) else ""
        return "\n".join(message_text(item) for item in items if _is_spoken(item))

    def _resolve(self, item: object) -> object:
        is_reference = isinstance(item, dict) and item.get("type") == "item_reference"
        return self.find(item.get("id")) if is_reference and isinstance(item, dict) else item


def _is_spoken(item: object) -> bool:
    return not isinstance(item, dict) or item.get("role") in SPOKEN_ROLES


def message_text(item: object) -> str:
    """Return the text of a message; raise ConfigError if it is no message, or has a part that is not text."""
    fields = item if isinstance(item, dict) else {}
    content = fields.get("content") if fields.get("type") == "message" else None
    if not isinstance(content, list) or fields.get("role") not in (*SPOKEN_ROLES, "system"):
        raise ConfigError(
            "not a message",
            got=repr(item)[:80],
            allowed='{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "…"}]}',
            param="item",
        )
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text" if kind in TEXT_PARTS else "transcript") if isinstance(part, dict) else None
        if not isinstance(text, str):
            allowed = ", ".join(TEXT_PARTS)
            raise ConfigError(
                "a part of the message has no text", got=repr(kind)[:80], allowed=allowed, param="item"
            )
        texts.append(text)
    return " ".join(texts)
