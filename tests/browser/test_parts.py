"""Parts of the page that can be asked by themselves, in the browser they run in."""

from __future__ import annotations

import ast
import json
import shlex
import struct
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

NASTY = 'It\'s "quoted", $HOME `ls` \\n\nsecond line — ünïcode 🐦 \u2028 end'


def ask(page: Page, module: str, script: str, argument: Any = None) -> Any:
    """script: the body of a function of `m` (the module) and `x` (the argument)."""
    return page.evaluate(
        f"""async (x) => {{
            const m = await import(new URL("page/js/{module}.js", document.baseURI));
            {script}
        }}""",
        argument,
    )


def test_the_feed_plays_at_once_and_gathers_itself_after_running_dry(page: Page) -> None:
    heard, last = ask(
        page,
        "fifo",
        """
        let last = null;
        const feed = new m.Feed(1000, (report) => (last = report));
        const pull = (count) => { const out = new Float32Array(count); feed.fill(out); return [...out]; };
        const ones = (count) => feed.handle({ type: "push", samples: new Float32Array(count).fill(1) });
        feed.handle({ type: "start", epoch: 3 });
        const heard = [pull(4)];
        ones(6); heard.push(pull(4)); heard.push(pull(4));        // the second runs dry half way
        ones(100); heard.push(pull(4));                          // not enough yet to go on
        ones(300); heard.push(pull(4));                          // now it is
        feed.handle({ type: "end" }); pull(500);
        return [heard, last];
        """,
    )
    assert heard == [[0] * 4, [1] * 4, [1, 1, 0, 0], [0] * 4, [1] * 4]
    assert last == {
        "epoch": 3,
        "playedSamples": 406,
        "bufferedSamples": 0,
        "underruns": 1,
        "waiting": False,
        "done": True,
    }


def test_the_feed_forgets_what_was_left_when_a_new_sound_starts(page: Page) -> None:
    heard = ask(
        page,
        "fifo",
        """
        const feed = new m.Feed(1000, () => {});
        feed.handle({ type: "push", samples: new Float32Array(9).fill(1) });
        feed.handle({ type: "start", epoch: 1 });
        feed.handle({ type: "push", samples: new Float32Array(2).fill(0.5) });
        const out = new Float32Array(3); feed.fill(out); return [...out];
        """,
    )
    assert heard == [0.5, 0.5, 0]


def test_the_feed_reports_only_while_it_has_something_to_play(page: Page) -> None:
    reports = ask(
        page,
        "fifo",
        """
        let count = 0;
        const feed = new m.Feed(1000, () => (count += 1));
        const out = new Float32Array(100);
        const after = (pulls) => { for (let i = 0; i < pulls; i += 1) feed.fill(out); return count; };
        const counts = [after(5)];
        feed.handle({ type: "push", samples: new Float32Array(200) });
        feed.handle({ type: "end" });
        counts.push(after(9));
        feed.handle({ type: "start", epoch: 1 });
        counts.push(after(5));
        return counts;
        """,
    )
    assert reports == [0, 2, 2]


def test_samples_survive_being_cut_anywhere(page: Page) -> None:
    samples = [0, 1, -1, 32767, -32767, 12345, -2]
    raw = list(struct.pack("<7h", *samples))
    for cut in range(len(raw) + 1):
        got = ask(
            page,
            "pcm",
            "const r = new m.PcmReader(); return x.flatMap((part) => [...r.floats(new Uint8Array(part))]);",
            [raw[:cut], raw[cut:]],
        )
        assert [round(value * 32767) for value in got] == samples


def test_a_wav_file_is_one(page: Page) -> None:
    raw = bytes(
        ask(
            page,
            "pcm",
            "const b = m.wavFromFloats(Float32Array.of(0, 0.5, -1, 2), 24000);"
            "return [...new Uint8Array(await b.arrayBuffer())];",
        )
    )
    assert raw[:4] + raw[8:16] == b"RIFFWAVEfmt "
    assert struct.unpack("<IHHIIHH", raw[16:36]) == (16, 1, 1, 24000, 48000, 2, 16)
    assert struct.unpack("<I", raw[4:8])[0] == len(raw) - 8
    assert struct.unpack("<4h", raw[44:]) == (0, 16384, -32767, 32767)


@pytest.mark.parametrize("locked", [False, True])
def test_the_curl_line_says_what_the_page_would(page: Page, locked: bool) -> None:
    request = {"model": "wren", "voice": "anna", "input": NASTY, "temperature": 0.7}
    address = "http://127.0.0.1:8880/v1/audio/speech"
    line = ask(page, "snippets", "return m.asCurl(...x);", [request, address, locked])
    words = shlex.split(line.replace("\\\n", ""))
    assert words[:2] == ["curl", address]
    assert json.loads(words[words.index("-d") + 1]) == {**request, "response_format": "wav"}
    assert ("Authorization: Bearer $NIGHTINGALE_API_KEY" in words) == locked


@pytest.mark.parametrize("locked", [False, True])
def test_the_python_lines_say_what_the_page_would(page: Page, locked: bool) -> None:
    request = {"model": "wren", "voice": "anna", "input": NASTY, "speed": 1.2, "seed": 7}
    address = "http://127.0.0.1:8880/v1/audio/speech"
    tree = ast.parse(ask(page, "snippets", "return m.asPython(...x);", [request, address, locked]))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    create = next(call for call in calls if ast.unparse(call.func).endswith(".create"))
    said = {word.arg: ast.literal_eval(word.value) for word in create.keywords}
    extra = said.pop("extra_body")
    assert {**said, **extra} == {**request, "response_format": "wav"}
    client = next(call for call in calls if ast.unparse(call.func) == "OpenAI")
    assert ast.unparse(client.keywords[0].value) == "'http://127.0.0.1:8880/v1'"
    assert ("os.environ" in ast.unparse(client)) == locked


def test_the_outline_of_a_sound_follows_it(page: Page) -> None:
    bars = ask(
        page,
        "peaks",
        """
        const peaks = new m.Peaks(1000);                          // ten samples to a hundredth of a second
        for (const loud of [0.5, 0]) peaks.add(new Float32Array(505).fill(loud));
        return [peaks.seconds, peaks.bars(4, 2)];
        """,
    )
    assert bars[0] == pytest.approx(1.01)
    assert bars[1][:2] == [pytest.approx(0.5), pytest.approx(0.01, abs=0.02)]
    assert bars[1][3] is None, "nothing is drawn past the end"
