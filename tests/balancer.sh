#!/usr/bin/env bash
# The acceptance scenario against one server, or against several behind a balancer.
set -uo pipefail

usage() {
  cat <<'HELP'
Usage: tests/balancer.sh [URL]

Spends a quota of 100 units per 60 seconds on a server at URL, which is
http://127.0.0.1:8080 unless given, and checks what is left after each request:

  5 x GET, 5 x POST, 5 x SEARCH, 5 x DELETE, 1 x POST   remaining 99 ... 0
  1 x GET                                               429, and what its body says

The quota must be untouched, so wait out its window before a second run. Items that
are deleted were created before, if the server that is asked has them.

Exit codes: 0 all as expected, 1 a difference (the first is printed), 2 no answer.
HELP
}

case ${1-} in
  -h | --help)
    usage
    exit 0
    ;;
  -*)
    printf 'error: unknown option %s; see -h\n' "$1" >&2
    exit 2
    ;;
esac
if [ $# -gt 1 ]; then
  printf 'error: expected one URL, got %d arguments; see -h\n' "$#" >&2
  exit 2
fi
if ! command -v curl >/dev/null; then
  echo 'error: this needs curl; cure: apt-get install curl' >&2
  exit 2
fi

url=${1:-http://127.0.0.1:8080}
url=${url%/}

number=0 # of the last request
head='' body='' # of its answer, and what is read from them:
status='' remaining='' server='' location=''
servers=() # who answered, one for each request
items=()   # paths of the items created

differ() {
  printf '\nFAILED at request %d: %s\n' "$number" "$1"
  [ -z "$body" ] || printf 'body: %s\n' "$body"
  exit 1
}

# header NAME: the value of a field of $head, whatever its case; the last if repeated.
header() {
  local line value=''
  shopt -s nocasematch
  while IFS= read -r line; do
    line=${line%$'\r'}
    if [[ ${line%%:*} == "$1" ]]; then
      value=${line#*:}
      value=${value# }
    fi
  done <<<"$head"
  shopt -u nocasematch
  printf '%s' "$value"
}

# member NAME: a string or a number of the flat JSON object $body.
member() {
  local string="\"$1\"[[:space:]]*:[[:space:]]*\"([^\"]*)\""
  local integer="\"$1\"[[:space:]]*:[[:space:]]*([0-9]+)"
  if [[ $body =~ $string || $body =~ $integer ]]; then
    printf '%s' "${BASH_REMATCH[1]}"
  fi
}

# send METHOD PATH [JSON]: one request, and its line.
send() {
  local method=$1 path=$2 answer code
  local options=(--silent --show-error --include --max-time 10 --request "$method")
  if [ $# -gt 2 ]; then
    options+=(--header 'Content-Type: application/json' --data "$3")
  fi
  number=$((number + 1))
  # The mark keeps the last line ends, which a substitution would drop.
  answer=$(curl "${options[@]}" "$url$path" 2>&1 && printf .)
  code=$?
  if [ "$code" -ne 0 ]; then
    printf 'error: no answer from %s: %s\n' "$url" "${answer##*$'\n'}" >&2
    printf 'cure: start a server, such as: cargo run -p demo -- --listen %s\n' \
      "${url#*://}" >&2
    exit 2
  fi
  answer=${answer%.}
  head=${answer%%$'\r\n\r\n'*}
  body=${answer#*$'\r\n\r\n'}
  # A proxy may answer "100 Continue" first; what counts is the last head.
  while [[ $body == HTTP/* ]]; do
    head=${body%%$'\r\n\r\n'*}
    body=${body#*$'\r\n\r\n'}
  done
  status=${head#* }
  status=${status:0:3}
  remaining=$(header x-ratelimit-remaining)
  server=$(header x-server-id)
  location=$(header location)
  servers+=("$server")
  printf '%3d  %-7s %s  remaining %3s  %s\n' \
    "$number" "$method" "$status" "${remaining:-?}" "${server:-?}"
}

# expect STATUSES REMAINING: what the last request should have brought.
expect() {
  [[ " $1 " == *" $status "* ]] || differ "status $status, expected ${1// / or }"
  [ "$remaining" = "$2" ] || differ "remaining '$remaining', expected $2"
  [ -n "$server" ] || differ 'no X-Server-Id: which server answered?'
}

create() {
  send POST /items '{"name":"balancer"}'
  expect 201 "$1"
  # A balancer may put its own address in front.
  items+=("/items/${location##*/}")
}

printf '  #  method  status                 server\n'
for left in 99 98 97 96 95; do
  send GET /items
  expect 200 "$left"
done
for left in 90 85 80 75 70; do
  create "$left"
done
for left in 67 64 61 58 55; do
  send SEARCH '/items?q=balancer'
  expect 200 "$left"
done
deleted=0
for left in 45 35 25 15 5; do
  # Servers behind a balancer have items of their own, so it may be another's.
  send DELETE "${items[deleted]}"
  deleted=$((deleted + 1))
  expect '204 404' "$left"
done
create 0

send GET /items
expect 429 0
[ -n "$(member title)" ] || differ 'the body names no error (title)'
[ -n "$(member detail)" ] || differ 'the body has no message (detail)'
limit=$(member limit)
[ "$limit" = 100 ] || differ "the body says limit '$limit', expected 100"
window=$(member window)
[ "$window" = '60 seconds' ] || differ "the body says window '$window', expected '60 seconds'"
named=$(member server_id)
[ "$named" = "$server" ] || differ "the body says server_id '$named', the header '$server'"
retry_after=$(header retry-after)
[[ $retry_after =~ ^[1-9][0-9]*$ ]] || differ "Retry-After '$retry_after', expected seconds"
printf '\n%s\n' "$body"

# Who answered, in the order of their first answer, and how many times in a row at most.
distinct=()
turns=1
for i in "${!servers[@]}"; do
  [[ " ${distinct[*]-} " == *" ${servers[i]} "* ]] || distinct+=("${servers[i]}")
  if [ "$i" -gt 0 ] && [ "${servers[i]}" = "${servers[i - 1]}" ]; then
    turns=0
  fi
done
if [ "${#distinct[@]}" -gt 1 ]; then
  printf '\n%d servers answered: %s\n' "${#distinct[@]}" "${distinct[*]}"
  if [ "$turns" = 1 ]; then
    echo 'They alternate: none answered twice in a row.'
  else
    echo 'They do not alternate strictly: one answered twice in a row.'
  fi
fi
printf '\nOK: %d requests, each as expected.\n' "$number"
