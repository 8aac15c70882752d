"""Code between two fences of Markdown, which is left out of speech unless a request asks for it."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.normalized_text import NormalizedText, fill_groups

CODE_BLOCK: Final = re.compile(
    r"^[ \t]{0,9}(?P<fence>```|~~~)[^\n]{0,80}\n(?P<code>.{0,20000}?)^[ \t]{0,9}(?P=fence)[`~]*[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


def has_fence(text: str) -> bool:
    """Return whether a text may have a code block."""
    return "```" in text or "~~~" in text


def replace_code_blocks(text: str, *, read: bool = False) -> NormalizedText:
    """Return the text without code blocks, or with their lines as paragraphs of their own if they are read."""
    normalized = NormalizedText.of(text)
    if not has_fence(text):
        return normalized
    return normalized.sub(
        CODE_BLOCK,
        lambda block: fill_groups(
            block, [(None, "\n\n"), *([("code", block["code"]), (None, "\n\n")] if read else [])]
        ),
    )
