"""Make upstream's environment on first use (2 GB), then run the comparison in it.

    python -m nightingale_lab.parity [--family NAME]… [--keep]        (make parity)
    python -m nightingale_lab.parity record                 writes tests/parity/goldens.safetensors

The environment is `.venv-parity`, or `$VENV_PARITY`. `$PIP_ARGS` adds arguments for pip.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nightingale_lab.environments import Environment, make
from nightingale_lab.upstream.families import PACKAGES, REMOVED, WITHOUT_DEPENDENCIES

SOURCE = Path(__file__).resolve().parents[2]


def main() -> None:
    home = Path(os.environ.get("VENV_PARITY", ".venv-parity")).absolute()
    environment = Environment(packages=PACKAGES, without_dependencies=WITHOUT_DEPENDENCIES, removed=REMOVED)
    python = make(environment, home, say=lambda line: sys.stderr.write(line + "\n"))
    arguments = sys.argv[1:]
    program = "record" if arguments[:1] == ["record"] else "comparison"
    settings = {"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # Threads that wait without spinning: on a busy machine, spinning threads slow down the others.
    settings["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
    command = [str(python), "-W", "ignore", "-m", f"nightingale_lab.parity.{program}"]
    os.execve(python, [*command, *arguments[program == "record" :]], {**os.environ, **settings})


if __name__ == "__main__":
    main()
