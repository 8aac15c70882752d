"""The page of `nightingale report` is complete and self-contained, and escapes what lines hold."""

from __future__ import annotations

import io
import re
import struct
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from planted import RATE_HZ, sound
from typer.testing import CliRunner

from nightingale.audio.loudness import integrated_loudness
from nightingale.audio.samples import wav_bytes
from nightingale.cli.commands import app
from nightingale_lab.bench.report import rows, svg
from nightingale_lab.bench.report.blind import blind_page, equally_loud
from nightingale_lab.bench.report.page import page
from nightingale_lab.bench.report.pictures import outline_svg, spectrogram_png
from nightingale_lab.bench.store import append


def bench_line(commit: str = "abc", rtf: float = 0.5) -> dict[str, Any]:
    def row(who: str, **more: Any) -> dict[str, Any]:
        stages = {"text": 1.0, "t3": 200.0, "vocoder": 100.0}
        return {
            "who": who, "requests": 2, "audio_seconds": 6.0, "ttfa_ms_p50": 120.0, "ttfa_ms_p95": 150.0,
            "rtf_p50": rtf, "underruns": 0, "t3_ms_per_step": 8.0, "stage_ms_per_audio_s": stages, **more,
        }  # fmt: skip

    return {
        "kind": "bench",
        "model": "wren",
        "commit": commit,
        "date": "2026-01-01",
        "machine": {"cpu": "abacus", "cores": 2},
        "lengths": [row("balanced", text="short"), row("exact", text="short")],
        "concurrency": [row("balanced", concurrency=1), row("balanced", concurrency=4)],
        "cold": [{"who": "balanced", "peak_memory_mb": 640.0}],
        "distance": [{"stage": "t3 step", "over_floor": 5.1, "floor_of": "53 MB"}],
    }


def verify_line(folder: Path, *, ok: bool = False) -> dict[str, Any]:
    wavs = []
    for profile in ("balanced", "exact"):
        path = folder / profile / "000.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav_bytes(sound(), RATE_HZ))
        wavs.append(str(path))
    check = {"group": "streaming", "name": "clicks <3", "value": 2.0, "unit": "", "detail": "a & b"}
    facts = {
        "wer": {"tiny": 0.031},
        "dnsmos": {"ovrl": 3.2},
        "cosine": 0.9,
        "wavs": wavs[:1],
        "texts": ["Say <b>it</b>."],
    }
    return {
        "kind": "verify",
        "model": "wren",
        "profile": "balanced",
        "against": "exact",
        "ok": ok,
        "checks": [{**check, "verdict": "pass" if ok else "fail"}],
        "facts": {**facts, "against": {"wer": {"tiny": 0.017}}},
    }


