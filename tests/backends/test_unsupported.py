"""Cases of the conformance suite that this machine cannot run, skipped with the backend's own reason."""

from __future__ import annotations

import pytest
from backends.conformance import UNSUPPORTED, Case, runs_here

from nightingale.backends.base import Role

if not UNSUPPORTED:
    pytest.skip("this machine runs every case", allow_module_level=True)


@pytest.mark.parametrize(("role", "case"), UNSUPPORTED, ids=str)
def test_conformance_of_a_case_that_cannot_run_here(role: Role, case: Case) -> None:
    pytest.skip(f"{case} {role}: {runs_here(role, case)}")
