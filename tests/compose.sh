#!/usr/bin/env bash
# Tests the container setups. Each part uses free ports and a project that is removed at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

parts='replicas addresses page prometheus gateway'

usage() {
  cat <<'HELP'
Usage: tests/compose.sh [PART...]

Builds the images, starts containers, and runs these parts, by default all:

  replicas    docker-compose.yml: the shared quota, outages and shutdown
  addresses   the same with a limit per client address
  page        the same with deploy/page.yml: each replica's live page
  prometheus  the same with Prometheus: the collected metrics
  gateway     examples/gateway/docker-compose.yml: limits, reloads and shutdown

Exit codes: 0 all checks passed, 1 a check failed, 2 no Docker engine or invalid arguments.
HELP
}

wrong() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

# Fails unless the condition holds. The variable `seen` describes the observed state.
check() { # description, condition
  if "${@:2}"; then
    printf 'ok: %s (%.200s)\n' "$1" "$(tr -s '[:space:]' ' ' <<<"$seen")"
  else
    printf 'error: expected that %s, but saw: %s\n' "$1" "$seen" >&2
    exit 1
  fi
}

# Repeats a condition that updates `seen`, for up to these seconds.
eventually() { # seconds, description, condition
  local end=$((SECONDS + $1))
  until "${@:3}" || [ "$SECONDS" -ge "$end" ]; do sleep 0.2; done
  check "${@:2}"
}

seen_has() { [[ $seen == *"$1"* ]]; }

compose() {
  local file files=()
  for file in $project_files; do files+=(--file "$file"); done
  "${engine[@]}" --project-name "tollgate-test-$$" "${files[@]}" "$@"
}

# Runs a test with a project, and removes the project.
with_project() { # test, files, variables with ports
  project_files=$2
  # shellcheck disable=SC2086
  free_ports $3
  printf '\n== %s: %s\n' "$1" "$2"
  trap finish EXIT
  "$1"
}

finish() {
  local code=$?
  if [ "$code" != 0 ]; then
    compose ps --all || :
    compose logs --tail=40 || :
  fi
  compose down --volumes --remove-orphans --timeout 5
  exit "$code"
}

free_ports() {
  # Outside of the range from which Linux takes ports for clients.
  local port=$((20000 + RANDOM % 10000)) name
  for name; do
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    export "$name=$port"
    port=$((port + 1))
  done
}

up() {
  compose up --build --detach "$@"
  eventually 90 'every container is healthy' are_healthy
}

are_healthy() {
  seen=$(inspect '{{.Name}} {{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}')
  [ "$seen" ] && ! grep -qvE ' (healthy|running)$' <<<"$seen"
}

# Stops all containers. An exit code other than 0 means that Docker had to kill a container.
stop_gracefully() {
  compose stop
  seen=$(inspect '{{.Name}} {{.State.ExitCode}}')
  check 'every container exits by itself with code 0' have_exited
}

have_exited() { [ "$seen" ] && ! grep -qv ' 0$' <<<"$seen"; }

inspect() { # format
  compose ps --all --quiet | xargs docker inspect --format "$1"
}

# The host address that publishes a service's port. Empty if the port is not published.
published() { # service, port
  # For an unpublished port, docker-compose prints the port 0 or no line.
  compose port "$@" 2>/dev/null | grep -v ':0$' || :
}

# The response, or the part that arrived within 5 s.
get() { curl --silent --max-time 5 "$@" || :; }

status() { get --output /dev/null --write-out '%{http_code}' "$@"; }

statuses() { # number, curl's arguments
  for _ in $(seq "$1"); do printf '%s ' "$(status "${@:2}")"; done
}

head_of() { get --dump-header - --output /dev/null "$@" | tr -d '\r' | tr '[:upper:]' '[:lower:]'; }

replicas() {
  up
  local url=http://127.0.0.1:$TOLLGATE_PORT
  bash tests/balancer.sh --wait "$url"

  seen=$(compose exec -T api1 id -u)
  check 'the replicas do not run as root' [ "$seen" != 0 ]
  seen=$(compose exec -T redis redis-cli config get maxmemory-policy)
  check 'Redis evicts nothing' seen_has noeviction
  local port
  for port in 'redis 6379' 'api1 3000' 'api1 9100'; do
    # shellcheck disable=SC2086
    seen=$(published $port)
    check "the host does not publish the port of $port" [ -z "$seen" ]
  done

  compose kill api2
  # The script used up the quota, so any answer from a replica suffices.
  seen=$(statuses 12 "$url/items")
  check 'with a replica killed the other replicas answer' grep -qxE '((200|429) ){12}' <<<"$seen"
  seen=$(status "$url/nginx-health")
  check 'nginx remains healthy' [ "$seen" = 200 ]
  compose start api2
  eventually 90 'every container is healthy' are_healthy

  compose stop redis
  # The first requests to each replica wait for the timeout. All requests fit into the replicas'
  # local fallbacks, which allow half of the quota each.
  local reduced=0
  for _ in {1..24}; do
    seen=$(head_of "$url/items")
    if is_allowed && is_reduced; then reduced=$((reduced + 1)); fi
  done
  check "without Redis each replica decides with its local fallback: $reduced of 24" [ "$reduced" = 24 ]
  compose start redis
  eventually 30 'Redis decides again after its restart' is_decided_by_redis "$url/items"
  stop_gracefully
}

