"""The replica that a request prefers, without Ray."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from nightingale.ray.affinity import VOICE_KEY, ReplicaLoad, is_speech, rank_replicas, voice_key

SPEECH = "/v1/audio/speech"


def load(name: str, listeners: int = 0, capacity: int = 4) -> ReplicaLoad:
    return ReplicaLoad(id=name, listeners=listeners, capacity=capacity)


FREE = [load(name) for name in "abcdefgh"]


@pytest.mark.parametrize(
    ("path", "body", "voice"),
    [
        (SPEECH, {"input": "Hi.", "voice": "Anna"}, "anna"),
        (SPEECH, {"input": "Hi.", "voice": {"id": " heart(2)+emma "}}, "heart(2)+emma"),
        ("/tts/v1/audio/speech/captions", {"voice": "anna"}, "anna"),
        ("/v1/text-to-speech/Anna%20B/stream", {}, "anna b"),
        ("/v1/text-to-speech/anna/multi-stream-input", {}, "anna"),
        (SPEECH, {"input": "Hi."}, None),
        (SPEECH, {"voice": ""}, None),
        (SPEECH, {"voice": 3}, None),
        (SPEECH, [], None),
        ("/v1/audio/voices", {"voice": "anna"}, None),
    ],
)
def test_the_key_of_a_request_is_its_voice(path: str, body: object, voice: str | None) -> None:
    expected = None if voice is None else VOICE_KEY + voice
    assert voice_key(path, json.dumps(body).encode()) == expected


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_read_has_no_key(body: bytes) -> None:
    assert voice_key(SPEECH, body) is None


def test_only_requests_for_speech_can_be_sent_again() -> None:
    assert is_speech("POST", SPEECH)
    assert is_speech("POST", "/prefix/v1/text-to-speech/anna/stream")
    assert not is_speech("POST", "/v1/audio/voices")
    assert not is_speech("GET", SPEECH)


def test_a_key_always_has_the_same_replica_and_keys_are_spread() -> None:
    homes = {f"s{n}": {rank_replicas(f"s{n}", FREE)[0] for _ in range(5)} for n in range(400)}
    assert all(len(found) == 1 for found in homes.values())
    counts = Counter(found.pop() for found in homes.values())
    assert min(counts.values()) > 25, counts


def test_a_replica_that_is_gone_moves_only_its_own_keys() -> None:
    before = {f"s{n}": rank_replicas(f"s{n}", FREE)[0] for n in range(200)}
    after = {key: rank_replicas(key, FREE[1:])[0] for key in before}
    assert all(after[key] == home for key, home in before.items() if home != "a")


def test_a_session_stays_until_its_replica_is_full_and_a_voice_until_it_is_half_full() -> None:
    for key, leaves_at in (("session", 4), (f"{VOICE_KEY}anna", 2)):
        home = rank_replicas(key, FREE)[0]
        for listeners in range(6):
            replicas = [load(one.id, listeners if one.id == home else 0) for one in FREE]
            assert (rank_replicas(key, replicas)[0] == home) == (listeners < leaves_at)


def test_overflow_goes_to_the_least_loaded_by_the_share_of_its_capacity() -> None:
    replicas = [load("a", 4, 4), load("b", 5, 10), load("c", 3, 4)]
    assert rank_replicas(None, replicas) == ["b", "c", "a"]
    full = [load("a", 9, 4), load("b", 8, 4)]
    assert rank_replicas("session", full) == ["b", "a"], "the client must get its 429 from the least loaded"


def test_equally_loaded_replicas_take_turns() -> None:
    assert len({rank_replicas(None, FREE)[0] for _ in range(200)}) == len(FREE)
    assert rank_replicas("key", []) == []
