"""`nightingale detect`: tell whether a recording has the watermark of Chatterbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from nightingale.cli import options
from nightingale.cli.options import argument

IS_MARKED = 0.5


def detect(
    file: Annotated[Path, argument("FILE", "A wav, flac, ogg or mp3 recording.")],
    as_json: options.AsJson = False,
) -> None:
    """Tell whether a recording has Chatterbox's watermark (docs/conversion.md). Exit code 1 if it has none."""
    from nightingale.audio.read import read_audio
    from nightingale.audio.watermark import detect_watermark

    confidence = detect_watermark(*read_audio(file))
    is_marked = confidence >= IS_MARKED
    if as_json:
        print(json.dumps({"file": str(file), "watermark": is_marked, "confidence": round(confidence, 4)}))
    else:
        print(f"{file}: {'a watermark' if is_marked else 'no watermark'} (confidence {confidence:.2f})")
    if not is_marked:
        raise SystemExit(1)
