#!/usr/bin/env bash
# The acceptance scenario against a single server, or against replicas behind a load balancer.
set -uo pipefail

usage() {
  cat <<'HELP'
Usage: tests/balancer.sh [--window SECONDS] [--wait] [--servers N] [URL]

Uses up a quota of 100 units at URL (default http://127.0.0.1:8080), and checks the
remaining units after each request, no matter which server responds:

  5 x GET, 5 x POST, 5 x SEARCH, 5 x DELETE, 1 x POST   remaining 99 ... 0
  1 x GET                                               429, and checks the body
  1 request of each kind, at least one per server       429

Also checks the rate limit headers of each response, and that the servers take turns.
The quota must be unused, so wait for one window before the next run. A DELETE gets 404
if the item was created on another server.

  --window SECONDS  the servers' window (default 60)
  --wait            wait for Retry-After, then check that a request is allowed
  --servers N       the number of servers that take turns (default 3 behind nginx, else 1)

Exit codes: 0 all responses as expected, 1 a difference (prints the first and stops),
2 no response or invalid arguments.
HELP
}

wrong() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

url=http://127.0.0.1:8080
window=60
wait_it_out=no
expected_servers=''
urls=0
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --window | --servers)
      [[ ${2-} =~ ^[1-9][0-9]*$ ]] || wrong "$1 '${2-}': expected a whole number from 1; see -h"
      if [ "$1" = --window ]; then window=$2; else expected_servers=$2; fi
      shift 2
      ;;
    --wait)
      wait_it_out=yes
      shift
      ;;
    -*) wrong "unknown option $1; see -h" ;;
    *)
      url=${1%/}
      urls=$((urls + 1))
      [ "$urls" = 1 ] || wrong 'expected one URL, got more; see -h'
      shift
      ;;
  esac
done
command -v curl >/dev/null || wrong 'curl is missing; install it with apt-get install curl'

number=0 # the number of the last request
head='' body='' # its response, and the values parsed from it:
status='' remaining='' server='' location=''
policy='' # RateLimit-Policy of the first response
distinct=() # the servers, in order of their first responses
items=()    # the paths of created items

differ() {
  printf '\nFAILED at request %d: %s\n' "$number" "$1"
  [ -z "$body" ] || printf 'body: %s\n' "$body"
  exit 1
}

# header NAME: the value of a header in $head, case-insensitive. The last line wins.
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

# member NAME: a string or number in the flat JSON object $body.
member() {
  local string="\"$1\"[[:space:]]*:[[:space:]]*\"([^\"]*)\""
  local integer="\"$1\"[[:space:]]*:[[:space:]]*([0-9]+)"
  if [[ $body =~ $string || $body =~ $integer ]]; then
    printf '%s' "${BASH_REMATCH[1]}"
  fi
}

