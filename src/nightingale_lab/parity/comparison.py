"""Compare Nightingale with upstream Chatterbox, stage by stage, at full size, with shared random weights.

Runs in upstream's environment (`python -m nightingale_lab.parity` makes it). For each family: upstream's
networks get seeded random weights and are saved under their official names; ours load those files with the
product's loader; then every stage runs on both sides. The table shows the differences. Exit status 1 if a
tolerance is missed. The last line is JSON.
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

from nightingale.models.chatterbox.build import load_encoders, load_s3gen, load_t3
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.presets import PRESETS
from nightingale_lab.parity.stages import (
    cloning_stage,
    conversion_stage,
    encoders_stage,
    flow_stage,
    sampling_stage,
    t3_stage,
    vocoder_stage,
)
from nightingale_lab.parity.table import ParityRow, Rows, render
from nightingale_lab.parity.upstream_weights import build
from nightingale_lab.random_models import Networks
from nightingale_lab.upstream.families import FAMILIES, Family
from nightingale_lab.upstream.networks import apply_head_changes, save_networks

FOLDER = Path(".parity")
NOTES = """\
rel. error: ‖ours - theirs‖ / ‖theirs‖; for ids, the share that differs. Weights are random, so this proves
the arithmetic, not the sound. The reference is upstream HEAD: the wheel's multilingual alignment analyzer is
off, as it is gone at HEAD, and Nano, unknown to the wheel, is built by its classes with HEAD's sizes."""


def compare_family(family: Family, folder: Path) -> list[ParityRow]:
    progress(f"{family.name}: building upstream, saving it under official names")
    theirs = build(family)
    roles = {"t3": theirs.t3, "s3gen": theirs.s3gen, "voice_encoder": theirs.voice_encoder}
    files = save_networks(family, roles, folder)
    preset = PRESETS[family.name]
    progress(f"{family.name}: loading ours from {folder}")
    flow, vocoder = load_s3gen(preset, files["s3gen"])
    assert isinstance(vocoder, Hift)
    ours = Networks(t3=load_t3(preset.t3, files["t3"]), flow=flow, vocoder=vocoder)
    our_encoders = load_encoders(preset, files)
    rows = Rows(family.name)
    progress(f"{family.name}: encoders")
    encoders_stage.compare(rows, theirs, our_encoders)
    clip = cloning_stage.write_clip(folder)
    conds = cloning_stage.run_theirs(family, theirs, clip)
    voice = cloning_stage.run_ours(family, our_encoders, clip)
    cloning_stage.compare(rows, voice, conds)
    progress(f"{family.name}: T3")
    with threads(1):
        run = t3_stage.compare_networks(rows, family, theirs.t3, ours.t3)
    sampling_stage.compare(rows, family.name, run.logits, run.ids)
    progress(f"{family.name}: flow")
    mel = flow_stage.compare_networks(rows, theirs.s3gen, ours.flow)
    progress(f"{family.name}: vocoder")
    vocoder_stage.compare(rows, theirs.s3gen, vocoder, mel)
    progress(f"{family.name}: conversion")
    recording = conversion_stage.write_recording(folder)
    converted = conversion_stage.run_theirs(theirs, conds.gen, recording)
    conversion_stage.compare(rows, conversion_stage.run_ours(ours, our_encoders, voice, recording), converted)
    return rows.rows


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's threads. A decode step multiplies two rows, for which one thread is faster than two."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def progress(line: str) -> None:
    sys.stderr.write(f"{time.process_time():6.0f} s of CPU  {line}\n")
    sys.stderr.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one; may be repeated")
    parser.add_argument("--keep", action="store_true", help=f"leave the weight files in {FOLDER}")
    options = parser.parse_args()
    began = time.monotonic()
    apply_head_changes()
    rows: list[ParityRow] = []
    for name in options.family or FAMILIES:
        try:
            rows += compare_family(FAMILIES[name], FOLDER / name)
        finally:
            gc.collect()
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
    verdict = "every stage is inside its tolerance" if not missed else f"{len(missed)} stages missed"
    summary = f"{len(rows)} stages, {verdict}; {result['seconds']} s, peak memory {result['peak_gb']} GB"
    line = json.dumps(result, separators=(",", ":"))
    sys.stdout.write("\n".join([render(rows), NOTES, summary, line]) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
