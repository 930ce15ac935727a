#!/usr/bin/env bash
# Install Debian packages without starting the services in them: tests start their own, on free ports. Usage: scripts/apt_quietly.sh PACKAGE...
set -euo pipefail
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@" >/dev/null
