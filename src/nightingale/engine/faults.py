"""Errors that several parts of the engine raise: engine failures and numbers out of range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from types import UnionType

import numpy as np

from nightingale.errors import ConfigError, EngineFault, NightingaleError, TextError, memory_full, wrong_type
from nightingale.types import Samples


def engine_closed() -> NightingaleError:
    fault = EngineFault("the engine was closed", fix="Open a new TTS.")
    fault.engine_ended = True
    return fault


def engine_failed(error: BaseException) -> NightingaleError:
    """Return the error that a request ends with when this one occurred, which may be one of Nightingale's."""
    if isinstance(error, NightingaleError):
        return error
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


@contextmanager
def raising_engine_faults() -> Iterator[None]:
    """Raise EngineFault in place of an error that is none of Nightingale's. Can be used as a decorator."""
    try:
        yield
    except Exception as error:
        if (fault := engine_failed(error)) is error:
            raise
        raise fault from error


def check_finite(samples: Samples, source: str) -> Samples:
    """Return the samples; raise EngineFault if one of them is NaN or infinite. source: what made them."""
    if not np.isfinite(samples).all():
        raise EngineFault(
            f"the {source} returned numbers that are not audio",
            got="NaN or infinity",
            fix="Try again; if it happens again, report it with the text and `nightingale doctor`.",
        )
    return samples


def engine_forked() -> NightingaleError:
    return EngineFault(
        "the engine was opened by another process",
        got="a TTS that was inherited by a fork, without its thread",
        fix="Open a TTS in this process, after the fork.",
    )


def check_text(text: object) -> None:
    """Raise TextError unless `text` is a string."""
    if not isinstance(text, str):
        fix = "Decode it: text.decode()." if isinstance(text, bytes) else None
        got = f"{type(text).__name__} {ascii(text)[:40]}"
        raise TextError("the text is not a string", got=got, allowed="str", fix=fix, param="text")


def check_texts(texts: Iterable[str]) -> Iterable[str]:
    """Return the texts of a call; raise TextError unless they are an iterable, and not a single text."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        got = f"{type(texts).__name__} {ascii(texts)[:40]}"
        fix = "Put one text into a list: [text]." if isinstance(texts, str | bytes) else None
        raise TextError(
            "the texts are not an iterable of strings",
            got=got,
            allowed="an iterable of str",
            fix=fix,
            param="texts",
        )
    return texts


def check_types(**options: tuple[object, type | UnionType, str]) -> None:
    """Raise ConfigError for the first option, (value, type, what is allowed in words), of another type."""
    for name, (value, kind, allowed) in options.items():
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise wrong_type(name, value, allowed)


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