class Links(HTMLParser):
    """Everything the page would fetch, and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    html = page([bench_line(), bench_line("def", 0.4)], [verify_line(tmp_path)])
    links = Links()
    links.feed(html)
    assert links.open == []
    assert len(links.fetched) == 4  # a player and a picture for each of two profiles
    assert all(link.startswith("data:") for link in links.fetched)
    assert not re.search(r"https?://|@import|url\(|<script", html)


def test_speed_and_quality_stand_on_the_same_row(tmp_path: Path) -> None:
    html = page([bench_line()], [verify_line(tmp_path)])
    balanced, exact = (
        re.search(rf"<tr><th>wren</th><th>{who}</th>(.*?)</tr>", html)[1]  # type: ignore[index]
        for who in ("balanced", "exact")
    )
    assert "<td>120</td>" in balanced
    assert "3.1 %" in balanced
    assert "1 failed" in balanced
    assert "1.7 %" in exact


def test_words_from_a_result_never_become_markup(tmp_path: Path) -> None:
    html = page([bench_line("<script>")], [verify_line(tmp_path)])
    assert "<script>" not in html
    assert "Say &lt;b&gt;it" in html
    assert "clicks &lt;3" in html


def test_each_plot_of_the_issue_is_there_and_fits_a_phone(tmp_path: Path) -> None:
    html = page([bench_line(), bench_line("def")], [verify_line(tmp_path)])
    for title in ("First audio over concurrency", "Real-time factor over length", "One request, by stage",
                  "Cost over floor", "Listen", "Checks", "Trend over commits"):  # fmt: skip
        assert f"<h2>{title}</h2>" in html
    assert 'name="viewport"' in html
    assert not re.search(r"<svg[^>]* width=", html)


def test_nothing_measured_yet_is_said_and_not_a_fault() -> None:
    assert "No results yet" in page([], [])


def test_recordings_that_are_gone_are_left_out(tmp_path: Path) -> None:
    line = verify_line(tmp_path)
    Path(line["facts"]["wavs"][0]).unlink()
    assert page([], [line]).count("<audio") == 1


def test_a_failing_verify_is_open_and_a_passing_one_folded(tmp_path: Path) -> None:
    assert "<details open>" in page([], [verify_line(tmp_path)])
    assert "<details>" in page([], [verify_line(tmp_path, ok=True)])


def test_a_peer_is_a_model_of_its_own_and_no_profile_of_ours() -> None:
    line = bench_line()
    line["lengths"].append({**line["lengths"][0], "who": "hibari", "rtf_p50": 0.02})
    line["peers"] = [{"who": "hibari", "what": "small"}]
    named = [(row.model, row.profile) for row in rows.table_rows(rows.peers_apart([line]), [])]
    assert named == [("wren", "balanced"), ("wren", "exact"), ("hibari", "peer")]


def test_the_newest_line_is_shown_and_the_trend_has_them_all() -> None:
    lines = [bench_line("one", 0.9), bench_line("two", 0.3)]
    assert rows.table_rows(lines, [])[0].speed["rtf_p50"] == 0.3
    series, commits = rows.trend(lines, "rtf_p50")
    assert series["wren, balanced on 2 × abacus"] == [(1, 0.9), (2, 0.3)]
    assert commits == ["one", "two"]


@pytest.mark.parametrize(
    ("top", "last", "step"), [(1.0, 1.0, 0.2), (7, 8, 2), (103, 150, 50), (0.031, 0.04, 0.01)]
)
def test_ticks_are_round_and_reach_the_top(top: float, last: float, step: float) -> None:
    found = svg.ticks(top)
    assert found[0] == 0
    assert found[-1] == pytest.approx(last)
    assert found[1] == pytest.approx(step)


def test_a_point_lies_where_its_value_says() -> None:
    drawn = svg.lines("t", {"a": [(0.0, 0.0), (10.0, 5.0)]}, x_label="x", y_label="y")
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    assert places == [(svg.LEFT, svg.HEIGHT - svg.BOTTOM), (svg.WIDTH - svg.RIGHT, svg.TOP)]


def test_values_of_many_sizes_are_drawn_by_their_powers_of_ten() -> None:
    drawn = svg.lines("t", {"a": [(0.0, 10.0), (10.0, 1000.0)]}, x_label="x", y_label="y")
    places = [float(y) for y in re.findall(r'cy="([\d.]+)"', drawn)]
    assert places == [svg.HEIGHT - svg.BOTTOM, svg.TOP]
    middle = svg.lines("t", {"a": [(0.0, 10.0), (5.0, 100.0), (10.0, 1000.0)]}, x_label="x", y_label="y")
    assert float(re.findall(r'cy="([\d.]+)"', middle)[1]) == pytest.approx(sum(places) / 2, abs=0.1)
    assert svg.powers(6.0, 112_000.0) == [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]
    assert svg.powers(10.0, 10.0) == [10.0, 100.0]


def test_a_check_stands_beside_its_bound(tmp_path: Path) -> None:
    line = verify_line(tmp_path)
    line["checks"][0].update(low=None, high=1.5)
    assert "<td>≤ 1.5</td>" in page([], [line])


def test_a_waterfall_step_begins_where_the_one_before_ended() -> None:
    drawn = svg.waterfall("t", [("a", 0.0, 30.0), ("b", 30.0, 70.0)], unit="ms", mark=("here", 50.0))
    boxes = [
        (float(x), float(w)) for x, w in re.findall(r'<rect[^>]* x="([\d.]+)"[^>]* width="([\d.]+)"', drawn)
    ]
    assert boxes[0][0] + boxes[0][1] == pytest.approx(boxes[1][0], abs=0.1)
    assert "here 50 ms" in drawn


def test_the_spectrogram_is_a_png_with_the_voice_at_the_bottom() -> None:
    t = np.arange(RATE_HZ) / RATE_HZ
    data = spectrogram_png(np.sin(2 * np.pi * 500 * t).astype(np.float32))
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    pixels = np.frombuffer(zlib.decompress(data[start:]), np.uint8).reshape(height, 1 + 3 * width)
    brightness = pixels[:, 1:].astype(int).sum(axis=1)
    # 500 Hz of 12 kHz, 128 rows from the top: four and a third rows from the bottom
    assert abs(int(brightness.argmax()) - (height - 6)) <= 1


def test_the_outline_is_as_tall_as_the_loudest_moment() -> None:
    assert ",1.0 " in outline_svg(sound())
    assert "polygon" in outline_svg(np.zeros(0, np.float32))


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    append(bench_line(), "bench", tmp_path / "results")
    append(verify_line(tmp_path), "verify", tmp_path / "results")
    done = CliRunner().invoke(
        app, ["report", "--results", str(tmp_path / "results"), "-o", str(tmp_path / "r.html")]
    )
    assert done.exit_code == 0, done.output
    assert "1 runs of bench, 1 of verify" in done.output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_no_results_folder_is_a_typed_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["report", "--results", str(tmp_path / "nowhere"), "-o", str(tmp_path / "r.html")]
    )
    assert done.exit_code == 2
    assert not (tmp_path / "r.html").exists()


def test_the_blind_page_holds_everything_and_shows_no_label(tmp_path: Path) -> None:
    verify_line(tmp_path)
    html = blind_page(tmp_path / "balanced", tmp_path / "exact", ["</script><b>"])
    assert not re.search(r"https?://|@import|url\(|src=", html)
    visible = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    assert "balanced" not in visible
    assert html.count("</script>") == 2, "a text cannot end the data"
    assert html.count("data:audio/mpeg;base64,") == 2


def test_the_louder_clip_of_a_pair_is_made_as_loud_as_the_other(tmp_path: Path) -> None:
    for name, gain in (("one", 1.0), ("two", 0.25)):
        (tmp_path / f"{name}.wav").write_bytes(wav_bytes(gain * sound(), RATE_HZ))
    levels = []
    for uri in equally_loud(tmp_path / "one.wav", tmp_path / "two.wav"):
        samples, rate_hz = soundfile.read(io.BytesIO(b64decode(uri.partition(",")[2])), dtype="float32")
        levels.append(integrated_loudness(samples, rate_hz))
    assert levels[0] == pytest.approx(levels[1], abs=0.3)


def test_report_writes_a_blind_page_of_the_newest_comparison(tmp_path: Path) -> None:
    append(verify_line(tmp_path), "verify", tmp_path / "results")
    out = tmp_path / "blind.html"
    words = ["report", "--blind", "-o", str(out)]
    done = CliRunner().invoke(app, [*words, "--results", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    assert "Say <b>it" in out.read_text()
    folders = [word for name in ("exact", "balanced") for word in ("--folder", str(tmp_path / name))]
    assert CliRunner().invoke(app, [*words, *folders]).exit_code == 0
    assert '"labels": ["exact", "balanced"]' in out.read_text()
    assert CliRunner().invoke(app, [*words, *folders[:2]]).exit_code == 2
    (tmp_path / "nothing").mkdir()
    assert CliRunner().invoke(app, [*words, "--results", str(tmp_path / "nothing")]).exit_code == 2
