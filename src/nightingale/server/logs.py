"""Log formats of the server. The command line installs the result of `log_config`."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any, Final

_STANDARD: Final = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "color_message", "taskName"}
NOT_ERRORS: Final = ("without completing handshake", "timeout graceful shutdown exceeded")
"""Parts of uvicorn's error messages about refused sockets and about requests that a shutdown ends."""


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that were passed as `extra`."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Writes time, level, message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        texts = {key: str(value) for key, value in extras(record).items()}
        # Line breaks and control sequences, which a path in a request may contain, are escaped.
        fields = " ".join(
            f"{key}={text if text.isprintable() else ascii(text)}" for key, text in texts.items()
        )
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{stamp} {record.levelname.lower():<7} {record.getMessage()}  {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class FalseErrorFilter(logging.Filter):
    """Drops what uvicorn logs as an error and is none (NOT_ERRORS)."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False
        message = record.getMessage()
        return not any(words in message for words in NOT_ERRORS)


def logger_levels(level: str) -> dict[str, str]:
    """Return the level of each logger for the setting `log_level`."""
    return {"nightingale": level.upper(), "uvicorn": "WARNING" if level == "info" else level.upper()}


def log_config(level: str, *, as_json: bool) -> dict[str, Any]:
    """Return the argument for `logging.config.dictConfig`."""
    formatter = JsonFormatter if as_json else TextFormatter
    handler = {"class": "logging.StreamHandler", "formatter": "line", "filters": ["false_errors"]}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{__name__}.{formatter.__qualname__}"}},
        "filters": {"false_errors": {"()": f"{__name__}.{FalseErrorFilter.__qualname__}"}},
        "handlers": {"stderr": handler},
        "loggers": {
            name: {"handlers": ["stderr"], "level": threshold, "propagate": False}
            for name, threshold in logger_levels(level).items()
        },
    }
