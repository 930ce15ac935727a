#!/usr/bin/env bash
# Every tier of design section 5 that this machine can run. One pytest run, so that there is one closing line.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$(date +%s)
status=0
.venv/bin/python -m pytest tests e2e "$@" || status=$?
echo "tiers run: unit, property, scenario, integration, and e2e as far as the next line says"
.venv/bin/python -m e2e.cluster detect || true
echo "tiers not run: benchmark (make bench, on a quiet machine)"
echo "make test took $(( $(date +%s) - started )) s"
exit "$status"
