"""Configuration from the API server: real `serve` and `controller` processes, real kubectl, real outages."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from click.testing import CliRunner

from tests.builders import gpu_container, pod
from tests.cluster.configuration import (
    KINDS,
    install_configuration_kinds,
    register_reviews,
    unregister_reviews,
)
from tests.cluster.controllers import Command, eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import install_quota_kind
from tests.controlplane.webhook import Webhook
from tests.webhook.serving.served import review
from webhook.commands import main
from webhook.configuration.documents import API_VERSION, Document

JSON = dict[str, Any]
MAX_ONE = {"rules": {"gpu-requests": {"maxPerPod": 1}}}
TWO_GPUS = pod(gpu_container("2"))


class Served:
    def __init__(self, plane: ControlPlane, webhook: Webhook, authority: Path) -> None:
        self.plane = plane
        self.webhook = webhook
        self.client = plane.client()
        self._authority = authority

    def apply(self, *documents: Document) -> None:
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(each.data for each in documents))

    def ready(self) -> tuple[int, JSON]:
        answer = self._request("GET", "/readyz")
        return answer.status, answer.json()

    def configuration(self) -> JSON:
        return dict(self.ready()[1]["configuration"])

    def review(self, document: JSON, namespace: str = "team") -> JSON:
        """Ask about the creation of a pod, as the API server does first; no quota is asked then."""
        document = {**document, "metadata": {**document["metadata"], "namespace": namespace}}
        body = review(document, namespace=namespace)
        answer = self._request("POST", "/mutate?timeout=5s", json=body)
        return dict(answer.json()["response"])

    def refuses_two_gpus(self, namespace: str = "team") -> bool:
        return not self.review(TWO_GPUS, namespace)["allowed"]

    def condition(self, kind: str, name: str) -> JSON:
        _, answer = self.client.get(f"/apis/{API_VERSION}/{KINDS[kind]}/{name}")
        found: list[JSON] = answer.get("status", {}).get("conditions", [])
        return found[0] if found else {}

    def _request(self, method: str, path: str, **fields: Any) -> urllib3.BaseHTTPResponse:
        with urllib3.PoolManager(ca_certs=str(self._authority), retries=False, timeout=30) as pool:
            return pool.request(method, f"https://{self.webhook.address}{path}", **fields)


@pytest.fixture(scope="module")
def started(plane: ControlPlane) -> Iterator[Served]:
    install_configuration_kinds(plane)
    install_quota_kind(plane.client())
    webhook = Webhook(plane, host=40, arguments=("--kubeconfig", plane.kubeconfig()))
    with webhook:
        register_reviews(plane, webhook)
        yield Served(plane, webhook, webhook.folder / "certs" / "ca.crt")
        unregister_reviews(plane)


@pytest.fixture
def served(started: Served) -> Iterator[Served]:
    yield started
    for plural in KINDS.values():
        started.client.delete(f"/apis/{API_VERSION}/{plural}")
    assert eventually(lambda: not started.refuses_two_gpus())
    assert eventually(lambda: not started.configuration()["rejected"])


@pytest.fixture(scope="module")
def controller(started: Served) -> Iterator[Command]:
    command = Command(started.plane, "configuration-controller", "--lease", "configuration")
    command.start()
    yield command
    started.plane.processes.terminate(command.name, grace=30)


def policy(name: str, spec: JSON) -> Document:
    return Document("GPUPolicy", name, spec)


def test_labels_choose_a_policy(served: Served) -> None:
    spec = {"match": {"namespaceSelector": {"matchLabels": {"gpus": "one"}}}, **MAX_ONE}
    served.apply(policy("small", spec))
    served.client.post("/api/v1/namespaces", {"metadata": {"name": "large"}})
    assert eventually(lambda: "small" in served.plane.kubectl("get", "gpupolicies").stdout)

    # A namespace and a pod in it that come at once: the watch has not shown it yet.
    served.client.post("/api/v1/namespaces", {"metadata": {"name": "small", "labels": {"gpus": "one"}}})
    assert eventually(lambda: served.refuses_two_gpus("small"))
    assert not served.refuses_two_gpus("large")

    served.client.patch("/api/v1/namespaces/small", {"metadata": {"labels": {"gpus": None}}})

    assert eventually(lambda: not served.refuses_two_gpus("small"))
    unknown = served.review(TWO_GPUS, "nowhere")["status"]
    assert unknown["code"] == 503
    assert (
        "cannot read the labels of namespace nowhere, which select its policy; try again"
        in unknown["message"]
    )
    assert 'namespaces "nowhere" not found' in unknown["message"]


def test_one_that_got_past_changes_nothing_and_is_reported(served: Served, controller: Command) -> None:
    served.apply(
        policy("default", MAX_ONE), policy("other", {"priority": 1, "match": {"namespaces": ["other"]}})
    )
    assert eventually(served.refuses_two_gpus)
    assert eventually(lambda: served.condition("GPUPolicy", "default").get("status") == "True")
    version = served.configuration()["version"]
    served.webhook.stop()

    served.apply(policy("default", {"rules": {"gpu-class": {"default": "no-such-class"}}}))

    condition = served.condition
    assert eventually(lambda: condition("GPUPolicy", "default").get("reason") == "Invalid")
    reported = condition("GPUPolicy", "default")
    assert reported["message"].startswith(
        "the previous version stays in force:\nspec.rules.gpu-class.default: "
    )
    assert eventually(lambda: valid(controller) == ["gpu_admission_config_valid 0.0"])
    refused = ("get", "events", "--field-selector", "reason=Rejected", "-o", "jsonpath={..message}")
    kept = "the previous version stays in force: spec.rules.gpu-class.default: "
    assert eventually(lambda: kept in served.plane.kubectl(*refused).stdout)
    assert eventually(lambda: condition("GPUPolicy", "other").get("status") == "True")
    # One that starts only now knows what was in force, too.
    served.webhook.start()
    assert eventually(lambda: served.ready()[0] == 200)
    assert eventually(served.refuses_two_gpus)
    assert served.configuration()["version"] == version
    assert "spec.rules.gpu-class.default" in served.configuration()["rejected"][0]
    assert "gpu_admission_config_valid 0.0" in served.webhook.metrics()
    assert f'gpu_admission_config_info{{from="cluster",version="{version}"}} 1.0' in served.webhook.metrics()
    assert f'version="{version}"' in controller.metric("gpu_admission_config_info{")[0]
    # What others apply meanwhile is held back.
    served.apply(policy("other", {"match": {"namespaces": ["other"]}}))
    assert eventually(lambda: condition("GPUPolicy", "other").get("reason") == "HeldBack")
    assert "correct GPUPolicy/default" in condition("GPUPolicy", "other")["message"]
    # Break glass does not depend on it.
    paused = run_pause(served.plane, "default", "--for", "1h", "--reason", "incident")
    assert paused.exit_code == 0, paused.output
    assert eventually(lambda: not served.refuses_two_gpus())
    served.apply(policy("default", MAX_ONE))
    assert eventually(lambda: condition("GPUPolicy", "default").get("reason") == "Accepted")
    assert eventually(lambda: condition("GPUPolicy", "other").get("reason") == "Accepted")
    assert not served.refuses_two_gpus(), "kubectl apply of a file leaves the pause alone"
    assert run_pause(served.plane, command="resume").exit_code == 0
    assert eventually(served.refuses_two_gpus)
    assert eventually(lambda: valid(controller) == ["gpu_admission_config_valid 1.0"])


def valid(controller: Command) -> list[str]:
    return controller.metric("gpu_admission_config_valid")


def run_pause(plane: ControlPlane, *arguments: str, command: str = "pause") -> Any:
    return CliRunner().invoke(
        main, [command, *arguments, "--kubeconfig", str(plane.kubeconfig())], catch_exceptions=False
    )


@pytest.mark.slow
def test_a_pause_lets_in_warns_is_audited_and_ends_by_itself(served: Served) -> None:
    served.apply(policy("default", MAX_ONE), policy("other", {"match": {"namespaces": ["other"]}}))
    assert eventually(served.refuses_two_gpus)

    done = run_pause(served.plane, "default", "--for", "20s", "--reason", "incident 7", "-o", "json")

    [reported] = json.loads(done.stdout)
    until = datetime.fromisoformat(reported["pausedUntil"])
    assert timedelta() < until - datetime.now(UTC) <= timedelta(seconds=20)
    assert (reported["policy"], reported["by"], reported["reason"]) == ("default", "admin", "incident 7")
    assert eventually(lambda: not served.refuses_two_gpus())
    in_words = f"{until:%Y-%m-%d %H:%M:%S} UTC".replace(":00 UTC", " UTC")
    assert served.review(TWO_GPUS)["warnings"] == [
        f"policy default is paused until {in_words}: what it would deny or change is only logged"
    ]
    assert served.webhook.total("gpu_admission_policy_paused_until_timestamp_seconds") == until.timestamp()
    assert eventually(served.refuses_two_gpus)
    assert datetime.now(UTC) >= until
    record = next(each for each in reversed(served.webhook.audit()) if each["verdict"] == "warned")
    assert record["policy"]["name"] == "default"
    assert datetime.fromisoformat(record["policy"]["pausedUntil"]) == until
    assert {finding["outcome"] for finding in record["findings"]} == {"audited"}
    assert "gpu_admission_policies_paused 0.0" in served.webhook.metrics()


def test_resume_ends_a_pause(served: Served) -> None:
    served.apply(policy("default", MAX_ONE))
    assert run_pause(served.plane, "--for", "1h", "--reason", "incident").exit_code == 0
    stored = served.client.get(f"/apis/{API_VERSION}/gpupolicies/default")[1]
    assert stored["metadata"]["annotations"]["gpu-admission.dev/paused-by"] == "admin"
    assert stored["metadata"]["annotations"]["gpu-admission.dev/pause-reason"] == "incident"
    assert eventually(lambda: not served.refuses_two_gpus())

    done = run_pause(served.plane, command="resume")

    assert done.stdout == f"policy default resumed; it was paused until {stored['spec']['pausedUntil']}\n"
    assert eventually(served.refuses_two_gpus)
    stored = served.client.get(f"/apis/{API_VERSION}/gpupolicies/default")[1]
    assert "gpu-admission.dev/paused-by" not in stored["metadata"].get("annotations", {})
    assert run_pause(served.plane, command="resume").stdout == "no policy is paused\n"


@pytest.mark.slow
def test_the_last_good_ones_stay_while_the_api_server_is_away(served: Served) -> None:
    served.apply(policy("default", MAX_ONE))
    assert eventually(served.refuses_two_gpus)
    version = served.configuration()["version"]
    served.plane.kill("kube-apiserver")

    assert eventually(lambda: served.configuration()["unconfirmedSeconds"] > 2)
    assert served.refuses_two_gpus()
    assert served.ready()[0] == 200
    # One that starts now has nothing but the built-in documents: it says so, waits a while, and then answers.
    served.webhook.stop()
    served.webhook.start()
    assert served.ready()[0] == 503
    assert served.configuration()["read"] is False
    assert eventually(lambda: served.ready()[0] == 200)
    assert not served.refuses_two_gpus()
    assert 'gpu_admission_config_info{from="built-in"' in served.webhook.metrics()
    assert "gpu_admission_config_valid 0.0" in served.webhook.metrics()

    served.plane.restart("kube-apiserver")

    assert eventually(served.refuses_two_gpus, seconds=60)
    assert served.configuration()["version"] == version
    assert served.configuration()["unconfirmedSeconds"] < 80
