"""Reviews that no API server made, posted by somebody who reaches the port: no ledger, log line or path is theirs to write.

All that is refused: tests/webhook/serving/test_app.py.

What a review with valid fields can still do, and how callers are known: docs/security.md.
"""

import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3

from tests.builders import JSON, gpu_container, pod, uid
from tests.cluster.controllers import counting
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from tests.controlplane.webhook import Webhook


@pytest.fixture(scope="module")
def served(quotas: ControlPlane) -> Iterator[Webhook]:
    with counting(quotas) as running:
        yield running.webhook


@pytest.fixture
def team(quotas: ControlPlane, served: Webhook) -> Namespace:  # noqa: ARG001 - whom it asks
    team = Namespace(quotas)
    in_force(team, {"gpus": "4"})  # nothing changes by itself then
    return team


def post(webhook: Webhook, namespace: str, document: JSON, **tweaks: Any) -> urllib3.BaseHTTPResponse:
    request = {
        "uid": uid("forged"),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": namespace,
        "userInfo": {"username": "system:admin"},
        "object": document,
        **tweaks,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    authority = ssl.create_default_context(cafile=webhook.certificates / "ca.crt")
    with urllib3.PoolManager(ssl_context=authority, retries=False) as pool:
        body = json.dumps(review).encode()
        headers = {"Content-Type": "application/json"}
        return pool.request("POST", f"https://{webhook.address}/validate", body=body, headers=headers)


def forged(**metadata: Any) -> JSON:
    document = pod(gpu_container("1"))
    return {**document, "metadata": {**document["metadata"], **metadata}}


LINE = f"{uid('a')} gpus=1\n{uid('b')} gpus=3"


@pytest.mark.parametrize(
    ("document", "tweaks", "want"),
    [
        pytest.param(forged(), {"uid": LINE}, "uid must be a UUID", id="a-second-line"),
        pytest.param(forged(uid=LINE), {}, "uid must be a UUID", id="a-second-line-by-its-object"),
    ],
)  # fmt: skip
def test_what_no_api_server_sends_changes_nothing(
    served: Webhook, team: Namespace, document: JSON, tweaks: JSON, want: str
) -> None:
    before, lines = team.ledger_object(), len(served.audit())

    answer = post(served, tweaks.pop("namespace", team.name), document, **tweaks)

    assert want in answer.data.decode()
    status = answer.status if answer.status != 200 else answer.json()["response"]["status"]["code"]
    assert status == 400
    assert team.ledger_object() == before
    # The quota still answers, by the same ledger.
    accepted(team.client.post(f"/api/v1/namespaces/{team.name}/pods", gpu_pod("real", 4)))
    ours = [line["verdict"] for line in served.audit()[lines:] if line["user"] == "system:admin"]
    assert ours in ([], ["unreadable"])
