"""docs/listening.md: the samples that tools/make_samples.py made, with a player each on the site."""

from __future__ import annotations

import re
from pathlib import Path

from make_samples import CLONE, REFERENCE, SEED, TEXTS

VOICES = Path(__file__).parents[1] / "src" / "nightingale" / "wren" / "voices"
DEMO = """## In your browser

`examples/browser` is a page that speaks with the same model inside a browser, without a server. It needs the
exported model and onnxruntime-web, which are not part of this site:

```bash
npm install --no-save --prefix examples/browser onnxruntime-web@1.30.0
nightingale export wren -o examples/browser/model
python -m http.server --directory examples/browser
```

Then open <http://localhost:8000>. After the first two commands, `make site` puts the page into the site too, as
`demo/index.html`. [Browsers](export.md#in-a-browser) describes it. `nightingale serve` has
[a page of its own](page.md).
"""


def kind_of(voice: str) -> str:
    """Return the gender and accent that the card of a voice states."""
    card = (VOICES / f"{voice}.md").read_text(encoding="utf-8")
    found = re.search(r"Built into wren: ([^.]*?), after", " ".join(card.split()))
    return found[1] if found else ""


def listening_page() -> str:
    voices = sorted(path.stem for path in VOICES.glob("*.safetensors"))
    kinds = [*TEXTS, "clone"]
    lines = [
        "# Listen",
        "",
        f"The ten voices of wren, the model in the package, each with the seed {SEED}: nothing was selected or edited.",
        "Wren is small, and you will hear it: [its card](wren.md) has the measured quality and its limits.",
        "",
        "| sample | text |",
        "|---|---|",
        *(f"| {kind} | {text} |" for kind, text in TEXTS.items()),
        f"| clone | {CLONE} |",
        "",
        f"The clone is made from a recording of the same built-in voice, which says: *{REFERENCE}*",
        "",
        f"| voice | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for voice in voices:
        players = [f"[{voice}, {kind}](samples/{voice}-{kind}.mp3)" for kind in kinds]
        lines.append(f"| **{voice}**<br>{kind_of(voice)} | {' | '.join(players)} |")
    lines += [
        "",
        "The official models cannot be heard here: their weights are not part of this repository, and could not be",
        'downloaded where it is built. With them, `nightingale say -m turbo "Hello there." -o hello.wav` makes a',
        "sample, and `nightingale report --blind` compares two engines without telling you which is which",
        "([how](bench.md#as-a-page)).",
        "",
        "`python tools/make_samples.py` makes the samples, and `make docs` this page.",
        "",
        DEMO,
    ]
    return "\n".join(lines)
