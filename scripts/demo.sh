#!/usr/bin/env bash
# From nothing but Python to a replayed trace: install, start a manager on free ports, apply the samples, replay, stop, clean up.
# KVCM_DEMO_REQUESTS: how many requests of the trace (default 600). Everything lives in one temporary folder, which goes away at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
SECONDS=0
requests="${KVCM_DEMO_REQUESTS:-600}"
work=""
manager=""

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'demo failed: %s\n' "$*" >&2; exit 1; }

# Ends the manager for certain and removes the folder, whatever happened before.
clean_up() {
  local status=$?
  trap - EXIT INT TERM HUP
  if [ -n "$manager" ] && kill -0 "$manager" 2>/dev/null; then
    kill -TERM "$manager" 2>/dev/null || true
    for _ in $(seq 100); do
      kill -0 "$manager" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$manager" 2>/dev/null || true
    wait "$manager" 2>/dev/null || true
  fi
  if [ "$status" != 0 ] && [ -s "$work/manager.log" ]; then
    echo "the end of the manager's log:" >&2
    tail -n 20 "$work/manager.log" >&2
  fi
  [ -z "$work" ] || rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Settings in the caller's environment would win over the demo's.
while read -r name; do unset "$name"; done < <(compgen -e | grep -i '^kvcm_' || true)

fresh() { [ -f ".venv/.stamp-$1" ] && [ ".venv/.stamp-$1" -nt pyproject.toml ] && [ ".venv/.stamp-$1" -nt constraints.txt ]; }
if ! fresh dev; then scripts/venv.sh run; fi
kvcm=.venv/bin/kvcm
work=$(mktemp -d "${TMPDIR:-/tmp}/kvcm-demo-XXXXXX")
echo "ready to run after $SECONDS s"

say "kvcm serve (free ports, embedded defaults)"
echo '{}' >"$work/startup.json" # no built-in storage and group: the samples bring their own
ports=()
for port in rpc_port http_port admin_rpc_port admin_http_port; do ports+=(-e "kvcm.service.$port=0"); done
"$kvcm" serve "${ports[@]}" -e "kvcm.startup_config=$work/startup.json" --port-file "$work/ports.json" >"$work/manager.log" 2>&1 &
manager=$!
for _ in $(seq 300); do
  [ -f "$work/ports.json" ] && break
  kill -0 "$manager" 2>/dev/null || fail "the manager ended while starting"
  sleep 0.1
done
[ -f "$work/ports.json" ] || fail "the manager did not serve within 30 s"
read -r meta admin metrics < <(.venv/bin/python - "$work/ports.json" <<'PYTHON'
import json, sys

own = json.load(open(sys.argv[1]))
print(*(f"127.0.0.1:{own[key]}" for key in ("meta_rpc_port", "admin_rpc_port", "admin_http_port")))
PYTHON
)
export KVCM_MANAGER="$admin"
"$kvcm" get cluster

# The samples as they are, but with their folder inside ours.
mkdir "$work/samples"
for sample in manifests/samples/*.yaml; do
  sed "s#/tmp/kvcm-demo/#$work/#" "$sample" >"$work/samples/$(basename "$sample")"
done
grep -q "$work/" "$work"/samples/*.yaml || fail "the samples have no folder that could be moved"

apply() {
  local wanted=$1 code=0
  "$kvcm" apply -f "$work/samples/" || code=$?
  [ "$code" = "$wanted" ] || fail "kvcm apply ended with code $code instead of $wanted"
}
say "kvcm apply -f manifests/samples/"
apply 2
say "kvcm apply -f manifests/samples/, again"
apply 0
say "kvcm get storages, groups"
"$kvcm" get storages
"$kvcm" get groups

say "kvcm replay conversation --limit $requests --group demo"
"$kvcm" replay conversation --limit "$requests" --manager "$meta" --group demo --metrics-url "http://$metrics/metrics" --json "$work/result.json" ||
  fail "kvcm replay ended with code $?"
.venv/bin/python - "$work/result.json" <<'PYTHON' || fail "the replay did not hit what it should have"
import json, sys

result = json.load(open(sys.argv[1]))
sys.exit(result["hit_blocks"] != result["possible_hit_blocks"] or result["mismatches"] != 0)
PYTHON
"$kvcm" get instances

say "stop"
kill -TERM "$manager"
code=0
wait "$manager" || code=$?
manager=""
[ "$code" = 0 ] || fail "the manager ended with code $code after SIGTERM"
rm -rf "$work"
work=""
echo "the manager stopped cleanly; every byte that was read was the byte that was written"
echo "make demo took $SECONDS s"
