"""Print the signatures of the public Python API, one per line.

tests/project/api.txt keeps them and tests/project/test_public_api.py compares, so that an accidental change
fails. After a change on purpose: `python tools/api_signatures.py > tests/project/api.txt`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import nightingale
from nightingale import compat

RETURNED = (("TTS", "stream"), ("TTS", "session"), ("AsyncTTS", "session"))
"""Public methods whose results users call methods on; the classes of these results have no public name."""


class Verbatim:
    """An annotation that prints as it stands in the source."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def request_options() -> dict[str, inspect.Parameter]:
    """Return the options that every method that speaks has as keyword arguments; they are printed once."""
    parameters = inspect.signature(nightingale.TTS.session).parameters
    return {name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def signature(function: Any) -> str:
    """Return the parameters and the return type, with annotations as they stand in the source.

    The options of a request are shown as `**options`.
    """
    found = inspect.signature(function)

    def verbatim(annotation: Any) -> Any:
        return Verbatim(annotation) if isinstance(annotation, str) else annotation

    options = request_options() if "ssml_voices" in found.parameters else {}
    shown = [p for name, p in found.parameters.items() if name not in options]
    if options:
        kind = inspect.Parameter.VAR_KEYWORD
        shown.append(inspect.Parameter("options", kind, annotation="RequestOptions"))
    parameters = [p.replace(annotation=verbatim(p.annotation)) for p in shown]
    return str(found.replace(parameters=parameters, return_annotation=verbatim(found.return_annotation)))


def class_lines(name: str, kind: type) -> Iterator[str]:
    """Yield the constructor, public attributes and public methods of a class, inherited ones included."""
    if issubclass(kind, Exception):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        constructor = signature(kind) if "__init__" in vars(kind) else ""
        yield f"class {name}({bases}){constructor} [exit code {getattr(kind, 'exit_code', None)}]"
        return
    # Users do not construct what a method returns.
    yield f"class {name}{signature(kind) if hasattr(nightingale, name) or '.' in name else ''}"
    declared = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    fields = {field.name: field.type for field in declared}
    for field, annotation in fields.items():
        yield f"{name}.{field}: {annotation}"
    for attribute in dir(kind):
        if not attribute.startswith("_") and attribute not in fields:
            value = inspect.getattr_static(kind, attribute)
            if isinstance(value, property):
                returned = signature(value.fget).partition(" -> ")[2]
                yield f"{name}.{attribute}: {returned}"
            elif isinstance(value, classmethod | staticmethod):
                yield f"{name}.{attribute}{signature(value.__func__)} [{type(value).__name__}]"
            elif inspect.isfunction(value):
                prefix = "async " if inspect.iscoroutinefunction(value) else ""
                yield f"{prefix}{name}.{attribute}{signature(value)}"
            else:
                yield f"{name}.{attribute} = {value!r}"
    yield from (f"{name}.{attribute}" for attribute in sorted(instance_attributes(kind) - set(dir(kind))))


def instance_attributes(kind: type) -> set[str]:
    """Return the public names that the methods of a class assign to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
        and not node.attr.startswith("_")
    }


def public_objects() -> dict[str, Any]:
    """Return name -> object for everything a user may rely on."""
    found = {name: getattr(nightingale, name) for name in nightingale.__all__ if name != "__version__"}
    for owner, method in RETURNED:
        function = inspect.unwrap(getattr(found[owner], method))
        kind = function.__globals__[function.__annotations__["return"]]
        found[kind.__name__] = kind
    for name, value in vars(compat).items():
        if inspect.isclass(value) and value.__module__ == compat.__name__ and not name.startswith("_"):
            found[f"compat.{name}"] = value
    return found


def lines() -> list[str]:
    found: list[str] = []
    for name, value in sorted(public_objects().items()):
        found += class_lines(name, value) if inspect.isclass(value) else [f"{name}{signature(value)}"]
    options = request_options().items()
    found += [f"RequestOptions.{name}: {one.annotation} = {one.default!r}" for name, one in options]
    return found


if __name__ == "__main__":
    print("\n".join(lines()))
