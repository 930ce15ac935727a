#!/usr/bin/env bash
# Every tier of design section 5 that this machine can run. One pytest run, so that there is one closing line.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$(date +%s)
status=0
echo "end-to-end level of this machine: $(.venv/bin/python -m e2e.cluster detect 2>&1 | tail -n 1)"
.venv/bin/python -m pytest tests e2e "$@" || status=$?
echo "tiers: unit, property, scenario, integration, e2e (skips above name what this machine cannot run)"
echo "not run: benchmark (make bench, on a quiet machine)"
echo "make test took $(( $(date +%s) - started )) s"
exit "$status"
