# The one list of verbs. `make` alone prints it. Needs Python 3.11 or newer, git and make, nothing else.

# The first of these that is Python 3.11 or newer.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
# Extra arguments for pip, such as an index that has PyTorch without CUDA (`make test` installs PyTorch).
PIP_ARGS ?=
TEXT ?= Hello. I am Nightingale, and I speak on this computer without any network.
OUT ?= hello.wav
TESTS ?=
MINUTES ?= 5
SECONDS ?= 60

# Windows has another layout; there, make needs the shell of Git (sh.exe) on the PATH.
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
VENV_PYTHON := $(BIN)/python$(if $(filter Windows_NT,$(OS)),.exe)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) -c constraints.txt
# Stamps: installed once, and again only when what is asked for changes.
INSTALLED := $(VENV)/.installed
INSTALLED_SERVER := $(VENV)/.installed-server
INSTALLED_DEV := $(VENV)/.installed-dev
# Each process takes the tests of one file after another, and computes on one core.
PYTEST_PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile
# As they were given: the shell must not read a price, a quote or a backtick in them as its own.
export SAID := $(value TEXT)
export SAID_TO := $(value OUT)
# Empty: Python keeps compiled modules even where the environment forbids it, so the next start is faster.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help say serve test test-rest test-all smoke walk nightly soak fuzz check site format parity upstream-env judges browser contract contract-lock image-lock cluster executorch coreml audit release-check bench-check docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

say: $(INSTALLED) ## install, then speak TEXT to OUT (hello.wav)
	$(BIN)/nightingale say "$$SAID" -o "$$SAID_TO"

serve: $(INSTALLED_SERVER) ## install, then serve HTTP on 127.0.0.1:8880
	$(BIN)/nightingale serve

test: $(INSTALLED_DEV) ## install what tests need, then test the product (TESTS=path for all tests of a path)
	$(PYTEST_PARALLEL) $(or $(TESTS),--suite=product)

test-rest: $(INSTALLED_DEV) ## run what `make test` and `make check` leave out: tests of the lab, and thorough ones
	$(PYTEST_PARALLEL) --suite=rest

test-all: $(INSTALLED_DEV) ## run every test that needs no network, no GPU and no other program
	$(PYTEST_PARALLEL) --suite=all

smoke: $(INSTALLED_SERVER) ## speak and serve with wren as a new user does, on any system, without PyTorch
	$(BIN)/python tools/smoke.py

walk: $(INSTALLED_DEV) ## run the shell commands of README and the quick start in an empty environment, as printed
	$(BIN)/python -m pytest -m package tests/docs/test_walk.py

nightly: $(INSTALLED_DEV) ## small runs of every benchmark and lab script
	$(PYTEST_PARALLEL) -m nightly tests/lab

soak: $(INSTALLED_DEV) ## load a real server with mixed clients for MINUTES (5), then check it
	$(BIN)/python -m nightingale_lab.reliability.soak --minutes $(MINUTES)

fuzz: $(INSTALLED_DEV) ## fuzz each reader of untrusted input for SECONDS (60)
	$(BIN)/python -m nightingale_lab.reliability.fuzzing --seconds $(SECONDS)

check: $(INSTALLED_DEV) ## format, lint, types, project rules, docs, the site, the built wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST_PARALLEL) --dist=worksteal -m '' tests/project

site: $(INSTALLED_DEV) ## build the documentation into site/, which opens without a server or a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(INSTALLED_DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

parity: $(VENV_PYTHON) ## compare every stage with upstream chatterbox-tts, in an environment of its own (PARITY="--family nano")
	PYTHONPATH=src $(BIN)/python -m nightingale_lab.parity $(PARITY)

upstream-env: $(INSTALLED_DEV) ## make DIR, the folder of upstream's packages for `--upstream DIR` of the benchmarks cpu and gpu_engine
	@test -n "$(DIR)" || { echo "Name a folder: make upstream-env DIR=upstream" >&2; exit 1; }
	$(BIN)/python -m nightingale_lab.bench upstream_env "$(DIR)"

judges: $(VENV_PYTHON) ## get the recognizers and quality models that score speech (.venv-judges, 1.8 GB)
	PYTHONPATH=src $(BIN)/python -m nightingale_lab.bench.judges.install

browser: $(INSTALLED_DEV) ## drive the page in a real Chromium (needs Debian's chromium and npm)
	$(PIP) -e '.[browser]'
	npm install --silent --no-save --prefix examples/browser onnxruntime-web
	npm install --silent --no-save --prefix tests/browser axe-core@4
	$(BIN)/python -m pytest -m browser tests/browser
	@# In a process of its own: Playwright's synchronous interface can be started once.
	$(BIN)/python -m pytest -m browser tests/export

CONTRACT := tests/contract
# Home Assistant pins other versions than the clients: it has an environment inside theirs.
CONTRACT_ENV := .venv-contract
HOME_ASSISTANT_ENV := $(CONTRACT_ENV)/home-assistant
CONTRACT_PIP := -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)

