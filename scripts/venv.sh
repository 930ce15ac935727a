#!/usr/bin/env bash
# Make .venv with the pinned versions, or do nothing if it is up to date. Usage: scripts/venv.sh [extra]
set -euo pipefail
cd "$(dirname "$0")/.."
extra="${1:-dev}"
stamp=".venv/.stamp-$extra"
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt constraints.txt ]; then
  exit 0
fi
python="${PYTHON:-python3}"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "kvcm needs Python 3.11 or newer as '$python' (set PYTHON=... to choose another)" >&2
  exit 1
fi
if [ ! -x .venv/bin/python ]; then
  if ! "$python" -m venv .venv 2>/dev/null; then
    rm -rf .venv
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "installing python3-venv"
      apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
      "$python" -m venv .venv
    else
      echo "python3 -m venv does not work here; install the package python3-venv" >&2
      exit 1
    fi
  fi
fi
echo "installing kvcm into .venv"
if [ "$extra" = run ]; then what="."; else what=".[$extra]"; fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$what"
touch "$stamp"
