"""Calls of a backend that belong to no request, or to another one: their failure must not spread."""

from __future__ import annotations

import logging

from nightingale.backends.base import Decoder, Renderer

log = logging.getLogger(__name__)


def release_slot(decoder: Decoder, slot: int) -> None:
    """Free a slot; reset it, as after an error in its request, if that fails."""
    try:
        decoder.release(slot)
    except Exception:
        log.warning("a slot could not be released and is reset", exc_info=True)
        decoder.reset(slot)


def move_slot(decoder: Decoder, source: int, target: int) -> Exception | None:
    """Move a slot. If that fails, reset both places and return the error: the request in it cannot go on."""
    try:
        decoder.move(source, target)
    except Exception as error:
        decoder.reset(source)
        decoder.reset(target)
        return error
    return None


def hint_busy(renderer: Renderer, busy: bool) -> None:
    """Tell the renderer whether the decoder is busy, which only changes its speed."""
    try:
        renderer.decoder_busy(busy)
    except Exception:
        log.warning("the renderer could not be told whether the decoder is busy", exc_info=True)