contract: ## try other projects' clients (OpenAI, ElevenLabs, LiveKit, Pipecat, Home Assistant), in environments of their own
	$(PYTHON) -m venv $(CONTRACT_ENV)
	$(CONTRACT_ENV)/bin/python $(CONTRACT_PIP) -c $(CONTRACT)/clients.lock -r $(CONTRACT)/clients.in -e '.[server,wyoming]'
	$(PYTHON) -m venv $(HOME_ASSISTANT_ENV)
	$(HOME_ASSISTANT_ENV)/bin/python $(CONTRACT_PIP) -c $(CONTRACT)/home_assistant.lock -r $(CONTRACT)/home_assistant.in
	$(CONTRACT_ENV)/bin/python -m pytest -W default -m contract tests/contract

contract-lock: ## renew the versions that `make contract` installs (tests/contract/*.lock); then run it
	$(PYTHON) -m venv --clear $(CONTRACT_ENV)
	$(CONTRACT_ENV)/bin/python $(CONTRACT_PIP) -r $(CONTRACT)/clients.in -e '.[server,wyoming]'
	$(PYTHON) -m venv $(HOME_ASSISTANT_ENV)
	$(HOME_ASSISTANT_ENV)/bin/python $(CONTRACT_PIP) -r $(CONTRACT)/home_assistant.in
	$(CONTRACT_ENV)/bin/python tools/lock_versions.py > $(CONTRACT)/clients.lock
	$(HOME_ASSISTANT_ENV)/bin/python tools/lock_versions.py > $(CONTRACT)/home_assistant.lock

image-lock: ## pin the images that the Dockerfile and compose.yaml start from, by digest (needs docker)
	$(PYTHON) tools/pin_images.py

cluster: ## try replicas, faults and batches on a real Ray, in an environment of its own (0.9 GB)
	$(PYTHON) -m venv .venv-cluster
	.venv-cluster/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[ray]' pytest httpx
	.venv-cluster/bin/python -m pytest -W default -m '' tests/cluster

executorch: ## export wren to ExecuTorch and compare it with the engine, in an environment of its own (1.3 GB)
	$(PYTHON) -m venv .venv-executorch
	.venv-executorch/bin/python -m pip install --quiet $(PIP_ARGS) torch==2.13.0 executorch==1.5.1 pytest -e '.[executorch]'
	.venv-executorch/bin/python -m pytest -W default -s -m slow tests/export/test_executorch_runtime.py

coreml: ## export wren to Core ML and check the packages, in an environment of its own (1.2 GB; on ARM Linux COREMLTOOLS=DIR)
	$(PYTHON) -m venv .venv-coreml
	.venv-coreml/bin/python -m pip install --quiet $(PIP_ARGS) torch==2.13.0 pytest -e '.[coreml]'
	@# There is no wheel for ARM Linux: DIR is a checkout of github.com/apple/coremltools at tag 9.0.
	$(if $(COREMLTOOLS),.venv-coreml/bin/python tools/build_coremltools.py "$(COREMLTOOLS)")
	.venv-coreml/bin/python -m pytest -W default -s -m '' tests/export/test_coreml_packages.py

audit: ## list what a server installs (dist/sbom.cdx.json, CycloneDX), and known vulnerabilities of it (needs the network)
	$(PYTHON) -m venv .venv-audit/server && $(PYTHON) -m venv .venv-audit/tools
	.venv-audit/server/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt '.[server,wyoming,otel]'
	.venv-audit/tools/bin/python -m pip install --quiet $(PIP_ARGS) pip-audit==2.10.1 cyclonedx-bom==7.5.0
	mkdir -p dist
	.venv-audit/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file dist/sbom.cdx.json .venv-audit/server/bin/python
	.venv-audit/tools/bin/pip-audit --skip-editable --path .venv-audit/server/lib/python3*/site-packages

release-check: ## build wheel and sdist of both distributions (dist/), check them, try them with each Python found (PYTHONS="3.12 3.13")
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet $(PIP_ARGS) build==1.6.1 twine==7.0.0 check-wheel-contents==0.6.3
	.venv-release/bin/python tools/release_check.py $(PYTHONS) --pip-args="$(PIP_ARGS)"

bench-check: $(INSTALLED_DEV) ## did a change make it slower? two minutes, ratios against the last accepted line
	$(BIN)/python -m nightingale_lab.bench.guard

docs: $(INSTALLED_DEV) ## write the generated pages, the plots, and the measured numbers of all pages
	$(BIN)/python tools/make_docs.py

clean: ## forget the environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache site

$(VENV_PYTHON):
	@test -n "$(PYTHON)" || { echo "Nightingale needs Python 3.11 or newer; none was found. Try: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Python 3.11 adds 10 MB that nothing here uses.
	@$(BIN)/python -m pip --disable-pip-version-check uninstall --quiet --yes setuptools 2>/dev/null || true

# --no-compile: Python compiles the few modules that are used when it first imports them.
$(INSTALLED): pyproject.toml constraints.txt | $(VENV_PYTHON)
	$(PIP) --no-compile -e .
	@touch $@

$(INSTALLED_SERVER): $(INSTALLED)
	$(PIP) -e '.[server]'
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(PIP) -e '.[dev]'
	@touch $@
