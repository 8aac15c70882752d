"""Reload of the settings of a running server, at SIGHUP: those for which that makes sense, and the keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from nightingale.errors import NightingaleError
from nightingale.server.logs import logger_levels
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings

log = logging.getLogger("nightingale.server")

RELOADED: Final = (
    "api_key",
    "api_key_file",
    "hosts",
    "log_level",
    "max_clip_seconds",
    "max_upload_bytes",
    "max_voices",
    "uploads",
    "voice_aliases",
)
"""Settings that a reload changes. The others are part of the loaded model, of the listening sockets or of objects that
are made once, so they need a restart."""


def reload_settings(service: SpeechService, load: Callable[[], ServerSettings]) -> None:
    """Read the settings and the files of keys again. If anything is invalid, log it and change nothing."""
    settings = service.settings
    try:
        fresh = load()
        merged = settings.model_copy(update={name: getattr(fresh, name) for name in RELOADED})
        merged.check_bind()
        service.tenants.configure(merged)
    except NightingaleError as error:
        log.error("the settings were not read again; the old ones stay", extra={"error": str(error)})
        return
    # They are frozen so that nothing else changes them. All code that uses these reads them each time.
    vars(settings).update({name: getattr(merged, name) for name in RELOADED})
    for name, level in logger_levels(settings.log_level).items():
        logging.getLogger(name).setLevel(level)
    others = [name for name in type(settings).model_fields if name not in RELOADED]
    if waiting := [name for name in others if getattr(fresh, name) != getattr(settings, name)]:
        log.warning("some settings have changed that need a restart", extra={"settings": ", ".join(waiting)})
    log.info("the settings were read again")
