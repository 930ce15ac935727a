#!/usr/bin/env bash
# Every tier of design section 5 that this machine can run without Kubernetes. One pytest run, so that there is one closing line.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$(date +%s)
status=0
.venv/bin/python -m pytest tests "$@" || status=$?
echo "tiers run: unit, property, scenario, integration"
echo "tiers not run: e2e (make e2e, needs root for its Kubernetes; 6 to 15 minutes the first time), benchmark (make bench, on a quiet machine)"
echo "make test took $(( $(date +%s) - started )) s"
exit "$status"