is_allowed() { [[ $seen =~ ^[^$'\n']*' 200' ]]; }

is_reduced() { seen_has $'\nx-ratelimit-reason: temporary-reduced-capacity'; }

is_decided_by_redis() { # URL
  seen=$(head_of "$1")
  is_allowed && ! is_reduced
}

# nginx sets the client's address, and a client cannot forge it.
addresses() {
  export TOLLGATE_KEY=ip TOLLGATE_TRUSTED_PROXIES=private TOLLGATE_LIMIT=3 TOLLGATE_COSTS=one
  up
  seen=$(for n in {1..5}; do
    status --header "X-Forwarded-For: 203.0.113.$n" "http://127.0.0.1:$TOLLGATE_PORT/items"
    printf ' '
  done)
  check 'a forged X-Forwarded-For gets no fresh quota' [ "$seen" = '200 200 200 429 429 ' ]
}

page() {
  export TOLLGATE_ADMIN_TOKEN=0123456789abcdef
  up
  # The origin that a browser sends for the first replica's page.
  local origin=http://127.0.0.1:$PAGE1_PORT number url
  for number in 1 2 3; do
    local port=PAGE${number}_PORT
    url=http://127.0.0.1:${!port}
    seen=$(published "api$number" 9100)
    check 'the page listens only on this machine' [ "${seen%:*}" = 127.0.0.1 ]
    seen=$(get "$url/")
    check 'the admin address shows a page' seen_has '<title>Tollgate</title>'
    seen=$(get --include --no-buffer --header "Origin: $origin" "$url/events" | tr -d '\r')
    check "the page of api1 may read the events of api$number" \
      seen_has "access-control-allow-origin: $origin"
    check "the page of api1 receives events of api$number" seen_has "{\"server\":\"api$number\""
    seen="$(status "$url/top") $(status --header "Authorization: Bearer $TOLLGATE_ADMIN_TOKEN" "$url/top")"
    check "only the token reveals the denied clients of api$number" [ "$seen" = '401 200' ]
  done
  seen=$(head_of --header "Origin: $origin" "http://127.0.0.1:$TOLLGATE_PORT/items")
  check 'the page may call nginx' seen_has 'access-control-allow-origin: '
  stop_gracefully
}

# Does not start Grafana, because it only queries Prometheus; tests/tests/suite/observed checks its
# queries.
prometheus() {
  export TOLLGATE_LIMIT=20
  # Named services start even without their profile.
  up nginx prometheus
  seen=$(statuses 30 "http://127.0.0.1:$TOLLGATE_PORT/items")
  check 'ten requests are denied' [ "$(grep -o 429 <<<"$seen" | wc -l)" = 10 ]
  local url=http://127.0.0.1:$PROMETHEUS_PORT/api/v1
  eventually 60 'Prometheus knows three replicas' has_value "$url" 'count(up{job="tollgate"} == 1)' 3
  eventually 60 'Prometheus knows the denied requests' has_value "$url" \
    'sum(tollgate_decisions_total{policy="global",outcome="deny"})' 10
  eventually 60 'Prometheus knows the remaining quota' has_value "$url" tollgate:remaining:ratio 0
  # The first evaluation of each rule takes some seconds.
  eventually 60 'all rules can be evaluated' rules_are_healthy "$url"
  stop_gracefully
}

has_value() { # URL, query, expected
  seen=$(get --get --data-urlencode "query=$2" "$1/query")
  seen_has ",\"$3\"]"
}

rules_are_healthy() { # URL
  local rules healthy all
  rules=$(get "$1/rules")
  healthy=$(grep -o '"health":"ok"' <<<"$rules" | wc -l)
  all=$(grep -o '"health":' <<<"$rules" | wc -l)
  seen="$healthy of $all"
  [ "$all" -gt 9 ] && [ "$healthy" = "$all" ]
}

