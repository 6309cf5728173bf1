"""The files in deploy/: their syntax, and that they start the server with options that it has."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from adar_deploy.cli import app
from adar_serve import Limits
from adar_serve.http_gate import OPEN

FOLDER = Path(__file__).parents[1] / "deploy"
UNIT = FOLDER / "adar-serve.service"
# Fields of the Kubernetes API (core/v1, apps/v1) and of the compose specification that the files may use.
CONTAINER = {
    "name", "image", "args", "command", "ports", "startupProbe", "livenessProbe", "readinessProbe",
    "resources", "securityContext", "volumeMounts", "env",
}  # fmt: skip
POD = {
    "terminationGracePeriodSeconds", "automountServiceAccountToken", "securityContext", "containers",
    "volumes",
}  # fmt: skip
PROBE = {"httpGet", "periodSeconds", "failureThreshold", "initialDelaySeconds", "timeoutSeconds"}
COMPOSE = {
    "build", "image", "command", "ports", "volumes", "read_only", "tmpfs", "cap_drop", "security_opt",
    "mem_limit", "stop_grace_period", "restart", "healthcheck",
}  # fmt: skip


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def parsed(words: list[str]) -> dict[str, Any]:
    """What `adar-deploy serve` makes of these words."""
    assert words[0] == "serve"
    command = typer.main.get_command(app).commands["serve"]
    return command.make_context("serve", words[1:]).params


def check_seconds(params: dict[str, Any], seconds: float) -> None:
    """The server is given the time to drain."""
    assert seconds > params["drain_seconds"] + Limits().seconds


def check_container(container: dict[str, Any]) -> dict[str, Any]:
    assert container.keys() <= CONTAINER
    params = parsed(container["args"])
    ports = {each["containerPort"] for each in container["ports"]}
    assert ports == {params["port"]} | (set() if params["no_grpc"] else {params["grpc_port"]})
    names = {each["name"]: each["containerPort"] for each in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(name)
        if probe is not None:
            assert probe.keys() <= PROBE
            assert probe["httpGet"]["path"] in OPEN
            port = probe["httpGet"]["port"]
            assert names.get(port, port) == params["port"]
    return params


def test_the_deployment_and_its_service_fit_together() -> None:
    deployment, service = documents("kubernetes.yaml")
    assert [(each["apiVersion"], each["kind"]) for each in (deployment, service)] == [
        ("apps/v1", "Deployment"),
        ("v1", "Service"),
    ]
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    pod = template["spec"]
    assert pod.keys() <= POD
    (container,) = pod["containers"]
    params = check_container(container)
    check_seconds(params, pod["terminationGracePeriodSeconds"])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts.keys() == {each["name"] for each in pod["volumes"]}
    assert str(params["tokens"]).startswith(mounts["tokens"])
    named = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} == named


def test_the_inference_service_uses_the_runtime() -> None:
    runtime, service = documents("kserve.yaml")
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"
    params = check_container(container)
    assert params["bundles"] == ["{{.Name}}=/mnt/models"]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"]["name"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_the_container_of_compose_is_only_reachable_from_this_machine() -> None:
    (content,) = documents("docker-compose.yaml")
    (service,) = content["services"].values()
    assert service.keys() <= COMPOSE
    params = parsed(service["command"])
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in (params["port"], params["grpc_port"])]
    check_seconds(params, float(service["stop_grace_period"].removesuffix("s")))
    assert any(path in service["healthcheck"]["test"][-1] for path in OPEN)
    compile(service["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert (FOLDER / service["build"]["context"] / "Dockerfile").is_file()


def test_the_unit_starts_the_server_and_reloads_it() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(UNIT.read_text())
    words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(words[0]).name == "adar-deploy"
    params = parsed(words[1:])
    check_seconds(params, int(unit["Service"]["TimeoutStopSec"]))
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text())
    (tmp_path / UNIT.name).write_text(text)
    words = ["systemd-analyze", "verify", str(tmp_path / UNIT.name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