# send METHOD PATH [JSON]: sends a request and prints a line about the response.
send() {
  local method=$1 path=$2 answer code
  local options=(--silent --show-error --include --max-time 10)
  # With `--request HEAD`, curl would wait for a body.
  if [ "$method" = HEAD ]; then options+=(--head); else options+=(--request "$method"); fi
  if [ $# -gt 2 ]; then
    options+=(--header 'Content-Type: application/json' --data "$3")
  fi
  number=$((number + 1))
  # Command substitution strips trailing newlines, so append a mark.
  answer=$(curl "${options[@]}" "$url$path" 2>&1 && printf .)
  code=$?
  if [ "$code" -ne 0 ]; then
    printf 'error: no answer from %s: %s\n' "$url" "${answer##*$'\n'}" >&2
    printf 'start a server there: cargo xtask up, or cargo run -p demo -- --listen %s\n' \
      "${url#*://}" >&2
    exit 2
  fi
  answer=${answer%.}
  head=${answer%%$'\r\n\r\n'*}
  body=${answer#*$'\r\n\r\n'}
  # A proxy may send "100 Continue" first, so use the last head.
  while [[ $body == HTTP/* ]]; do
    head=${body%%$'\r\n\r\n'*}
    body=${body#*$'\r\n\r\n'}
  done
  status=${head#* }
  status=${status:0:3}
  remaining=$(header x-ratelimit-remaining)
  server=$(header x-server-id)
  location=$(header location)
  printf '%3d  %-7s %s  remaining %3s  %s\n' \
    "$number" "$method" "$status" "${remaining:-?}" "${server:-?}"
}

# expect STATUSES REMAINING: checks the response to the last request.
expect() {
  [ "$number$status" != 1429 ] ||
    differ "the quota is already used up; try again in $(header retry-after) seconds"
  [[ " $1 " == *" $status "* ]] || differ "status $status, expected ${1// / or }"
  [ "$remaining" = "$2" ] || differ "remaining '$remaining', expected $2"
  [ -n "$server" ] || differ 'the response has no X-Server-Id'
  expect_headers
  expect_turn
}

# matches NAME PATTERN: checks that the entire header matches.
matches() {
  local value
  value=$(header "$1")
  [[ $value =~ ^$2$ ]] || differ "$1 '$value', expected a match of $2"
}

# expect_headers: checks that the rate limit headers are valid and consistent.
expect_headers() {
  matches RateLimit-Policy '"([!-~]+)";q=([0-9]+);w=([0-9]+)'
  [ "${BASH_REMATCH[2]}" = 100 ] || differ "RateLimit-Policy has q=${BASH_REMATCH[2]}, expected 100"
  [ "${BASH_REMATCH[3]}" = "$window" ] ||
    differ "RateLimit-Policy has w=${BASH_REMATCH[3]}, expected $window; see --window in -h"
  : "${policy:=$(header RateLimit-Policy)}"
  [ "$(header RateLimit-Policy)" = "$policy" ] ||
    differ "RateLimit-Policy '$(header RateLimit-Policy)', expected '$policy' as before"

  matches RateLimit '"([!-~]+)";r=([0-9]+)(;t=[0-9]+)?'
  [ "\"${BASH_REMATCH[1]}\"" = "${policy%%;*}" ] ||
    differ "RateLimit has policy \"${BASH_REMATCH[1]}\", expected ${policy%%;*}"
  [ "${BASH_REMATCH[2]}" = "$remaining" ] ||
    differ "RateLimit has r=${BASH_REMATCH[2]}, but X-RateLimit-Remaining is $remaining"

  matches X-RateLimit-Limit 100
  matches X-RateLimit-Reset '[1-9][0-9]{9}'
  if [ "$status" = 429 ]; then
    matches Retry-After '[1-9][0-9]*'
    [ "${BASH_REMATCH[0]}" -le "$window" ] ||
      differ "Retry-After ${BASH_REMATCH[0]} is longer than the window of $window seconds"
  else
    [ -z "$(header Retry-After)" ] || differ 'Retry-After on an allowed request'
  fi
}

# expect_turn: checks the number of servers, and that they respond in turn.
expect_turn() {
  local behind
  if [ -z "$expected_servers" ]; then
    behind=$(header Server)
    if [[ $behind == nginx* ]]; then expected_servers=3; else expected_servers=1; fi
  fi
  [[ " ${distinct[*]-} " == *" $server "* ]] || distinct+=("$server")
  [ "${#distinct[@]}" -le "$expected_servers" ] ||
    differ "${#distinct[@]} servers have responded (${distinct[*]}), expected $expected_servers"
  # The servers respond in the order of their first responses.
  local due=${distinct[(number - 1) % expected_servers]-another}
  [ "$server" = "$due" ] || differ "$server answered out of turn, expected $due"
}

create() {
  send POST /items '{"name":"balancer"}'
  expect 201 "$1"
  # A load balancer may put its own address in front.
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
  # Each server has its own items, so this item may be on another server.
  send DELETE "${items[deleted]}"
  deleted=$((deleted + 1))
  expect '204 404' "$left"
done
create 0

send GET /items
expect 429 0
[ -n "$(member title)" ] || differ 'the body has no title'
[ -n "$(member detail)" ] || differ 'the body has no detail'
limit=$(member limit)
[ "$limit" = 100 ] || differ "the body has limit '$limit', expected 100"
plural=s
[ "$window" = 1 ] && plural=''
named=$(member window)
[ "$named" = "$window second$plural" ] ||
  differ "the body has window '$named', expected '$window second$plural'"
named=$(member server_id)
[ "$named" = "$server" ] || differ "the body has server_id '$named', but X-Server-Id is '$server'"
denied=$body

# The quota is used up: every replica denies every request, whatever its cost.
kinds=('POST /items' 'SEARCH /items?q=balancer' 'DELETE /items/1' 'HEAD /items' 'PUT /items/1')
for ((i = 0; i < ${#kinds[@]} || i < expected_servers; i++)); do
  kind=${kinds[i % ${#kinds[@]}]}
  send "${kind%% *}" "${kind#* }"
  expect 429 0
done

if [ "$wait_it_out" = yes ]; then
  # Get a fresh Retry-After for the request that is repeated after the wait.
  send GET /items
  expect 429 0
  retry_after=$(header Retry-After)
  printf '     waiting %s s, as Retry-After says\n' "$retry_after"
  sleep "$retry_after"
  send GET /items
  [ "$status" = 200 ] || differ "status $status after waiting for Retry-After, expected 200"
  expect_headers
  expect_turn
fi

printf '\n%s\n' "$denied"
if [ "${#distinct[@]}" -gt 1 ]; then
  printf '\n%d servers took turns: %s\n' "${#distinct[@]}" "${distinct[*]}"
fi
printf '\nOK: %d requests, all as expected.\n' "$number"
