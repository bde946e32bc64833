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
# Ray would run its workers behind everything else on the machine
export RAY_worker_niceness ?= 0
# a replica that is unhealthy is killed at once; a healthy one that stops may end its requests
export RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS ?= 1
# seconds for a proxy to start: busy machines may need more than 5, after which `serve run` fails
export RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S ?= 60

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: serve test test-all check fmt docs bench help

# $(call timed,WHAT,COMMANDS)
timed = @set -e; echo "$(1)"; SECONDS=0; $(2); echo "$(1): done in $$SECONDS s"

serve: $(VENV)/.installed  ## serve the model of serve_config.yaml (CONFIG=file for another one)
	$(call timed,checking $(CONFIG) and its model,$(BIN)/python -m app.preflight "$(CONFIG)")
	@echo "starting Ray Serve; Ctrl-C stops it"
	@exec $(BIN)/serve run "$(CONFIG)"

test: export RAY_AUTH_MODE = disabled
test: $(VENV)/.installed-dev  ## run the tests that need no GPU and little time (ARGS=... for pytest)
	$(call timed,testing,$(BIN)/python -m pytest -q -m "not gpu and not slow" $(ARGS))

test-all: export RAY_AUTH_MODE = disabled
test-all: $(VENV)/.installed-dev  ## run all tests that need no GPU, the slow ones too (ARGS=... for pytest)
	$(call timed,testing,$(BIN)/python -m pytest -q -m "not gpu" $(ARGS))

check: $(VENV)/.installed-dev  ## check format, lint and types
	$(call timed,checking the format,$(BIN)/ruff format --check .)
	$(call timed,linting,$(BIN)/ruff check .)
	$(call timed,checking types,$(BIN)/mypy)

fmt: $(VENV)/.installed-dev  ## format, and fix what the linter can fix
	$(call timed,fixing,$(BIN)/ruff check --fix --exit-zero --quiet .)
	$(call timed,formatting,$(BIN)/ruff format .)

docs: $(VENV)/.installed-dev  ## write docs/configuration.md from the code
	$(call timed,writing docs/configuration.md,$(BIN)/python -m app.settings.reference >docs/configuration.md)

bench: $(VENV)/.installed-dev  ## measure (ARGS="COMMAND ..." for load_tests; without it they are listed)
	$(call timed,measuring,$(BIN)/python -m load_tests $(or $(ARGS),--help))

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## +/  make \1  /'

$(VENV)/.installed: EXTRAS =
$(VENV)/.installed-dev: EXTRAS = [dev]
$(VENV)/.installed $(VENV)/.installed-dev: pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(MAKE) -s environment
	$(call timed,installing pinned packages,$(BIN)/python -m pip install \
	  --disable-pip-version-check -c constraints.txt -e '.$(EXTRAS)')
	@touch $@

.PHONY: environment
environment:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || { \
	  echo "error: '$(PYTHON)' is not Python 3.11 or 3.12;" \
	    "name one that is: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	$(call timed,creating $(VENV),$(PYTHON) -m venv $(VENV))
