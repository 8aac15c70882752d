"""What a request is told when it is the engine that failed."""

from __future__ import annotations

from nightingale.errors import EngineFault


def engine_closed() -> EngineFault:
    return EngineFault(
        "the engine was closed",
        got="a request that was not finished",
        allowed="requests while it is open",
        fix="Open a new TTS.",
    )


def engine_failed(error: BaseException) -> EngineFault:
    fault = EngineFault(
        "the engine failed while speaking",
        got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        allowed="no fault",
        fix="Try again; if it happens again, report it with the text and `nightingale doctor`.",
    )
    fault.__cause__ = error
    return fault
