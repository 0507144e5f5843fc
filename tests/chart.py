#!/usr/bin/env python3
"""Checks the chart in deploy/helm/tollgate with helm and kubectl, without a cluster.

Usage: tests/chart.py [--bless] [TOLLGATE]

For each deploy/helm/tollgate/ci/*-values.yaml:

* `helm lint` reports no problem, and a packaged chart renders the same objects;
* every object follows the schema of its kind, without unknown fields;
* names agree: selectors, ports, Secrets, ConfigMaps and volumes;
* every pod follows the Pod Security Standard `restricted`;
* `tollgate check` accepts the files in the ConfigMap, and promtool the alerts.

The objects of default-values.yaml are those in ci/default.yaml; --bless writes this file. Wrong
values are rejected, an upgrade keeps the Secret, and the commands in docs/how-to/kubernetes.md run.
Finally, chart_pods.py runs the default pods in a network namespace.

TOLLGATE is the program, by default target/debug/tollgate. Needs helm (3 or 4), kubectl, promtool,
redis-server, unshare and ip, and installs schemas from PyPI below target/tools. Exit codes: 0 all
checks passed, 1 a check failed, 2 the checks could not run.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy/helm/tollgate"
DEFAULT = CHART / "ci/default.yaml"
PAGE = ROOT / "docs/how-to/kubernetes.md"
PROGRAMS = ["helm", "kubectl", "promtool", "redis-server", "redis-cli", "unshare", "ip"]
SCHEMAS = ["kubernetes-validate==1.37.0", "cloudcoil.models.prometheus_operator==0.80.1.0"]
# The oldest version that Chart.yaml allows, and the newest with schemas.
VERSIONS = ["1.27", "1.37"]
# Variables in the files of ci/.
VARIABLES = {"REDIS_PASSWORD": "secret", "KEY_SECRET": "secret", "REDIS_URL": "redis://redis:26379"}

# Wrong values, and a pattern of the error. Helm 3 and 4 word the errors of the schema differently.
WRONG = [
    ([], "set config.target to the URL"),
    (["replicaCount=two"], "replicaCount.*integer"),
    (["replicas=3"], "replicas.* not allowed"),
    (["config.target=http://app:3000", "redis.deploy=false"], "set config.store.redis.url"),
]


def main():
    arguments = [it for it in sys.argv[1:] if it != "--bless"]
    if any(it.startswith("-") for it in arguments):
        print(__doc__)
        return
    tollgate = Path(arguments[0] if arguments else ROOT / "target/debug/tollgate").resolve()
    prepare(tollgate)
    with tempfile.TemporaryDirectory() as folder:
        sets = sorted((CHART / "ci").glob("*-values.yaml"))
        assert len(sets) >= 8, sets
        run("helm", "package", CHART, "--destination", folder)
        package = next(Path(folder).glob("*.tgz"))
        for values in sets:
            run("helm", "lint", "--strict", CHART, "--values", values)
            text = render(CHART, "--values", values)
            assert render(package, "--values", values) == text, f"{package.name} differs"
            check(load(text), tollgate, Path(folder))
            print(f"ok  {values.name}")
        check_default("--bless" in sys.argv)
        check_wrong_values()
        check_kept_secret(Path(folder))
        check_version()
        check_page(tollgate, Path(folder))
        namespace = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork"]
        pods = ROOT / "tests/chart_pods.py"
        print(run(*namespace, "--kill-child", sys.executable, pods, tollgate), end="")


def prepare(tollgate):
    """Finds the programs, and installs the schemas if they are missing."""
    for program in [*PROGRAMS, tollgate]:
        if not shutil.which(program):
            unready(f"{program} is missing; install it, or see tests/chart.py --help")
    folder = ROOT / "target/tools/kubernetes-schemas"
    if not folder.exists():
        print(f"Installing {' and '.join(SCHEMAS)} from PyPI into {folder}.")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *SCHEMAS]
        if subprocess.run(pip).returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            unready("pip cannot install the schemas; see its output above")
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    from kubernetes_validate import utils

    # The schemas are large files.
    utils.schema_contents = functools.cache(utils.schema_contents)


def unready(problem):
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)


def run(*command, stdin=None):
    """The output of a command, which must succeed."""
    command = [str(it) for it in command]
    environment = {**VARIABLES, **os.environ}
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def render(chart, *options):
    """The objects as text, with the random values of the Secret replaced by `random`."""
    text = run("helm", "template", "tollgate", chart, *options)
    secret = r"^(  (?:TOLLGATE_ADMIN_TOKEN|KEY_SECRET|REDIS_PASSWORD): )[A-Za-z0-9+/]{54}==$"
    return re.sub(secret, r"\1cmFuZG9t", text, flags=re.MULTILINE)


def load(text):
    import yaml

    return [it for it in yaml.safe_load_all(text) if it]


def check(objects, tollgate, folder):
    for it in objects:
        try:
            check_schema(it)
        except Exception as error:
            raise AssertionError(f"{it['kind']} {it['metadata']['name']}: {error}") from error
    check_names(objects)
    for pod in pods(objects):
        check_restricted(pod)
    for it in objects:
        if it["kind"] == "ConfigMap" and "limits.yaml" in it["data"]:
            for name, text in it["data"].items():
                run(tollgate, "check", "--without-files", "-", stdin=text)
        if it["kind"] == "PrometheusRule":
            rules = folder / "rules.yml"
            rules.write_text(json.dumps(it["spec"]))
            run("promtool", "check", "rules", rules)


def check_schema(it):
    from cloudcoil.models.prometheus_operator import v1 as operator
    from kubernetes_validate import validate

    if it["apiVersion"] == "monitoring.coreos.com/v1":
        getattr(operator, it["kind"]).model_validate(it, extra="forbid")
        return
    for version in VERSIONS:
        validate(it, version, strict=True)


def pods(objects):
    return [it["spec"]["template"] for it in objects if it["kind"] in ("Deployment", "StatefulSet")]


def check_names(objects):
    """Checks references that no schema sees."""
    def names(kind):
        return {it["metadata"]["name"] for it in objects if it["kind"] == kind}

    def selected(selector):
        found = [it for it in pods(objects) if selector.items() <= it["metadata"]["labels"].items()]
        assert len(found) == 1, f"{selector} selects {len(found)} kinds of pods"
        return {port["name"] for container in found[0]["spec"]["containers"]
                for port in container["ports"]}

    for it in objects:
        kind, spec = it["kind"], it.get("spec", {})
        if kind == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= selected(spec["selector"])
        elif kind == "ServiceMonitor":
            wanted = spec["selector"]["matchLabels"].items()
            ports = [port["name"] for service in objects if service["kind"] == "Service"
                     and wanted <= service["metadata"]["labels"].items()
                     for port in service["spec"]["ports"]]
            # Each pod is scraped once.
            assert [ports.count(endpoint["port"]) for endpoint in spec["endpoints"]] == [1], ports
        elif kind == "NetworkPolicy":
            ports = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
            # A port without a rule would be closed.
            assert sorted(ports) == sorted(selected(spec["podSelector"]["matchLabels"])), ports
        elif kind in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            selected(spec["selector"]["matchLabels"])
        elif kind == "HorizontalPodAutoscaler":
            assert spec["scaleTargetRef"]["name"] in names("Deployment")
            [deployment] = [it for it in objects if it["kind"] == "Deployment"]
            assert "replicas" not in deployment["spec"]
    check_pod_names(objects, names)


def check_pod_names(objects, names):
    # Secrets in ci/ that the chart does not create.
    given = {"rate-limits", "example-com"}
    for pod in (it["spec"] for it in pods(objects)):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            ports = {port["name"] for port in container["ports"]}
            secrets = [it["secretRef"]["name"] for it in container.get("envFrom", [])]
            for variable in container["env"]:
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                secrets += [reference["name"]] if reference else []
            assert set(secrets) <= names("Secret") | given, secrets
            claims = {claim["metadata"]["name"] for it in objects
                      for claim in it.get("spec", {}).get("volumeClaimTemplates", [])}
            assert {it["name"] for it in container["volumeMounts"]} <= volumes.keys() | claims
            for probe in (container["readinessProbe"], container["livenessProbe"]):
                assert "exec" in probe or probe["httpGet"]["port"] in ports
        for volume in volumes.values():
            assert volume.get("configMap", {}).get("name") in names("ConfigMap") | {None}


def check_restricted(pod):
    """The Pod Security Standard `restricted`, and a read-only root."""
    context = pod["spec"]["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    for container in pod["spec"]["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def check_default(bless):
    text = render(CHART, "--values", CHART / "ci/default-values.yaml")
    if bless:
        DEFAULT.write_text(text)
    known = DEFAULT.read_text() if DEFAULT.exists() else ""
    with tempfile.NamedTemporaryFile("w") as rendered:
        rendered.write(text)
        rendered.flush()
        diff = ["diff", "--unified", str(DEFAULT), rendered.name]
        assert text == known, (
            subprocess.run(diff, capture_output=True, text=True).stdout
            + "If these changes are intended, run tests/chart.py --bless."
        )


def check_wrong_values():
    for settings, error in WRONG:
        options = [option for setting in settings for option in ("--set", setting)]
        done = subprocess.run(["helm", "template", CHART, *options], capture_output=True, text=True)
        assert done.returncode != 0 and re.search(error, done.stderr), (settings, done.stderr)


def check_kept_secret(folder):
    """An upgrade keeps the values of the Secret, because a new KEY_SECRET grants fresh quotas."""
    # Helm 4 asks the server for every kind, so keep only the Secret.
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    for template in (chart / "templates").glob("*.*"):
        if template.name not in ("_helpers.tpl", "secret.yaml"):
            template.unlink()
    values = {"KEY_SECRET": "a2VwdA=="}
    release = {"meta.helm.sh/release-name": "tollgate", "meta.helm.sh/release-namespace": "default"}
    owner = {"app.kubernetes.io/managed-by": "Helm"}
    owned = {"name": "tollgate", "labels": owner, "annotations": release}
    secrets = {"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}
    answers = {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [secrets]},
        "/api/v1/namespaces/default/secrets/tollgate": {
            "apiVersion": "v1", "kind": "Secret", "metadata": owned, "data": values,
        },
    }

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path.split("?")[0])
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer or {"kind": "Status", "code": 404}).encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{api.server_port}"
        server = ["--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", url]
        [secret] = load(run("helm", "template", "tollgate", chart, *server))
        api.shutdown()
    assert secret["data"]["KEY_SECRET"] == values["KEY_SECRET"], secret
    assert len(secret["data"]["REDIS_PASSWORD"]) > 40, secret


def check_version():
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {version}\nappVersion: {version}\n" in chart, version


def check_page(tollgate, folder):
    """Runs the shell commands of the page, with the values that it shows."""
    text = PAGE.read_text()
    for name in ("deploy", "examples"):
        (folder / name).symlink_to(ROOT / name)
    values = re.findall(r"```yml\n(.*?)```", text, re.DOTALL)
    for settings in values:
        (folder / "values.yaml").write_text(settings)
        render(CHART, "--values", folder / "values.yaml")
    (folder / "values.yaml").write_text(values[0])
    path = f"{tollgate.parent}:{os.environ['PATH']}"
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4, blocks
    for block in blocks:
        run("env", "-C", folder, f"PATH={path}", "bash", "-euo", "pipefail", "-c", block)
    for file in folder.glob("*.yaml"):
        if file.name != "values.yaml":
            check(load(file.read_text()), tollgate, folder)


if __name__ == "__main__":
    main()
