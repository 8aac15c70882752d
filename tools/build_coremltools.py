"""Build the native libraries with which coremltools writes packages, and add them to this environment.

    python tools/build_coremltools.py CHECKOUT

There is no wheel of coremltools for ARM Linux, and what pip installs from the source distribution has the Python
files only. CHECKOUT is a copy of github.com/apple/coremltools at the tag of the installed version. Needs g++,
Python's headers and libuuid's (Debian: g++, python3-dev, uuid-dev); takes a minute.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = {
    "libmilstoragepython": ("milstoragepython", "mlmodel/src/MILBlob", "mlmodel/src/MILBlob/Blob"),
    "libmodelpackage": ("modelpackage/src", "modelpackage/src/utils"),
}
"""Library -> folders of its sources."""
INCLUDES = (".", "deps/pybind11/include", "deps/nlohmann", "deps/FP16/include", "mlmodel/src")


def build(checkout: Path, target: Path) -> None:
    includes = [f"-I{checkout / one}" for one in INCLUDES] + [f"-I{sysconfig.get_paths()['include']}"]
    for name, folders in LIBRARIES.items():
        sources = sorted(str(path) for folder in folders for path in (checkout / folder).glob("*.cpp"))
        library = target / f"{name}.so"
        options = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-DCPU_ONLY=1"]
        subprocess.run(["g++", *options, *includes, *sources, "-luuid", "-o", str(library)], check=True)
        print(library)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    spec = find_spec("coremltools")
    if spec is None or spec.origin is None:
        sys.exit("coremltools is not installed: pip install coremltools")
    build(Path(sys.argv[1]), Path(spec.origin).parent)
