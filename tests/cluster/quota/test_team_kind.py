"""The kind ClusterGPUQuota on a real API server: missing, installed later, and with stored documents that are not valid."""

import threading
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import urllib3
import yaml

from tests.cluster.controllers import Running, eventually, is_ready, published_catalogues, uses
from tests.cluster.quota.quotas import EXPIRY, gpu_pod
from tests.cluster.quota.teams import TEAMS, team_document
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import FILES, Namespace, install_kinds
from tests.controlplane.webhook import CONFIGURATION_PATHS, Webhook, install
from webhook.quota.team_documents import TEAM_PLURAL

KIND = f"{TEAM_PLURAL}.gpu-admission.dev"
NOT_SERVED = "the API server does not serve ClusterGPUQuotas: no namespace has a team"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Serve the API with an installation without the kind."""
    with ControlPlane() as plane, Webhook(plane, arguments=("--kubeconfig", plane.kubeconfig())) as webhook:
        documents = [each for each in webhook.manifests() if each["metadata"]["name"] != KIND]
        install(plane, documents, webhook.calls)
        with published_catalogues(plane):
            yield plane


def create(namespace: Namespace, name: str, gpus: int) -> str:
    """Return "" if the pod was admitted, else the message of the denial."""
    status, answer = namespace.create(gpu_pod(name, gpus))
    return "" if status == 201 else str(answer["message"])


def shown(plane: ControlPlane, name: str) -> str:
    """Return the STATUS that kubectl shows of a ClusterGPUQuota, "" while it has none."""
    path = 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}'
    return plane.kubectl("get", "cgpuq", name, "-o", path).stdout


def test_without_the_kind_there_are_no_teams_and_with_it_they_bound(plane: ControlPlane) -> None:
    free, limited = Namespace(plane, "kind-free"), Namespace(plane, "kind-limited")
    assert plane.client().get(TEAMS)[0] == 404
    assert [create(free, f"unlimited-{number}", 2) for number in range(3)] == [""] * 3
    assert plane.logs("webhook-10").count(NOT_SERVED) == 1

    with Running(plane, expiry=EXPIRY):
        limited.quota({"gpus": "4"})
        assert eventually(lambda: is_ready(limited))
        assert create(limited, "fits", 3) == ""
        assert uses(limited, 3)
        assert "exceeded quota: kind-limited/default" in create(limited, "too-large", 2)

        install_kinds(plane.client(), TEAM_PLURAL)
        document = team_document("kind", {"gpus": 10}, namespaces={"names": ["kind-*"]})
        accepted(plane.client().post(TEAMS, document))
        assert eventually(lambda: shown(plane, "kind") == "Ready", seconds=60)
        assert create(free, "one-more", 1) == ""
        assert "exceeded quota: ClusterGPUQuota kind" in create(free, "beyond-the-team", 1)


def test_a_starting_api_server_never_says_that_a_stored_kind_is_not_served(plane: ControlPlane) -> None:
    """404 means that there are no teams, so it must not be an answer of one that does not know all kinds yet."""
    install_kinds(plane.client(), TEAM_PLURAL)
    statuses, stopping = Counter[int](), threading.Event()

    def ask() -> None:
        while not stopping.is_set():
            try:
                statuses[plane.client().get(TEAMS)[0]] += 1
            except urllib3.exceptions.HTTPError:
                statuses[0] += 1  # nobody listens

    asking = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in asking:
        thread.start()
    plane.restart("kube-apiserver")
    assert eventually(lambda: plane.client().get(TEAMS)[0] == 200)
    stopping.set()
    for thread in asking:
        thread.join()

    assert statuses[0] > 0, "it was away"
    assert statuses[200] > 0
    assert statuses[404] == 0, statuses


def test_a_stored_one_that_is_not_valid_says_what_is_wrong(plane: ControlPlane) -> None:
    """One of them passed the definition of an older version, the other one what no definition can say."""
    client, definition = plane.client(), yaml.safe_load((FILES / f"{TEAM_PLURAL}.yaml").read_text())
    install_kinds(client, TEAM_PLURAL)
    older = deepcopy(definition)
    spec: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec
    for path in CONFIGURATION_PATHS:  # the webhook is away
        client.delete(path)
    plane.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(older))
    bad = team_document("older", {"gpus": "many"})
    assert eventually(lambda: client.post(TEAMS, bad)[0] in {201, 409})
    plane.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(definition))
    refused = team_document("denied", {"gpus": "many"})
    assert eventually(lambda: client.post(TEAMS, refused, {"dryRun": "All"})[0] == 422)
    sums = team_document("sums", {"gpus": 4}, guaranteed={"sums-a": {"gpus": 3}, "sums-b": {"gpus": 3}})
    accepted(client.post(TEAMS, sums))

    with Running(plane, expiry=EXPIRY):
        for name in ("older", "sums"):
            assert eventually(lambda name=name: shown(plane, name) == "Unreadable"), name  # type: ignore[misc]
    said = {
        name: client.get(f"{TEAMS}/{name}")[1]["status"]["conditions"][0]["message"]
        for name in ("older", "sums")
    }
    begins = "the ClusterGPUQuota cannot be read: "
    assert said == {
        "older": f'{begins}must be an amount such as 16, "0.5" or "2/7", not "many" - at `$.hard.gpus`: it limits nothing',
        "sums": f"{begins}must not exceed hard in sum: gpus is 6, and hard has 4 - at `$.guaranteed`: it limits nothing",
    }
    lines = plane.kubectl("get", "cgpuq", "older", "sums", "--no-headers").stdout.splitlines()
    assert ["Unreadable" in line for line in lines] == [True, True]
