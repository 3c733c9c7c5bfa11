# Bare `make` prints the targets. Everything runs in a venv of its own, in .venv.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The tests start a thousand Pythons; without it each would compile all our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help test lint types servers tests pythons mutants chaos cluster powercut bench bench-flat bench-compare demo recording format clean

help: ## Print this list.
	@echo "make targets:"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 17

test: lint types tests ## Lint, types and all tests; what CI runs.

lint: $(READY) ## Style and errors, by ruff.
	@echo "==> ruff"
	@$(BIN)/ruff check src tests examples docs
	@$(BIN)/ruff format --check src tests examples docs

types: $(READY) ## Types, by mypy in strict mode.
	@echo "==> mypy"
	@$(BIN)/mypy
	@$(BIN)/mypy examples

servers: $(READY) ## PostgreSQL, PgBouncer and Redis for the tests: installed if root, else told.
	@$(BIN)/python -m tests.servers.ensure

tests: servers ## All tests, three at a time: many of them wait.
	@echo "==> pytest"
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal

# ONLY=3.12,3.13 tries these alone, JOBS=1 one test at a time.
pythons: $(READY) ## The fast suites on every Python from 3.11 on that is found, pyenv's too.
	@$(BIN)/python -m tests.pythons --only "$(ONLY)" $(if $(JOBS),--jobs $(JOBS))

# A run that is cut goes on where it stopped. MINUTES=8 ends it after that time, SLICE=1/4 takes a
# quarter, SINCE=<commit> those of changed files, FILES= and ONLY= parts of paths and promises;
# ALL=1 also tries those that were killed before, JOBS=1 one at a time.
mutants: servers ## Break one promise at a time; each must be noticed by a test.
	@$(BIN)/python -m tests.mutation --files "$(FILES)" --only "$(ONLY)" --since "$(SINCE)" \
	  $(if $(SLICE),--slice $(SLICE)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(JOBS),--jobs $(JOBS)) $(if $(ALL),--all)

chaos: servers ## Kill worker trees every second under 20,000 jobs, and other long tests: hours.
	@$(BIN)/python -m pytest -v -n 2 --dist worksteal -m chaos tests

cluster: servers ## The tests of all stores on a Redis cluster of three nodes, and its own long tests.
	@FAIRLEAD_STORES=cluster $(BIN)/python -m pytest -q tests/stores tests/versions tests/face tests/runtime tests/system/test_redis_names.py -k cluster
	@$(BIN)/python -m pytest -q -m chaos tests -k cluster

powercut: $(READY) ## Cut the power under an ext4 file system (root and loop devices needed).
	@$(BIN)/python -m pytest -q -m power tests/system

bench: $(READY) ## Fairlead beside the raw engines on this machine, in one run each.
	@$(BIN)/fairlead bench --store sqlite
	@$(BIN)/fairlead bench --store postgres
	@$(BIN)/fairlead bench --store redis

bench-flat: $(READY) ## PostgreSQL's pace with millions of jobs, and under an old snapshot.
	@$(BIN)/fairlead bench --flat

# STORES=, ROWS= and PAIRS= measure less: make bench-compare BASE=main STORES=redis ROWS="put claim"
bench-compare: servers ## The working tree beside the commit BASE: rates in turns, and counts per job.
	@test -n "$(BASE)" || { echo "name the commit to compare with: make bench-compare BASE=HEAD~1"; exit 2; }
	@$(BIN)/python -m tests.compare "$(BASE)" --stores "$(STORES)" --rows "$(ROWS)" \
	  $(if $(PAIRS),--pairs $(PAIRS))

recording: $(READY) ## Play the demo, and draw it anew for the README.
	@$(BIN)/python docs/record.py

demo: $(READY) ## Watch jobs fail in every way and end well, in about 15 seconds.
	@$(BIN)/fairlead demo

format: $(READY) ## Let ruff format the code.
	@$(BIN)/ruff format src tests examples docs
	@$(BIN)/ruff check --fix src tests examples docs

clean: ## Remove the venv and all caches.
	rm -rf $(VENV) $(VENV)-3.* .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Fairlead needs Python 3.11 or newer; this is $$($(PYTHON) --version)." \
	         "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "==> setting up $(VENV) (once, and again when pyproject.toml changes)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 cannot make a venv;" \
	  "on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
