#!/usr/bin/env bash
# Every tier of design section 5 that this machine can run. Two pytest runs side by side: the stories on a Kubernetes mostly wait, so the others go on meanwhile.
# Arguments go to both, as in: scripts/test.sh -k storage
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
started=$(date +%s)
none_selected=5
longest=2700

# Real stores for the integration tests; without them those tests skip and say so.
need=()
command -v etcd >/dev/null || need+=(etcd-server)
command -v redis-server >/dev/null || need+=(redis-server)
command -v redis-sentinel >/dev/null || need+=(redis-sentinel)
compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || need+=(libfaketime)
if [ "${#need[@]}" -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${need[*]}"
  scripts/apt_quietly.sh "${need[@]}" || echo "could not install ${need[*]}"
fi

# What is slow to make comes first and alone: tests with deadlines do not run beside compilers.
able=yes
if [ -z "${KVCM_E2E_KUBECONFIG:-}" ]; then
  "$python" -m e2e.cluster detect || able=no
  if [ "$able" = yes ]; then
    "$python" -m e2e.cluster build
    "$python" -m e2e.cluster build --cel || echo "tests on a server that knows CEL will say what it lacks"
  fi
fi

# A run that was killed prints nothing itself. 137 is SIGKILL: look at the memory that was left.
say_how_it_ended() {
  if [ "$2" -gt 128 ]; then
    echo "$1 was ended by signal $(( $2 - 128 )) before it could say more"
    grep -E '^Mem(Total|Available)' /proc/meminfo || true
    dmesg 2>/dev/null | grep -iE 'out of memory|oom-kill' | tail -3 || true
  else
    echo "$1 ended with code $2"
  fi
}

stories=$(mktemp)
set -m  # or it would ignore the signal that makes it clean up
timeout --signal=INT --kill-after=120 "$longest" "$python" -m pytest e2e "$@" >"$stories" 2>&1 &
pid=$!
set +m
# However this ends, the stories take their cluster down.
trap '[ -z "$pid" ] || { kill -INT "$pid" 2>/dev/null && wait "$pid"; }; rm -f "$stories"' EXIT

status=0
"$python" -m pytest tests "$@" || status=$?
say_how_it_ended "pytest tests" "$status"
echo "the stories on Kubernetes go on; what they say follows when they have ended"
other=0
wait "$pid" || other=$?
pid=  # the number may soon be somebody else's
cat "$stories"
say_how_it_ended "pytest e2e" "$other"

if [ $# -gt 0 ]; then
  if [ "$status" = "$none_selected" ]; then status=0; fi
  if [ "$other" = "$none_selected" ]; then other=0; fi
fi
echo "tiers run: unit, property, scenario, integration (the first closing line), e2e (the second; what a machine cannot run is skipped there)"
if [ "$able" = no ]; then echo "tiers not run: e2e, for the reason above"; fi
echo "tiers not run: benchmark (make bench, on a quiet machine)"
echo "make test took $(( $(date +%s) - started )) s"
exit $(( status > other ? status : other ))
