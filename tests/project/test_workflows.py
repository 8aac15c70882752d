"""The workflows of GitHub call verbs that exist, with few rights and pinned actions; templates and forms are valid."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from project.source_tree import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
JOB_KEYS = {"name", "needs", "runs-on", "strategy", "timeout-minutes", "defaults", "env", "steps"}
STEP_KEYS = {"name", "uses", "with", "run", "env"}
EXPRESSION = re.compile(r"\$\{\{\s*matrix\.([\w-]+)\s*\}\}")


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return {
        "on" if key is True else key: value for key, value in loaded.items()
    }  # YAML 1.1 reads `on` as True


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{path.name}:{name}", job) for path in WORKFLOWS for name, job in load(path)["jobs"].items()]


def matrix_values(job: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the values that each key of a job's matrix takes."""
    found: dict[str, list[Any]] = {}
    for key, values in job.get("strategy", {}).get("matrix", {}).items():
        for entry in values if key == "include" else ({key: value} for value in values):
            for name, value in entry.items():
                found.setdefault(name, []).append(value)
    return found


def commands(job: dict[str, Any]) -> list[str]:
    """Return the commands of a job, one for each value of the matrix that they use."""
    found = []
    for run in (step["run"] for step in job["steps"] if "run" in step):
        used = EXPRESSION.search(run)
        values = matrix_values(job)[used[1]] if used else [""]
        found += [EXPRESSION.sub(str(value), run) for value in values]
    return found


def verbs() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))


JOBS = pytest.mark.parametrize("job", [pytest.param(job, id=name) for name, job in jobs()])


def test_there_are_workflows_for_pull_requests_and_for_every_night() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml"]
    assert "pull_request" in load(WORKFLOWS[0])["on"]
    assert "schedule" in load(WORKFLOWS[1])["on"]


@JOBS
def test_every_verb_that_a_job_calls_is_in_the_makefile(job: dict[str, Any]) -> None:
    called = [command.split()[1] for command in commands(job) if command.startswith("make ")]
    assert called, "a job calls a verb of the Makefile"
    assert not set(called) - verbs(), f"not in the Makefile: {sorted(set(called) - verbs())}"


def test_ci_checks_tests_builds_and_documents() -> None:
    called = {command.split()[1] for _, job in jobs() for command in commands(job) if "make " in command}
    wanted = {"check", "test", "smoke", "site", "release-check", "fuzz", "soak", "nightly", "walk"}
    assert wanted <= called


@JOBS
def test_a_job_has_known_keys_a_time_limit_and_jobs_before_it_that_exist(job: dict[str, Any]) -> None:
    assert not job.keys() - JOB_KEYS
    assert job.keys() >= {"runs-on", "steps", "timeout-minutes"}
    assert set(job.get("needs", [])) <= {name.partition(":")[2] for name, _ in jobs()}
    for step in job["steps"]:
        assert not step.keys() - STEP_KEYS
        assert ("uses" in step) != ("run" in step)


@JOBS
def test_a_job_uses_every_key_of_its_matrix_and_no_other(job: dict[str, Any]) -> None:
    used = set(EXPRESSION.findall(yaml.safe_dump(job, width=1000)))
    assert used == matrix_values(job).keys()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_pins_its_actions(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"].startswith("${{ github.workflow }}")
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used), used
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_actionlint_has_no_complaint() -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed; the lint job of ci.yml installs it")
    done = subprocess.run([program, *WORKFLOWS], capture_output=True, encoding="utf-8", check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_requires(path: Path) -> None:
    form = load(path)
    assert form.keys() >= {"name", "description", "body"}
    for field in form["body"]:
        assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert (
            "value" in field["attributes"] if field["type"] == "markdown" else "label" in field["attributes"]
        )
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(set(ids)) == len(ids)


def test_reports_of_bugs_and_of_quality_ask_for_the_output_of_doctor() -> None:
    asked = {path.name for path in FORMS if "nightingale doctor" in path.read_text(encoding="utf-8")}
    assert asked == {"bug.yml", "quality.yml"}
