"""What one tenant may store must not keep a command from reading everybody else's objects."""

import json

import pytest
from click.testing import CliRunner

from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import Namespace, api_client
from webhook.commands import main

LEVELS = 4_900
"""Of JSON in the 10 KiB that a driver's parameters may have (`OpaqueParametersMaxLength`)."""
NESTED = "[" * LEVELS + "]" * LEVELS
TITLE = "\x1b]0;renamed\x07 \x9b2J \u202e\x7f"
"""What names the window of a terminal, empties it, and turns text around."""


def event(namespace: str, name: str, last: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "train", "namespace": namespace},
        "type": "Warning",
        "reason": f"FailedCreate{TITLE}",
        "message": f'admission webhook "x.gpu-admission.dev" denied the request: {TITLE}<script>',
        "lastTimestamp": last,
    }


def claim_template() -> str:
    parameters = {"driver": "gpu.example.com", "parameters": {"nested": "NESTED"}}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]
    devices = {"requests": requests, "config": [{"opaque": parameters}]}
    template = {"metadata": {"name": "nested"}, "spec": {"spec": {"devices": devices}}}
    return json.dumps(template).replace('"NESTED"', NESTED)


@pytest.fixture
def hostile(plane: ControlPlane) -> Namespace:
    team, api = Namespace(plane), api_client(plane)
    for name, last in (("never", "0000-01-01T00:00:00Z"), ("late", "9999-12-31T23:59:59Z")):
        api.post(team.path("events"), json.dumps(event(team.name, name, last)).encode())
    templates = f"/apis/resource.k8s.io/v1/namespaces/{team.name}/resourceclaimtemplates"
    api.post(templates, claim_template().encode())
    team.pod("train")
    return team


COMMANDS = (
    *("status", "status -o json", "scan", "scan -o json", "scan -o html"),
    *("why pod/train", "why pod/train -o json", "quota", "quota -o json"),
    *("doctor", "doctor -o json", "classes -o json"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_object_of_a_tenant_that_cannot_be_read_stops_no_command(
    plane: ControlPlane, hostile: Namespace, command: str
) -> None:
    scope = ["-n", hostile.name] if command.startswith(("status", "why")) else []
    arguments = [*command.split(), *scope, "--kubeconfig", str(plane.kubeconfig())]

    done = CliRunner().invoke(main, arguments)

    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in {0, 1, *([2] if command.startswith("quota") else [])}, done.output
    is_told = "train" in done.output or hostile.name in done.output
    # As text, `scan` names only the largest namespaces, and other tests may have more of them on this API server.
    assert is_told or not command.startswith(("status", "scan -o", "why"))
    assert all(map(str.isprintable, done.output.split("\n")))
    if command.endswith("json") and done.exit_code != 2:
        json.loads(done.stdout)
