"""What the server writes about itself: lines for people on a terminal, JSON for programs elsewhere.

The text of a request is logged at DEBUG only. The command line installs what `log_config` gives.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any, Final

_PLAIN: Final = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}

NO_ERRORS: Final = ("without completing handshake", "timeout graceful shutdown exceeded")


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed as `extra`."""
    return {key: value for key, value in record.__dict__.items() if key not in _PLAIN}


class JsonFormatter(logging.Formatter):
    """One object to a line."""

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
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        more = " ".join(f"{key}={_tame(value)}" for key, value in extras(record).items())
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{stamp} {record.levelname.lower():<7} {record.getMessage()}" + (f"  {more}" if more else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _tame(value: Any) -> str:
    """A client's words, such as a path, may hold line breaks and commands for a terminal."""
    text = str(value)
    return text if text.isprintable() else ascii(text)


class Untrue(logging.Filter):
    """Drops what uvicorn calls an error and is none: a socket that was refused in good order, and requests
    that a shutdown ends when their time is over, of which the server itself tells in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False
        said = record.getMessage()
        return not any(words in said for words in NO_ERRORS)


def log_config(level: str, *, as_json: bool) -> dict[str, Any]:
    """For logging.config.dictConfig."""
    form = JsonFormatter if as_json else TextFormatter
    loggers = {"nightingale": level.upper(), "uvicorn": "WARNING" if level == "info" else level.upper()}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": f"{form.__module__}.{form.__qualname__}"}},
        "filters": {"true": {"()": f"{Untrue.__module__}.{Untrue.__qualname__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["true"]}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": threshold, "propagate": False}
            for name, threshold in loggers.items()
        },
    }
