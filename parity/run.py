"""Compare Nightingale with upstream Chatterbox, stage by stage, at full size, with shared random weights.

    parity/run.sh [--family NAME]… [--keep]

For each family: upstream's networks get seeded random weights and are saved under their official names; ours
load those files through the loader everybody uses; then every stage is run on both sides. The table says how
far apart they are. Exit status 1 if a tolerance is missed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
import upstream
from families import FAMILIES, Family
from stages import acoustics, enrolment, listening, sampling, speaking_lm, vocoder
from table import Row, Rows, render

from nightingale.models.chatterbox.build import load_encoders, load_networks
from nightingale.models.chatterbox.presets import PRESETS

FOLDER = Path(".parity")
NOTES = """\
rel. error: ‖ours - theirs‖ / ‖theirs‖; for ids, the share that differs. Weights are random, so this proves
the arithmetic, not the sound. The reference is upstream HEAD: the wheel's multilingual alignment analyzer is
off, as it is gone at HEAD, and Nano, unknown to the wheel, is built by its classes with HEAD's sizes."""


def compare_family(family: Family, folder: Path) -> list[Row]:
    say(f"{family.name}: building upstream, saving it under official names")
    theirs = upstream.build(family)
    files = upstream.save(family, theirs, folder)
    preset = PRESETS[family.name]
    say(f"{family.name}: loading ours from {folder}")
    speakers, listeners = load_networks(preset, files), load_encoders(preset, files)
    rows = Rows(family.name, [])
    say(f"{family.name}: listening")
    listening.compare(rows, theirs, listeners)
    enrolment.compare(rows, family, theirs, listeners, folder)
    say(f"{family.name}: T3")
    with threads(1):
        run = speaking_lm.compare(rows, family, theirs.t3, speakers.t3)
    sampling.compare(rows, family, run.scores, run.ids)
    say(f"{family.name}: flow")
    mel = acoustics.compare(rows, theirs.s3gen, speakers.flow)
    say(f"{family.name}: vocoder")
    vocoder.compare(rows, theirs.s3gen, speakers.hift, mel)
    return rows.rows


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A decode step multiplies two rows, which OpenBLAS does slower with two threads than with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def say(what: str) -> None:
    print(f"{time.process_time():6.0f} s of CPU  {what}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [family.name for family in FAMILIES]
    parser.add_argument("--family", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument("--keep", action="store_true", help=f"leave the weight files in {FOLDER}")
    options = parser.parse_args()
    began = time.monotonic()
    upstream.become_head()
    rows: list[Row] = []
    for family in FAMILIES:
        if options.family and family.name not in options.family:
            continue
        folder = FOLDER / family.name
        try:
            rows += compare_family(family, folder)
        finally:
            gc.collect()
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
    if not options.keep:
        shutil.rmtree(FOLDER, ignore_errors=True)
    missed = [row for row in rows if not row.passed]
    result = {
        "passed": not missed,
        "stages": len(rows),
        "missed": [f"{row.family}: {row.stage}" for row in missed],
        "seconds": round(time.monotonic() - began, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "threads": torch.get_num_threads(),
        "rows": [asdict(row) for row in rows],
    }
    print(render(rows))
    print(NOTES)
    verdict = "every stage is inside its tolerance" if not missed else f"{len(missed)} stages missed"
    print(f"{len(rows)} stages, {verdict}; {result['seconds']} s, peak memory {result['peak_gb']} GB")
    print(json.dumps(result, separators=(",", ":")))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
