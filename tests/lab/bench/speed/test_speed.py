"""Measurements of `nightingale bench`, with targets whose times are known."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nightingale.errors import ConfigError, EngineFault
from nightingale_lab.bench.speed.bench_run import BenchPlan, measure, new_result
from nightingale_lab.bench.speed.floor import Distance, distances, operations, step_bytes
from nightingale_lab.bench.speed.load import Interrupted, growth, percentile, run_load
from nightingale_lab.bench.speed.player import play
from nightingale_lab.bench.speed.request import Chunks, Details, Target, time_request
from nightingale_lab.bench.speed.speed_tables import tables
from nightingale_lab.bench.speed.targets import server_target
from nightingale_lab.bench.store import append, read_lines, signed


def test_chunks_in_time_cause_no_underrun() -> None:
    found = play([0.1, 0.2, 0.9], [0.5, 0.5, 1.0])
    assert (found.underruns, found.stalled_s) == (0, 0.0)
    assert found.least_lead_s == pytest.approx(0.2)  # 1.1 s to the end of the second, the third at 0.9


def test_a_late_chunk_is_an_underrun_as_long_as_it_is_late() -> None:
    found = play([0.1, 1.0, 1.1], [0.5, 0.5, 0.5])
    assert found.underruns == 1
    assert found.stalled_s == pytest.approx(0.4)
    assert found.least_lead_s == pytest.approx(-0.4)


def test_playback_resumes_after_an_underrun() -> None:
    assert play([0.0, 1.0, 1.4], [0.5, 0.5, 0.5]).underruns == 1
    assert play([0.0, 1.0, 1.6], [0.5, 0.5, 0.5]).underruns == 2


def test_one_chunk_has_no_gaps() -> None:
    assert play([0.3], [2.0]).underruns == 0
    assert play([], []).underruns == 0


def target_after(first_s: float, between_s: float = 0.0, chunks: int = 3, seconds: float = 0.5) -> Target:
    def target(text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        def sound() -> Iterator[float]:
            time.sleep(first_s)
            for number in range(chunks):
                if number:
                    time.sleep(between_s)
                yield seconds

        stage_ms = {"text": 1.0, "prefill": 5.0, "t3": 100.0, "flow": 20.0, "vocoder": 40.0}
        return sound(), lambda: Details(tokens=25, stage_ms=stage_ms)

    return target


def test_a_request_is_timed_from_outside() -> None:
    took = time_request(target_after(0.05, 0.02), "hello", 1)
    assert took.ttfa_ms >= 50
    assert took.total_ms - took.ttfa_ms >= 40
    assert took.audio_seconds == 1.5
    assert len(took.gaps_ms) == 2
    assert all(gap >= 20 for gap in took.gaps_ms)
    assert took.rtf == pytest.approx(took.total_ms / 1500)


def test_empty_chunks_are_not_first_audio() -> None:
    def target(text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        def sound() -> Iterator[float]:
            yield 0.0
            time.sleep(0.03)
            yield 1.0

        return sound(), Details

    assert time_request(target, "x", 0).ttfa_ms >= 30


def test_concurrency_is_never_exceeded_and_every_request_is_made() -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def target(text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        def sound() -> Iterator[float]:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            yield 1.0
            with lock:
                inside -= 1

        return sound(), Details

    found = run_load(target, ["a", "b"], concurrency=3, requests=9)
    assert most == 3
    assert len(found.times) == 9
    assert found.row()["audio_seconds"] == 9.0


def test_a_request_that_fails_is_counted_and_the_others_go_on() -> None:
    def target(text: str, seed: int) -> tuple[Chunks, Callable[[], Details]]:
        if seed == 1:
            raise RuntimeError("boom")
        return iter([1.0]), Details

    found = run_load(target, ["a"], concurrency=2, requests=4)
    assert len(found.times) == 3
    assert found.failures == ["RuntimeError: boom"]


def test_stages_are_given_per_token_and_per_second_of_audio() -> None:
    row = run_load(target_after(0.0), ["a"], concurrency=1, requests=2).row()
    assert row["t3_ms_per_step"] == 4.0
    assert row["t3_tokens_per_s"] == 250.0
    assert row["stage_ms_per_audio_s"]["vocoder"] == pytest.approx(40 / 1.5, abs=0.01)


@pytest.mark.parametrize(("part", "value"), [(0.5, 5.0), (0.95, 10.0), (0.9, 9.0), (1.0, 10.0)])
def test_percentiles_are_values_that_were_measured(part: float, value: float) -> None:
    assert percentile([float(n) for n in range(10, 0, -1)], part) == value
    assert percentile([], part) is None


def test_growth_is_the_exponent() -> None:
    assert growth([1, 2, 4], [10, 20, 40]) == 1.0
    assert growth([1, 2, 4], [10, 40, 160]) == 2.0
    assert growth([1, 2, 4], [10, 10, 10]) == 0.0
    assert growth([1], [10]) is None


def test_a_run_has_a_row_for_each_length_and_each_concurrency() -> None:
    result = new_result(model="fake")
    measure(result, target_after(0.0), BenchPlan(lengths=["word", "long"], levels=[1, 2], rounds=2), who="me")
    assert [row["text"] for row in result["lengths"]] == ["word", "long"]
    assert [row["concurrency"] for row in result["concurrency"]] == [1, 2]
    assert result["concurrency"][1]["requests"] == 4
    assert result["growth"][0]["throughput_over_one"]["1"] == 1.0
    assert json.loads(json.dumps(result)) == result
    assert {table.title for table in tables(result)} == {
        "one request at a time",
        "several requests at a time",
    }


def test_ctrl_c_leaves_a_valid_partial_result() -> None:
    result = new_result(model="fake")
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    plan = BenchPlan(lengths=["word", "short", "long"], levels=[1], rounds=2)
    with pytest.raises(Interrupted):
        measure(result, target_after(0.01, 0.05), plan, who="me", on_request=one_more)
    assert [row["text"] for row in result["lengths"]] == ["word", "short"]
    assert result["lengths"][1]["complete"] is False
    assert result["complete"] is False
    assert tables(result)


class Pcm(BaseHTTPRequestHandler):
    """Half a second, a pause, half a second; or a refusal."""

    asked: dict[str, object]
    status = 200

    def do_POST(self) -> None:
        type(self).asked = {
            "path": self.path,
            **json.loads(self.rfile.read(int(self.headers["Content-Length"]))),
        }
        self.send_response(self.status)
        self.end_headers()
        for number in range(2):
            if number:
                time.sleep(0.05)
            self.wfile.write(bytes(24_000))
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Pcm]]]:
    handler = type("Handler", (Pcm,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}", handler
        served.shutdown()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_server_is_measured_by_its_address(server: tuple[str, type[Pcm]], suffix: str) -> None:
    url, handler = server
    took = time_request(server_target(url + suffix, model="m", voice="v"), "Hello.", 7)
    assert took.audio_seconds == 1.0
    assert took.total_ms - took.ttfa_ms >= 45
    assert handler.asked.pop("path") == "/v1/audio/speech"
    wanted = {"model": "m", "voice": "v", "input": "Hello.", "response_format": "pcm", "seed": 7}
    assert handler.asked == wanted


def test_a_server_that_refuses_is_a_typed_error(server: tuple[str, type[Pcm]]) -> None:
    url, handler = server
    handler.status = 503
    with pytest.raises(EngineFault, match="503"):
        time_request(server_target(url), "Hello.", 7)


def test_what_is_no_address_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        server_target("ftp://example")


def test_a_distance_is_time_over_floor() -> None:
    row = Distance(stage="t3 step", took_ms=10.0, floor_ms=2.5, floor_of="bytes").row()
    assert row["over_floor"] == 4.0


def test_every_stage_is_compared_with_its_floor() -> None:
    from nightingale_lab.random_models import random_model

    found = distances(random_model("turbo", tokens=6, tiny=True), "Hello.", "cpu")
    assert [one.stage for one in found] == ["t3 step", "flow", "vocoder"]
    assert all(one.row()["over_floor"] > 0 for one in found)


def test_the_device_auto_is_that_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    from nightingale.backends import BACKENDS
    from nightingale.backends.base import Machine
    from nightingale_lab.random_models import random_model

    gpu = Machine(device="cuda:0", name="a GPU that is not here", instructions="sm_90")
    for backend in BACKENDS:
        monkeypatch.setattr(backend, "probe", lambda device: gpu)
    model = random_model("turbo", tokens=6, tiny=True).with_defaults(auto_devices=frozenset())
    found = distances(model, "Hello.", "auto")
    assert [one.stage for one in found] == ["t3 step", "flow", "vocoder"]


def test_operations_of_a_product_are_counted() -> None:
    import torch

    left, right = torch.ones(8, 16), torch.ones(16, 4)
    assert operations(lambda: left @ right) == 2 * 8 * 16 * 4


def test_tables_of_which_a_step_reads_a_row_are_not_in_its_bytes() -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 4, bias=False))
    assert step_bytes(net) == 4 * 8 * 4


def test_lines_are_signed_appended_and_read_again(tmp_path: Path) -> None:
    line = signed({"kind": "bench", "n": 1})
    assert {"machine", "commit", "versions", "date"} <= line.keys()
    assert line["machine"]["cores"]
    append(line, "bench", tmp_path / "results")
    append({"n": 2}, "bench", tmp_path / "results")
    with (tmp_path / "results" / "bench.jsonl").open("a") as file:
        file.write('{"n": 3')
    assert [found["n"] for found in read_lines(tmp_path / "results", "bench")] == [1, 2]
    assert append(line, "bench", None) is None
