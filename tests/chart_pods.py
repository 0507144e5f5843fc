"""Runs the chart's default pods as processes, in the network namespace that tests/chart.py creates.

Usage: chart_pods.py TOLLGATE

The processes have the commands, variables, files and probes of the rendered objects. The only
changes are addresses, because there is no DNS, a timeout for busy machines, and a shorter drain.
"""

import base64
import functools
import http.server
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from chart import CHART, load, pods, run

# Addresses of pods, and what the pods then listen on.
PODS = {"10.244.1.5": "0.0.0.0", "fd00::5": "[::]"}
SETTINGS = {
    "config.target": "http://127.0.0.1:3000",
    "config.store.redis.url": "redis://:${REDIS_PASSWORD}@127.0.0.1:6379",
    "config.store.redis.timeout": "5s",
    "drain.delaySeconds": 3,
}


def main(tollgate):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    serve_target()
    for address, listen in PODS.items():
        subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
        live(tollgate, address, listen)


def live(tollgate, address, listen):
    """The life of a pod with this address."""
    host = f"[{address}]" if ":" in address else address
    with tempfile.TemporaryDirectory() as folder:
        objects = render(listen, limit=3)
        secret = next(it["data"] for it in objects if it["kind"] == "Secret")
        secret = {name: base64.b64decode(value).decode() for name, value in secret.items()}
        volume = Volume(Path(folder, "tollgate"))
        volume.update(objects)
        container, redis = (it["spec"]["containers"][0] for it in pods(objects))
        redis = start_redis(redis, secret, folder)
        gateway = start_gateway(container, secret, tollgate, volume, address)
        for probe in ("readinessProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            wait(probe, lambda: get(f"http://{host}:8081{path}")[0] == 200)

        metrics = f"http://{host}:8081/metrics"
        assert get(metrics)[0] == 401
        available = 'tollgate_store_available{store="redis"} 1'
        wait("Redis", lambda: available in get(metrics, secret["TOLLGATE_ADMIN_TOKEN"])[2])
        statuses = [get(f"http://{host}:8080/")[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 429], statuses
        print(f"ok  limits in Redis, and metrics at {metrics}")

        volume.update(render(listen, limit=5))
        wait("a changed ConfigMap applies", lambda: "q=5" in get(f"http://{host}:8080/")[1])
        print("ok  a changed ConfigMap applies without a restart")

        gateway.send_signal(signal.SIGTERM)
        wait("draining", lambda: get(f"http://{host}:8081/readyz")[0] == 503)
        assert get(f"http://{host}:8080/")[0] == 200, "no new connections while draining"
        assert gateway.wait(timeout=20) == 0
        redis.terminate()
        redis.wait(timeout=20)
        print("ok  a pod that drains is not ready, serves new connections, and ends")


def render(listen, limit):
    settings = {**SETTINGS, "listenAddress": listen, "config.client.limit": limit}
    options = [it for name, value in settings.items() for it in ("--set", f"{name}={value}")]
    values = CHART / "ci/default-values.yaml"
    return load(run("helm", "template", "tollgate", CHART, "--values", values, *options))


def serve_target():
    """A service that answers every GET with 200."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Target)
    threading.Thread(target=server.serve_forever, daemon=True).start()


class Target(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Volume:
    """A volume of a ConfigMap. The kubelet replaces all files at once with the link `..data`."""

    def __init__(self, folder):
        self.folder, self.version = folder, 0
        folder.mkdir()

    def update(self, objects):
        data = next(it["data"] for it in objects if it["kind"] == "ConfigMap")
        self.version += 1
        version = self.folder / f"..{self.version}"
        version.mkdir()
        for name, text in data.items():
            (version / name).write_text(text)
            if self.version == 1:
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")


def start_redis(container, secret, folder):
    keys = {it["name"]: it["valueFrom"]["secretKeyRef"]["key"] for it in container["env"]}
    environment = {**os.environ, **{name: secret[key] for name, key in keys.items()}}
    command = [expand(argument, environment) for argument in container["args"]]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    for probe in ("readinessProbe", "livenessProbe"):
        command = container[probe]["exec"]["command"]
        check = functools.partial(subprocess.run, command, env=environment, capture_output=True)
        wait(probe, lambda: check().returncode == 0)
    without = {name: value for name, value in environment.items() if name != "REDISCLI_AUTH"}
    denied = subprocess.run(["redis-cli", "ping"], env=without, capture_output=True, text=True)
    assert "NOAUTH" in denied.stdout, "Redis needs no password"
    return process


def start_gateway(container, secret, tollgate, volume, address):
    environment = {"PATH": os.environ["PATH"], **secret}
    for variable in container["env"]:
        value = variable.get("value")
        if value is None:
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
            value = address
        environment[variable["name"]] = expand(value, environment)
    assert container["command"][0] == "tollgate"
    command = [argument.replace("/etc/tollgate", str(volume.folder))
               for argument in container["command"][1:]]
    log = open(volume.folder.parent / "log", "w+")
    return subprocess.Popen([tollgate, *command], env=environment, stdout=log, stderr=log)


def expand(text, environment):
    """Replaces $(NAME), as Kubernetes does in commands and variables."""
    return re.sub(r"\$\((\w+)\)", lambda it: environment[it[1]], text)


def get(url, token=None):
    """The status, the header with the quota, and the body."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, policy_of(response), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, policy_of(error), ""
    except OSError:
        return 0, "", ""


def policy_of(response):
    return response.headers["RateLimit-Policy"] or ""


def wait(what, is_so, seconds=20):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
