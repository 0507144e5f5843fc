# Installs Debian packages without starting their services.
# Usage: install.sh POLICY PACKAGE...
#
# invoke-rc.d and deb-systemd-invoke run POLICY (/usr/sbin/policy-rc.d) before they start a service,
# and exit code 101 forbids it. Tests start their own servers on their own ports, and a second server
# in the background would only interfere.
set -eu
policy=$1
shift
kept=$policy.before-xtask
mark='# Written by cargo xtask, only while it installs packages.'

# Also runs at the start, because a killed run may have left its policy behind.
restore() {
  if [ -e "$kept" ]; then
    mv -f "$kept" "$policy"
  elif grep -qsxF "$mark" "$policy"; then
    rm -f "$policy"
  fi
}

restore
trap restore EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -e "$policy" ]; then mv "$policy" "$kept"; fi
printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo 'apt-get update failed; trying with the package lists that are here' >&2
apt-get install -qq --yes --no-install-recommends \
  -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@"
