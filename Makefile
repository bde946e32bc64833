# Every target says what it does and how long it took. 'make help' lists them.

PYTHON ?= python3
CONFIG ?= serve_config.yaml
# processes that share the tests, one of which mostly waits; 0: all run in one, in their order
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin

# tests share few cores: threads that spin against each other cost more than they compute
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
# tests start hundreds of processes, which need not compile the same modules again
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: serve test test-all test-clients fuzz check fmt docs site sbom bench help

# by modules, and all that start Ray in one process: see tests/conftest.py
spread = -n $(WORKERS) --dist loadscope

# $(call timed,WHAT,COMMANDS)
timed = @set -e; echo "$(1)"; SECONDS=0; $(2); echo "$(1): done in $$SECONDS s"

serve: $(VENV)/.installed  ## serve the model of serve_config.yaml (CONFIG=file for another one)
	@exec $(BIN)/python -m app.command serve "$(CONFIG)"

test: export RAY_AUTH_MODE = disabled
test: $(VENV)/.installed-dev  ## run the tests that need no GPU and little time (ARGS=... for pytest)
	$(call timed,testing,$(BIN)/python -m pytest -q $(spread) -m "not gpu and not slow and not clients" $(ARGS))

test-all: export RAY_AUTH_MODE = disabled
test-all: $(VENV)/.installed-dev  ## run all tests that need no GPU, the slow ones too (ARGS=... for pytest)
	$(call timed,testing,$(BIN)/python -m pytest -q $(spread) -m "not gpu and not clients" $(ARGS))

test-clients: export RAY_AUTH_MODE = disabled
test-clients: $(VENV)/.installed-clients $(VENV)/clients/.installed  ## run clients that others have written against one server (ARGS=... for pytest)
	$(call timed,testing clients,$(BIN)/python -m pytest -q -m clients tests/clients $(ARGS))

test-page: export RAY_AUTH_MODE = disabled
test-page: $(VENV)/.installed-clients  ## look at the page /ui in the machine's Chromium (ARGS=... for pytest)
	$(call timed,looking at the page,$(BIN)/python -m pytest -q -m clients tests/clients/page $(ARGS))

fuzz: $(VENV)/.installed-dev  ## try a million damaged bodies (ARGS="--seed 2", or "--show NUMBER" for one again)
	$(call timed,fuzzing,$(BIN)/python -m tests.app.fuzz $(ARGS))

check: $(VENV)/.installed-dev  ## check format, lint and types
	$(call timed,checking the format,$(BIN)/ruff format --check .)
	$(call timed,linting,$(BIN)/ruff check .)
	$(call timed,checking types,$(BIN)/mypy)

fmt: $(VENV)/.installed-dev  ## format, and fix what the linter can fix
	$(call timed,fixing,$(BIN)/ruff check --fix --exit-zero --quiet .)
	$(call timed,formatting,$(BIN)/ruff format .)

docs: $(VENV)/.installed-dev  ## write what is made from the code: pages of docs/, the board, the alerts
	$(call timed,writing docs/configuration.md,$(BIN)/python -m app.settings.reference >docs/configuration.md)
	$(call timed,writing docs/command.md,$(BIN)/python -m app.command.reference >docs/command.md)
	$(call timed,writing docs/published-models.md,$(BIN)/python -m tests.app.models.published.outcomes >docs/published-models.md)
	$(call timed,writing docs/bad-input.md,$(BIN)/python -m tests.app.api.bad_input.rows >docs/bad-input.md)
	$(call timed,writing docs/models.md,$(BIN)/python -m engine.architectures.reference >docs/models.md)
	$(call timed,writing docs/from-vllm.md,$(BIN)/python -m app.command.tools.vllm_reference >docs/from-vllm.md)
	$(call timed,writing docs/metrics.md and deploy/,$(BIN)/python -m app.telemetry.board.reference)

# tools that have no part in the server, apart from it
TOOLS := build/tools
$(TOOLS)/bin/mkdocs:
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install -q --disable-pip-version-check mkdocs-material==9.7.1 cyclonedx-bom==7.5.0

site: $(TOOLS)/bin/mkdocs  ## make a site of the documentation in build/site
	$(call timed,making build/site,NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build -q --strict)

sbom: $(VENV)/.installed $(TOOLS)/bin/mkdocs  ## list all packages of the server with their licences in build/sbom.json
	$(call timed,writing build/sbom.json,$(TOOLS)/bin/cyclonedx-py environment --of JSON -o build/sbom.json $(BIN)/python)

bench: $(VENV)/.installed-dev  ## measure (ARGS="COMMAND ..." for load_tests; without it they are listed)
	$(call timed,measuring,eval "$$($(BIN)/python -m app.command environment)" && $(BIN)/python -m load_tests $(or $(ARGS),--help))

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## +/  make \1  /'

$(VENV)/.installed: EXTRAS =
$(VENV)/.installed-dev: EXTRAS = [dev]
$(VENV)/.installed-clients: EXTRAS = [dev,clients]
# LiteLLM wants boto3, for Amazon only, which has no version for our python-dateutil
$(VENV)/.installed-clients: BARE = litellm==1.110.2 fastuuid==0.14.0 h2==4.4.1 hpack==4.2.0 \
  hyperframe==6.1.0 importlib-metadata==8.9.0 pydantic-settings==2.16.3 zipp==4.1.2
$(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-clients: pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(MAKE) -s environment
	@$(BIN)/python -m app.command.start.install '$(EXTRAS)'
	@test -z "$(BARE)" || $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(BARE)
	@touch $@

# clients whose packages disagree with ours: their own environment, which finds ours behind its own
APART := tests/clients/apart/requirements.txt
$(VENV)/clients/.installed: $(APART) | $(VENV)/.installed-clients
	@rm -rf $(VENV)/clients && $(BIN)/python -m venv $(VENV)/clients
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$($(VENV)/clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth"
	@$(VENV)/clients/bin/python -m pip install -q --disable-pip-version-check --no-warn-conflicts -r $(APART)
	@touch $@

.PHONY: environment
environment:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || { \
	  echo "error: '$(PYTHON)' is not Python 3.11 or 3.12;" \
	    "name one that is: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV)
