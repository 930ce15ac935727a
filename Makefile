# `make help` lists every target; an undocumented target is a bug.
.DEFAULT_GOAL := help
PY := .venv/bin/python
.PHONY: help demo test unit integration e2e cluster-up cluster-down lint format proto crds bench bench-redis faults fuzz replay-full clean venv

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv: ## .venv with kvcm, what Redis and the operator need, and the pinned development tools (make demo makes a smaller one)
	@scripts/venv.sh dev

demo: ## from nothing to a replayed trace in under 3 minutes: manager, apply, replay, table
	@scripts/demo.sh

test: venv ## all tests: unit, property, scenario, integration, e2e on a real Kubernetes; names what it could not run (the first time it builds that Kubernetes)
	@scripts/test.sh

unit: venv ## the quick part: unit, property and scenario tests
	@$(PY) -m pytest -q tests/unit tests/property tests/scenario

integration: venv ## real processes and sockets
	@$(PY) -m pytest -q tests/integration

e2e: venv ## end-to-end tests on a real Kubernetes API server (KVCM_E2E_KUBECONFIG or KUBEBUILDER_ASSETS: use that one; else the test bed)
	@$(PY) -m pytest -q e2e

cluster-up: venv ## the test bed's Kubernetes, as far as this machine allows (the first time it is built: 5 minutes on 2 cores)
	@$(PY) -m e2e.cluster up

cluster-down: ## end the test bed's Kubernetes and put everything back
	@$(PY) -m e2e.cluster down

lint: venv ## ruff, types, layers, generated files
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache
	@$(PY) -m kvcm.protocol.generate --check
	@$(PY) -m kvcm.resources.generate --check
	@$(PY) -m kvcm.metrics.generate --check
	@$(PY) -m kvcm.config.settings_docs --check

format: venv ## put code into the project's format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

proto: venv ## generate Python from the .proto files
	@$(PY) -m kvcm.protocol.generate

crds: venv ## generate crds/ from kvcm/resources
	@$(PY) -m kvcm.resources.generate

bench: venv ## the hot path and memory, as ratios in one run (nothing else may run meanwhile)
	@$(PY) -m benchmarks.hot_path
	@$(PY) -m benchmarks.memory
	@$(PY) -m benchmarks.lease_check

fuzz: venv ## spoilt bytes at the HTTP and the gRPC port of a manager, 10 minutes each
	@$(PY) -m benchmarks.fuzz_ports --seconds 600

bench-redis: venv ## what metadata in Redis costs a write and a start, as ratios in one run (needs redis-server)
	@$(PY) -m benchmarks.redis_overhead
	@$(PY) -m benchmarks.redis_recovery

faults: venv ## leaders are killed, stopped and suspended at 1,000,000 blocks under load (about an hour; needs etcd, redis-server and a quiet machine)
	@status=0; \
	$(PY) -m faults --row kill,crash,demote,terminate || status=1; \
	$(PY) -m faults --row suspend --stores etcd,redis || status=1; \
	$(PY) -m faults --row kill,terminate --mode behind --rounds 20 || status=1; \
	$(PY) -m faults --row stores --stores etcd,redis --blocks 100000 || status=1; \
	$(PY) -m faults --row unnoticed --blocks 100000 || status=1; \
	$(PY) -m faults.crash_matrix || status=1; \
	$(PY) -m faults.clocks || status=1; \
	exit $$status  # all of it runs, whatever the parts before found

replay-full: venv ## the whole conversation trace against an embedded manager, checked against the oracle
	@.venv/bin/kvcm replay conversation

clean: ## remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
