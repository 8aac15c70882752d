"""Print the exact versions of the packages in this environment, as a constraints file for pip.

`make contract-lock` writes them to tests/contract/*.lock. Local labels, such as those of PyTorch's builds
without CUDA, are left out: pip accepts any build of the version.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions

OWN = ("nightingale-tts", "nightingale-lab", "pip", "setuptools", "wheel")


def locked(versions: dict[str, str]) -> list[str]:
    """Return one line per package, in order of their names."""
    lines = [f"{name}=={version.partition('+')[0]}" for name, version in versions.items() if name not in OWN]
    return sorted(lines)


def main() -> None:
    """Print the packages of this environment."""
    names = {re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(): each.version for each in distributions()}
    python = ".".join(map(str, sys.version_info[:2]))
    print(
        f"# Written by `make contract-lock` with Python {python}. Renew it on purpose, and run `make contract` then."
    )
    print("\n".join(locked(names)))


if __name__ == "__main__":
    main()
