# `make help` lists every target; an undocumented target is a bug.
.DEFAULT_GOAL := help
PY := .venv/bin/python
.PHONY: help demo test unit integration lint format proto crds bench replay-full clean venv

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv: ## .venv with kvcm and the pinned development tools
	@scripts/venv.sh dev

demo: ## from nothing to a replayed trace in under 3 minutes: manager, apply, replay, table
	@scripts/demo.sh

test: venv ## every tier this machine can run; names what it cannot
	@scripts/test.sh

unit: venv ## the quick part: unit, property and scenario tests
	@$(PY) -m pytest -q tests/unit tests/property tests/scenario

integration: venv ## real processes and sockets
	@$(PY) -m pytest -q tests/integration

lint: venv ## ruff, types, layers, generated files
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache
	@$(PY) -m kvcm.protocol.generate --check
	@$(PY) -m kvcm.resources.generate --check

format: venv ## put code into the project's format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

proto: venv ## generate Python from the .proto files
	@$(PY) -m kvcm.protocol.generate

crds: venv ## generate crds/ from kvcm/resources
	@$(PY) -m kvcm.resources.generate

bench: venv ## the benchmarks of issue A, as ratios in one run (nothing else may run meanwhile)
	@$(PY) -m benchmarks.hot_path
	@$(PY) -m benchmarks.memory

replay-full: venv ## the whole conversation trace against an embedded manager, checked against the oracle
	@.venv/bin/kvcm replay conversation

clean: ## remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
