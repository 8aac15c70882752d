"""Code between two fences of Markdown, which is left out of speech unless a request asks for it."""

from __future__ import annotations

import re
from typing import Final

CODE_BLOCK: Final = re.compile(
    r"^[ \t]{0,9}(?P<fence>```|~~~)[^\n]{0,80}\n(?P<code>.{0,20000}?)^[ \t]{0,9}(?P=fence)[`~]*[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


def has_fence(text: str) -> bool:
    """Return whether a text may have a code block."""
    return "```" in text or "~~~" in text


def replace_code_blocks(text: str, *, read: bool = False) -> str:
    """Return the text without code blocks, or with their lines as paragraphs of their own if they are read."""
    if not has_fence(text):
        return text
    return CODE_BLOCK.sub(lambda block: f"\n\n{block['code']}\n\n" if read else "\n\n", text)
