#!/usr/bin/env bash
# Compare every stage with upstream: make its environment once, then run the comparison in it.
#   parity/run.sh [options of parity/run.py]        PYTHON=…  PIP_ARGS=…  VENV_PARITY=…
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV_PARITY:-.venv-parity}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
wanted=$(cat parity/requirements.txt parity/requirements-bare.txt | sha256sum)

if [[ "$(cat "$venv/.installed" 2>/dev/null)" != "$wanted" ]]; then
    echo "making $venv (upstream chatterbox-tts and what it needs, about 2 GB)" >&2
    "$python" -m venv --clear "$venv"
    install=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
    # shellcheck disable=SC2206  # PIP_ARGS is a list of words
    install+=(${PIP_ARGS:-})
    "${install[@]}" -r parity/requirements.txt
    "${install[@]}" --no-deps -r parity/requirements-bare.txt
    # torchaudio's libraries want CUDA; without them it is pure Python, and enough.
    rm -f "$venv"/lib/python3.*/site-packages/torchaudio/lib/*.so
    echo "$wanted" >"$venv/.installed"
fi

export PYTHONPATH=src HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Threads that wait asleep: on a busy machine, threads that wait spinning take the time of those that work.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
exec "$venv/bin/python" -W ignore parity/run.py "$@"
