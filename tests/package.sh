#!/usr/bin/env bash
# Builds the Debian package from a program, unpacks it into an empty folder, and starts the program
# there, without the unit's restrictions. `cargo xtask check package` runs this with a debug build.
#
# Usage: tests/package.sh PROGRAM [OPTION OF cargo deb]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$here/deploy/debian/build" "$@"

root=$(mktemp -d)
gateway=
trap '[ -z "$gateway" ] || kill "$gateway"; rm -rf "$root"' EXIT
dpkg-deb --extract "$here"/target/package/tollgate_*.deb "$root"

echo '== every file is in its place'
for file in usr/bin/tollgate etc/tollgate/limits.yaml usr/share/man/man1/tollgate-serve.1.gz \
  usr/share/bash-completion/completions/tollgate usr/share/zsh/vendor-completions/_tollgate \
  usr/share/fish/vendor_completions.d/tollgate.fish usr/share/doc/tollgate/copyright; do
  [ -s "$root/$file" ] || { echo "error: the package has no $file" >&2; exit 1; }
done

echo '== a manual page can be read'
man --local-file "$root/usr/share/man/man1/tollgate-serve.1.gz" | grep --quiet 'limits.yaml\|SIGHUP'

echo '== the unit is valid, and its service is confined'
unit=$root/tollgate.service
sed "s|/usr/bin/tollgate|$root&|" "$root"/usr/lib/systemd/system/tollgate.service >"$unit"
systemd-analyze verify --man=no "$unit"
# 10 is no confinement at all, and 2 is "OK" for a service with a network.
systemd-analyze security --offline=yes --threshold=20 --no-pager "$unit" | tail -n 1

echo '== it starts with its own configuration'
program=$root/usr/bin/tollgate config=$root/etc/tollgate/limits.yaml
"$program" check --strict "$config"
# Free ports, because others may be in use here.
sed --in-place 's/^  listen: .*/  listen: 127.0.0.1:0/; s/^  admin: .*/  admin: 127.0.0.1:0/' "$config"
mkfifo "$root/printed"
"$program" serve --config "$config" >"$root/printed" &
gateway=$!
exec 3<"$root/printed"
admin=
while [ -z "$admin" ] && read -r line <&3; do
  echo "$line"
  admin=$(sed --quiet 's/^admin *//p' <<<"$line")
done
"$program" healthcheck --admin "$admin"
kill "$gateway"
wait "$gateway"
gateway=
echo 'OK: the package installs, and its program starts and stops.'
