"""Score folders of recordings by Distill-MOS, without their texts: one JSON object.

    python -m nightingale_lab.bench.judges.score_folders FOLDER [FOLDER …] [--workers 1]

Each folder gets `clips`, the `mean`, `p10` (a tenth of the clips score less) and the score of each file. Recordings
are the folder's *.wav and *.opus, of any sampling rate. This is a judge: no loss and no selection may use it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nightingale_lab.bench.judges.client import judges_python, run_judges
from nightingale_lab.bench.quality import spread

JUDGE = "distillmos"
FORMATS = (".wav", ".opus")


def recordings(folder: Path) -> list[Path]:
    """Return the recordings of a folder in name order."""
    return sorted(path for path in folder.iterdir() if path.suffix in FORMATS)


def report(folders: Sequence[Path], answers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the scores by folder. A clip that could not be judged has its error in place of a score."""
    files: dict[str, dict[str, Any]] = {str(folder): {} for folder in folders}
    for answer in answers:
        wav = Path(answer["wav"])
        files[str(wav.parent)][wav.name] = answer.get("error") or answer[JUDGE]["mos"]
    return {
        folder: {
            "clips": len(scores),
            **spread(score for score in scores.values() if isinstance(score, float)),
            "files": dict(sorted(scores.items())),
        }
        for folder, scores in files.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(argv)
    jobs = [{"wav": str(path)} for folder in options.folders for path in recordings(folder)]
    answers = run_judges(jobs, only=[JUDGE], python=judges_python(), workers=options.workers)
    sys.stdout.write(json.dumps(report(options.folders, answers), indent=1) + "\n")


if __name__ == "__main__":
    main()
