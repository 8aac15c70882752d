"""`verify --profile default --against exact` with tiny models of the official families."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightingale_lab.bench.verify.judged import JUDGES
from nightingale_lab.bench.verify.subject import EngineSubject
from nightingale_lab.bench.verify.verification import Panel, verify
from nightingale_lab.random_models import seeded_model

TEXTS = ["A first sentence of some words.", "And here is another one, a little longer than that."]


@pytest.mark.parametrize("family", ["turbo", "english"])
def test_the_default_profile_of_a_family_is_compared_with_exact(family: str, tmp_path: Path) -> None:
    """Random weights make noise, which fails the checks of speech; those of the comparison pass."""
    model = seeded_model(family, tokens=30)
    subject = EngineSubject(model, "default", device="cpu")
    other = EngineSubject(model, "exact", device="cpu")
    try:
        panel = Panel(absent=dict.fromkeys(JUDGES, "make judges"))
        report = verify(subject, TEXTS, tmp_path, panel=panel, other=other)
    finally:
        subject.close()
        other.close()
    assert (report.profile, report.against) == ("balanced", "exact")
    checks = {check.name: check for check in report.checks}
    compared = {check.name: check.verdict for check in report.checks if check.group == "against"}
    for name in ("tokens, mean difference", "spectrum, mean difference", "duration, mean ratio"):
        assert compared[name] == "pass"
    for name in ("word error rate, tiny: rise", "DNSMOS overall: fall", "speaker cosine to the same clip"):
        assert compared[name] == "missing"
    assert checks["tokens, mean difference"].value == 0, "both compute T3 in float32 here"
    assert checks["samples off 960 × tokens"].verdict == "pass"
