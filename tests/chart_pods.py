"""Runs the chart's default pods as processes, in the network namespace that tests/chart.py creates.

Usage: chart_pods.py TOLLGATE

The processes have the commands, variables, files and probes of the rendered objects. The only
changes are addresses, because there is no DNS, a timeout for busy machines, and a shorter drain.
"""

import base64
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

POD = "10.244.1.5"
SETTINGS = {
    "config.target": "http://127.0.0.1:3000",
    "config.store.redis.url": "redis://:${REDIS_PASSWORD}@127.0.0.1:6379",
    "config.store.redis.timeout": "5s",
    "drain.delaySeconds": 3,
}


def main(tollgate):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{POD}/32", "dev", "lo"], check=True)
    serve_target()
    with tempfile.TemporaryDirectory() as folder:
        objects = render(limit=3)
        secret = next(it["data"] for it in objects if it["kind"] == "Secret")
        secret = {name: base64.b64decode(value).decode() for name, value in secret.items()}
        volume = Volume(Path(folder, "tollgate"))
        volume.update(objects)
        gateway, redis = (it["spec"]["containers"][0] for it in pods(objects))
        start_redis(redis, secret, folder)
        gateway = start_gateway(gateway, secret, tollgate, volume)

        metrics = f"http://{POD}:8081/metrics"
        assert get(metrics)[0] == 401
        available = 'tollgate_store_available{store="redis"} 1'
        wait("Redis", lambda: available in get(metrics, secret["TOLLGATE_ADMIN_TOKEN"])[2])
        statuses = [get(f"http://{POD}:8080/")[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 429], statuses
        print("ok  limits in Redis, and metrics at the pod's address")

        volume.update(render(limit=5))
        wait("a changed ConfigMap applies", lambda: "q=5" in get(f"http://{POD}:8080/")[1])
        print("ok  a changed ConfigMap applies without a restart")

        gateway.send_signal(signal.SIGTERM)
        wait("draining", lambda: get(f"http://{POD}:8081/readyz")[0] == 503)
        assert get(f"http://{POD}:8080/")[0] == 200, "no new connections while draining"
        assert gateway.wait(timeout=20) == 0
        print("ok  a pod that drains is not ready, serves new connections, and ends")


def render(limit):
    settings = {**SETTINGS, "config.client.limit": limit}
    options = [it for name, value in settings.items() for it in ("--set", f"{name}={value}")]
    values = CHART / "ci/default-values.yaml"
    return load(run("helm", "template", "tollgate", CHART, "--values", values, *options))


def serve_target():
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
    expand = lambda argument: re.sub(r"\$\((\w+)\)", lambda it: environment[it[1]], argument)
    command = [expand(argument) for argument in container["args"]]
    subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    for probe in ("readinessProbe", "livenessProbe"):
        command = container[probe]["exec"]["command"]
        is_up = lambda: subprocess.run(command, env=environment, capture_output=True).returncode == 0
        wait(probe, is_up)
    without = {name: value for name, value in environment.items() if name != "REDISCLI_AUTH"}
    denied = subprocess.run(["redis-cli", "ping"], env=without, capture_output=True, text=True)
    assert "NOAUTH" in denied.stdout, "Redis needs no password"


def start_gateway(container, secret, tollgate, volume):
    addresses = [it["name"] for it in container["env"]
                 if it["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"]
    environment = {"PATH": os.environ["PATH"], **secret, **{name: POD for name in addresses}}
    assert container["command"][0] == "tollgate"
    command = [argument.replace("/etc/tollgate", str(volume.folder))
               for argument in container["command"][1:]]
    log = open(volume.folder.parent / "log", "w+")
    process = subprocess.Popen([tollgate, *command], env=environment, stdout=log, stderr=log)
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        check = container[probe]["httpGet"]
        url = f"http://{POD}:{ports[check['port']]}{check['path']}"
        wait(probe, lambda: get(url)[0] == 200)
    return process


def get(url, token=None):
    """The status, the header with the quota, and the body."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers["RateLimit-Policy"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["RateLimit-Policy"], ""
    except OSError:
        return 0, "", ""


def wait(what, is_so, seconds=20):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
