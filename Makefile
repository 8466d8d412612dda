# What a person does with this repository. Each target sets up what it needs by itself; see `make help`.
PYTHON ?= python3
BIN := .venv/bin
SETUP := $(PYTHON) -m gateway.bootstrap
PYTEST_ARGS ?=

export PYTHONDONTWRITEBYTECODE = 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

.DEFAULT_GOAL := help
.PHONY: help run test test-unit test-docker check format bench pins setup status down clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: setup ## set everything up, then show a sandbox at work
	@$(BIN)/boatyard demo

test: setup ## set everything up, then run every test but the slow ones and the benchmarks
	@$(BIN)/pytest -m "not slow and not bench" $(PYTEST_ARGS)

test-unit: venv ## the tests that need no Docker engine
	@$(BIN)/pytest -m "not docker and not slow and not bench" $(PYTEST_ARGS)

test-docker: setup ## the tests that need the Docker engine
	@$(BIN)/pytest -m "docker and not slow and not bench" $(PYTEST_ARGS)

check: venv ## ruff, pyright (source and tests; the guest as Python 3.8), import-linter, deptry
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings
	$(BIN)/pyright --warnings -p pyrightconfig.guest.json
	$(BIN)/python .ci/check_guest.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/deptry .

format: venv ## let ruff fix and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## measure against the Docker SDK and others; writes bench-results/latest.json (BENCH_ARGS=--quick)
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

STATE = $(shell $(PYTHON) -c "import os; from sandbox.state import state_dir as d; print(d(os.environ, uid=os.geteuid()))")
COMPILE = $(STATE)/uv/bin/uv pip compile --quiet --upgrade --universal \
	--python-version 3.11 --generate-hashes --no-emit-index-url --no-header

pins: venv ## write the requirement files anew from pyproject.toml
	@$(COMPILE) pyproject.toml -o requirements.txt
	@$(COMPILE) pyproject.toml --group dev -c requirements.txt -o requirements-dev.txt
	@echo uv | $(COMPILE) - -o gateway/bootstrap/uv.txt
	@! grep -n '://' requirements.txt requirements-dev.txt gateway/bootstrap/uv.txt

.PHONY: venv
venv:
	@$(SETUP) venv

setup: ## the set-up alone: uv, dependencies, a Docker engine if none answers, the base image
	@$(SETUP) all

status: ## which engine answers, and whose it is
	@$(SETUP) status

down: ## remove our containers; stop the engine if set-up started it
	@$(SETUP) down

clean: ## remove what can be made again in this directory (not the engine, not the images)
	@rm -rf .venv build dist bench-results .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
