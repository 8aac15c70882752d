"""Errors that several parts of the engine raise: engine failures and numbers out of range."""

from __future__ import annotations

from numbers import Integral, Real

from nightingale.errors import ConfigError, EngineFault, NightingaleError, memory_full


def engine_closed() -> NightingaleError:
    return EngineFault("the engine was closed", fix="Open a new TTS.")


def engine_failed(error: BaseException) -> NightingaleError:
    """Return the error that a request ends with when `error` was not its caller's fault."""
    if (full := memory_full(error)) is not None:
        return full
    first_line, _, _ = str(error).partition("\n")
    fault = EngineFault(
        "the engine failed while it processed this request",
        got=f"{type(error).__name__}: {first_line}",
        fix="Try again; if it happens again, report it with the text and `nightingale doctor`.",
    )
    fault.__cause__ = error
    return fault


def check_range(name: str, value: object, low: float, high: float, *, integer: bool = False) -> None:
    """Raise ConfigError unless `value` is a number from `low` to `high`."""
    # Checked by abstract base class so that numpy numbers pass; the comparison is false for NaN.
    is_number = isinstance(value, Integral if integer else Real) and not isinstance(value, bool)
    if not (is_number and low <= value <= high):  # type: ignore[operator]
        raise ConfigError(
            f"{name} is out of range",
            got=repr(value),
            allowed=f"{'an integer' if integer else 'a number'} from {low} to {high}",
            param=name,
        )
