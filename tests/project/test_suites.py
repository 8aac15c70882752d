"""`make check`, `make test` and `make test-rest`, which `.ci/run` calls, run every test once."""

from __future__ import annotations

import re
import subprocess
import sys

from project.source_tree import ROOT

SOME = ("tests/decoding/test_philox.py", "tests/lab/bench/test_fleet.py", "tests/project/test_release.py")
"""Files with a thorough test, with tests of the lab, and with a rule of the repository."""


def collected(suite: str) -> set[str]:
    """Return the tests of `SOME` that a suite runs."""
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--suite={suite}"]
    command = [sys.executable, "-m", "pytest", *options, *SOME]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_every_test_is_in_one_suite_or_a_rule() -> None:
    product, rest, every = (collected(suite) for suite in ("product", "rest", "all"))
    rules = {name for name in every if name.startswith("tests/project/")}
    assert "tests/decoding/test_philox.py::test_samples_follow_the_probabilities" in rest
    assert {name for name in every if name.startswith("tests/lab/")} < rest
    assert product
    assert rules
    assert not product & rest
    assert product | rest | rules == every


def test_ci_runs_the_rules_and_both_suites() -> None:
    verbs = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert verbs == ["check", "test", "test-rest"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    assert "tests/project" in recipes["check"]
    assert "--suite=product" in recipes["test"]
    assert "--suite=rest" in recipes["test-rest"]
