# Every target says what it does and how long it took. 'make help' lists them.

PYTHON ?= python3
CONFIG ?= serve_config.yaml
VENV := .venv
BIN := $(VENV)/bin

# tests and servers share few cores: threads that spin against each other cost more than they compute
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
# Ray would choose by itself, and not the same way in every shell
export RAY_AUTH_MODE ?= token

SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.PHONY: serve test check fmt bench help

serve: $(VENV)/.installed  ## serve the model of serve_config.yaml (CONFIG=file for another one)
	@echo "checking $(CONFIG) and the model it names"
	SECONDS=0
	$(BIN)/python -m app.preflight "$(CONFIG)"
	echo "checked in $$SECONDS s; starting Ray Serve, stop it with Ctrl-C"
	exec $(BIN)/serve run "$(CONFIG)"

test: $(VENV)/.installed-dev  ## run the tests that need no GPU and little time (ARGS=... for pytest)
	@echo "running the tests"
	SECONDS=0
	RAY_AUTH_MODE=disabled $(BIN)/python -m pytest -q -m "not gpu and not slow" $(ARGS)
	echo "tested in $$SECONDS s"

check: $(VENV)/.installed-dev  ## check format, lint and types
	@echo "checking format, lint and types"
	SECONDS=0
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	echo "checked in $$SECONDS s"

fmt: $(VENV)/.installed-dev  ## format, and fix what the linter can fix
	@echo "formatting"
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev  ## measure (ARGS=... for load_tests; ARGS=--help lists them)
	@echo "measuring"
	SECONDS=0
	$(BIN)/python -m load_tests $(ARGS)
	echo "measured in $$SECONDS s"

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## +/  make \1\t/'

# $(call install,EXTRAS,WHAT): a new environment where there is none, then the pinned packages
define install
@SECONDS=0
if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then
  $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || {
    echo "error: '$(PYTHON)' is $$($(PYTHON) --version 2>&1), but Pagoda needs Python 3.11 or 3.12;" \
      "name one: make PYTHON=python3.12 ..." >&2
    exit 1
  }
  echo "creating $(VENV) with $$($(PYTHON) --version)"
  $(PYTHON) -m venv $(VENV)
fi
echo "installing $(2) (once; some minutes)"
$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.$(1)'
touch $@
echo "installed in $$SECONDS s"
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,,Pagoda)

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(call install,[dev],Pagoda and its development tools)
	touch $(VENV)/.installed
