# Fetches a server from another Debian release, without installing it.
# Usage: fetch-server.sh FOLDER SUITES PACKAGE VERSION
#
# Afterwards FOLDER/bin/redis-server runs the server with the loader and libraries of its release.
set -eu

# The dynamic loader in a tree. Links may lead out of the tree, so only an existing file counts.
loader_in() {
  for file in "$1"/lib/*/ld-linux* "$1"/usr/lib/*/ld-linux*; do
    if [ -f "$file" ]; then echo "$file" && return; fi
  done
}

folder=$1 suites=$2 package=$3 version=$4
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

fetch() {
  [ -f "$keyring" ] || fail "no $keyring to verify packages; cure: apt-get install debian-archive-keyring"
  mirror=${TOLLGATE_DEBIAN_MIRROR:-http://deb.debian.org/debian}

  # An earlier attempt may have stopped halfway.
  rm -rf "$folder"
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/bin"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
    "$mirror" "$suites" "$keyring" >"$folder/apt/debian.sources"
  # Packages that are only needed to install a server, not to run it.
  for unneeded in adduser debconf init-system-helpers lsb-base; do
    printf 'Package: %s\nStatus: install ok installed\nVersion: 9999\nArchitecture: all\n' "$unneeded"
    printf 'Maintainer: none\nDescription: not needed\n\n'
  done >"$folder/apt/status"
  # The machine's apt configuration does not apply, except its proxy. apt's user `_apt` cannot write
  # below `target`.
  apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" -o Dir::State="$folder/apt" \
      -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt" \
      -o Dir::Etc::sourcelist="$folder/apt/debian.sources" -o Dir::Etc::sourceparts=/dev/null \
      -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User=root
  }
  apt update
  apt install --yes --no-install-recommends --download-only "$package" >/dev/null
  for archive in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$archive" "$folder/tree"; done
  rm -r "$folder/apt"

  loader=$(loader_in "$folder/tree")
  [ "$loader" ] || fail "no loader in $folder/tree"
  loader=${loader#"$folder/tree/"}
  libraries=${loader%/*}
  libraries=${libraries#usr/}
  cat >"$folder/bin/new" <<END
#!/bin/sh
tree=\${0%/*}/../tree
exec "\$tree/$loader" --library-path "\$tree/$libraries:\$tree/usr/$libraries" "\$tree/usr/bin/$package" "\$@"
END
  chmod +x "$folder/bin/new"
  mv "$folder/bin/new" "$folder/bin/redis-server"
}

if [ ! -f "$folder/bin/redis-server" ]; then
  echo "Fetching ${folder##*/}; nothing is installed."
  fetch
fi
found=$("$folder/bin/redis-server" --version)
case $found in
  *" v=$version."*) ;;
  *) fail "$folder contains \`$found\` instead of version $version; cure: remove it. If that does not help, Debian has another version by now" ;;
esac
