"""`nightingale export`: write a model for another runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from nightingale.cli import options
from nightingale.cli.console import format_size, note, progress_line
from nightingale.cli.options import argument, option


def export(
    model: Annotated[str, argument("MODEL", "A name of `nightingale models list`, or a folder.")],
    out: Annotated[Path, option("A new or empty folder.", "-o", "--out")],
    file_format: Annotated[
        str, option("onnx, executorch or coreml (docs/export.md).", "--format", default=True)
    ] = "onnx",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write MODEL for another runtime, and check that it speaks as the engine does."""
    from nightingale.export import export_model

    with progress_line(f"exporting {model} …", quiet=quiet) as show_progress:
        files = export_model(model, out, file_format=file_format, note=show_progress)
    sizes = {str(file.relative_to(out)): file.stat().st_size for file in files}
    if not quiet:
        note(f"{out}: {len(sizes)} files, {format_size(sum(sizes.values()))}")
    if as_json:
        print(json.dumps({"model": model, "format": file_format, "bytes": sizes}))
