# Installs Debian packages and starts none of their services.
# Usage: install.sh POLICY PACKAGE...
#
# invoke-rc.d and deb-systemd-invoke ask POLICY (/usr/sbin/policy-rc.d) before they
# start a service, and 101 means "no". A test starts its own server, on its own
# port, and stops it again; a second one in the background would only be in the way.
set -eu
policy=$1
shift
kept=$policy.before-xtask
mark='# Written by cargo xtask, only while it installs packages.'

# Also at the start: a run that was killed may have left its policy behind.
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
