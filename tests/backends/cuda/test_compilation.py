"""Every Triton kernel compiles for a Hopper GPU, which the interpreter does not show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
KERNELS = {
    "_normal_kernel": 2,
    "_process_kernel": 4,
    "_draw_kernel": 4,
    "_append_kernel": 4,
    "_linear_kernel": 6 + 2 * 16,
    "_attend_kernel": 4 + 2 * 3,
    "_rms_norm_kernel": 1,
    "_swiglu_kernel": 1,
    "_conv_kernel": 2 * 9,
    "_euler_kernel": 2,
    "_hift_conv_kernel": 2 * (1 + 14 + 1),
}
"""Launches of each kernel, in T3, the sampler and one step of a small guided flow with
few and with many rows, and one stage of HiFT in float16 and in float32."""


def test_every_kernel_compiles_for_a_hopper_gpu() -> None:
    path = os.pathsep.join([*sys.path, str(HERE.parents[1])])
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = str(HERE / "compiled_for_hopper.py")
    done = subprocess.run(
        [sys.executable, script],
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split()
    assert Counter(name for name in printed if not name.startswith("launcher:")) == KERNELS
    ahead = {name.removeprefix("launcher:") for name in printed if name.startswith("launcher:")}
    assert ahead == {"_conv_kernel", "_linear_kernel", "_attend_kernel", "_euler_kernel", "_hift_conv_kernel"}