# Two gateways with a shared quota in Redis and a configuration file that changes.
gateway() {
  export TOLLGATE_ADMIN_TOKEN=not-a-secret-of-this-test
  local gateways=("http://127.0.0.1:$GATEWAY1_PORT" "http://127.0.0.1:$GATEWAY2_PORT")
  local admin=http://127.0.0.1:$ADMIN_PORT url
  # A queue that sends a request every twelve seconds. By default, Docker kills a container ten
  # seconds after the stop signal.
  cat >"$folder/slow" <<'END'
    - identifier: slow
      path: /items
      method: SEARCH
      strategy: leaky_bucket
      limit: 5
      refillSeconds: 60
END
  sed "/^  apis:\$/r $folder/slow" examples/gateway/shared.yaml >"$folder/original"
  configure cat
  up
  seen=$(compose exec -T gateway1 id -u)
  check 'the gateway does not run as root' [ "$seen" != 0 ]

  local start=$SECONDS
  seen=$(for _ in {1..20}; do statuses 1 "${gateways[0]}/items"; statuses 1 "${gateways[1]}/items"; done)
  check 'both gateways allow ten requests' grep -qxE '(200 ){10}((200|429) ){30}' <<<"$seen"
  # A unit is refilled each second.
  check 'both gateways together exceed no limit' \
    [ "$(grep -o 200 <<<"$seen" | wc -l)" -le $((10 + SECONDS - start + 2)) ]

  for url in /readyz /; do
    seen=$(status "$admin$url")
    check "the admin address has $url" [ "$seen" = 200 ]
  done
  for url in /status /metrics /config; do
    seen="$(status "$admin$url") $(operate status "$admin$url")"
    check "$url needs the token" [ "$seen" = '401 200' ]
  done
  seen=$(published gateway1 8081)
  check 'the admin address listens only on this machine' [ "${seen%:*}" = 127.0.0.1 ]
  seen=$(published gateway2 8081)
  check 'the host does not publish the second admin address' [ -z "$seen" ]
  compose exec -T gateway1 tollgate check /etc/tollgate/shared.yaml

  # A quota of 10 units per 10 s, and of 10 units per 1 s.
  local usual=';q=10;w=10' faster=';q=10;w=1'
  configure sed 's/limit: 60$/limit: 600/'
  for url in "${gateways[@]}"; do
    eventually 20 'a changed limit takes effect' has_quota "$url" "$faster"
  done
  configure sed 's/limit: 60$/limit: many/'
  eventually 20 'an invalid file is reported' reports "$admin/config" '"message".*`many`'
  check 'an invalid file changes no limit' has_quota "${gateways[0]}" "$faster"
  configure cat
  for url in "${gateways[@]}"; do
    eventually 20 'the next valid file takes effect' has_quota "$url" "$usual"
  done

  compose stop redis
  for url in "${gateways[@]}"; do
    # The local fallback starts without earlier charges, so it allows half of the quota.
    seen=$(statuses 40 "$url/items")
    check 'without Redis a gateway allows a part of the quota' grep -q '^200.*429' <<<"$seen"
  done
  compose start redis
  eventually 90 'every container is healthy' are_healthy

  # Repeat until Redis decides and the queue is empty.
  eventually 30 'the first request in a queue does not wait' passes_queue "${gateways[0]}"
  passes_queue "${gateways[0]}" &
  local waiting=$!
  eventually 20 'the second request waits' \
    reports "$admin/metrics" 'tollgate_waiting_requests{policy="slow"} 1'
  stop_gracefully
  seen='no response with status 200'
  check 'the waiting request is answered' wait "$waiting"
}

# Replaces the configuration file, like editors do.
configure() { # command that filters the original file
  "$@" <"$folder/original" >"$folder/new"
  mv "$folder/new" "$folder/shared.yaml"
}

# Adds the admin token.
operate() { # get or status, URL
  "$@" --header "Authorization: Bearer $TOLLGATE_ADMIN_TOKEN"
}

# Whether a line of the admin address's response matches.
reports() { # URL, pattern
  seen=$(operate get "$1" | grep -m 1 "$2")
}

has_quota() { # URL, end of the header
  # The demo's policy has another name.
  seen=$(head_of "$1/items" | grep '^ratelimit-policy: "client";')
  [[ $seen == *"$2" ]]
}

passes_queue() { # URL
  seen=$(status --request SEARCH --max-time 60 "$1/items?q=tea")
  [ "$seen" = 200 ]
}

case ${1-} in -h | --help) usage && exit ;; esac
for part; do [[ " $parts " == *" $part "* ]] || wrong "unknown part $part; see -h"; done
docker info >/dev/null 2>&1 ||
  wrong 'no Docker engine answers `docker info`; cure: start one, or use `cargo xtask up`'
engine=(docker-compose)
if docker compose version >/dev/null 2>&1; then engine=(docker compose); fi
"${engine[@]}" version || wrong 'docker-compose is missing; cure: apt-get install docker-compose'

# A copy of the gateway's configuration, which containers read as another user.
folder=$(mktemp -d)
chmod 755 "$folder"
trap 'rm -rf "$folder"' EXIT
mounted="volumes: ['$folder:/etc/tollgate:ro']"
printf 'services:\n  gateway1: {%s}\n  gateway2: {%s}\n' "$mounted" "$mounted" >"$folder/folder.yml"

for part in ${*:-$parts}; do
  case $part in
    page) (with_project page 'docker-compose.yml deploy/page.yml' \
      'TOLLGATE_PORT PAGE1_PORT PAGE2_PORT PAGE3_PORT') ;;
    prometheus) (with_project prometheus docker-compose.yml 'TOLLGATE_PORT PROMETHEUS_PORT') ;;
    gateway) (with_project gateway "examples/gateway/docker-compose.yml $folder/folder.yml" \
      'GATEWAY1_PORT GATEWAY2_PORT ADMIN_PORT') ;;
    *) (with_project "$part" docker-compose.yml TOLLGATE_PORT) ;;
  esac
done
