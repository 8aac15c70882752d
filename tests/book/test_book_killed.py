"""A book that is killed again and again ends as one that was not, and its memory does not grow with it."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sample_books import long_text, write_epub

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def start(book: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nightingale", "book", str(book), "-o", str(out), "-m", "noise", "-q"]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def count_spoken(out: Path) -> int:
    folder = out.with_name(f"{out.name}.sentences")
    return len(list(folder.glob("*.flac"))) if folder.exists() else 0


def run_killed(book: Path, out: Path, places: list[int]) -> list[int]:
    """Kill the command when so many sentences are there; return how many each start found."""
    found = []
    for place in places:
        found.append(count_spoken(out))
        with start(book, out) as process:
            deadline = time.monotonic() + 120
            while count_spoken(out) < place:
                assert process.poll() is None, process.stderr and process.stderr.read().decode()
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            assert process.wait(30) == -signal.SIGKILL
        assert not out.exists()
    return found


def run_whole(book: Path, out: Path) -> int:
    """Make the book and return its peak memory in bytes."""
    peak = 0
    with start(book, out) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            peak = max([peak, *(1024 * int(kb) for kb in re.findall(r"VmHWM:\s+(\d+)", status))])
            time.sleep(0.01)
        assert process.wait(600) == 0, process.stderr and process.stderr.read().decode()
    return peak


def make_book(path: Path, chars: int, chapters: int) -> Path:
    text = long_text(chars).split("\n")
    size = -(-len(text) // chapters)
    parts = {
        f"c{at}": f"<h1>Part {at}</h1>" + "".join(text[at * size : (at + 1) * size]) for at in range(chapters)
    }
    return write_epub(path, parts)


def check_killed(tmp_path: Path, chars: int, kills: int) -> list[int]:
    """Compare a book that was killed at random places with one that was not; return their peak memory."""
    book = make_book(tmp_path / "book.epub", chars, 5)
    peak = run_whole(book, tmp_path / "whole.m4b")
    count = count_spoken(tmp_path / "whole.m4b")
    places = sorted(random.Random(os.getpid()).sample(range(1, count), kills))
    print(f"{chars} characters, {count} sentences; killed after {places}; peak {peak >> 20} MiB")
    found = run_killed(book, tmp_path / "killed.m4b", places)
    with start(book, tmp_path / "killed.m4b") as process:  # and once while the file is written
        while not list(tmp_path.glob(".killed.m4b.*.part")):
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
    assert not (tmp_path / "killed.m4b").exists()
    for place, kept in zip(places, found[1:], strict=False):
        assert kept >= place, "more than one sentence was lost"
    resumed = run_whole(book, tmp_path / "killed.m4b")
    assert (tmp_path / "killed.m4b").read_bytes() == (tmp_path / "whole.m4b").read_bytes()
    reports = [
        (tmp_path / f"{name}.m4b.sentences" / "report.jsonl").read_bytes() for name in ("whole", "killed")
    ]
    assert reports[0] == reports[1]
    assert not list(tmp_path.rglob(".*.part"))
    return [peak, resumed]


def test_a_killed_book_ends_with_the_same_bytes(tmp_path: Path) -> None:
    check_killed(tmp_path, 2_000, 1)


@pytest.mark.slow
def test_a_book_may_be_longer_than_a_day(tmp_path: Path) -> None:
    import av

    book = tmp_path / "long.txt"
    book.write_text(
        "Chapter 1\n\nThe lamp was lit." + "[pause:10s]" * 9000 + "\n\nChapter 2\n\nThe lamp went out."
    )
    peak = run_whole(book, tmp_path / "long.m4b")
    with av.open(tmp_path / "long.m4b") as container:
        seconds = float(container.duration / av.time_base)
        second = container.chapters()[1]
        start_s = float(second["start"] * second["time_base"])
    print(
        f"{seconds / 3600:.2f} h of audio, {(tmp_path / 'long.m4b').stat().st_size >> 20} MiB, peak {peak >> 20} MiB"
    )
    assert 90_000 < start_s < seconds


@pytest.mark.slow
def test_a_book_of_100_000_characters_survives_ten_kills_with_flat_memory(tmp_path: Path) -> None:
    peaks = check_killed(tmp_path, 100_000, 10)
    small = run_whole(make_book(tmp_path / "small.epub", 10_000, 5), tmp_path / "small.m4b")
    print(
        f"peak memory: {small >> 20} MiB for 10,000 characters, {[peak >> 20 for peak in peaks]} for 100,000"
    )
    assert max(peaks) < small + 32 * 2**20
