"""Every example of examples/teams does on a real API server what docs/operate/teams.md says of it."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import yaml

from policies.quota.quota_request import LedgerError
from tests.cluster.controllers import Counting, eventually
from tests.cluster.quota.quotas import PODS, gpu_pod
from tests.cluster.quota.teams import TEAMS
from tests.controlplane.client import Client
from tests.controlplane.gpuquota import INSTALLATION, api_client
from tests.controlplane.webhook import ROOT
from webhook.quota.cluster_store import ClusterStore

EXAMPLES = ROOT / "examples" / "teams"
ADMITTED = ""

Asked = tuple[str, int, str]
"""In which namespace, for how many GPUs, and what is said of it."""
BY_TEAM = "exceeded quota: ClusterGPUQuota {}, requested {}"
DONE: dict[str, list[Asked]] = {
    "lab": [
        ("lab-vision", 9, "can never fit: it grants 16, 8 of them guaranteed to other namespaces"),
        ("lab-vision", 8, ADMITTED),
        ("lab-speech", 1, BY_TEAM.format("lab", "1 GPU, 16 of 16 used or guaranteed")),
        ("lab-prod", 8, ADMITTED),
        ("lab-students", 3, "exceeded quota: lab-students/default, "),
    ],
    "company": [
        ("nlp", 12, ADMITTED),
        ("nlp", 1, "exceeded quota: nlp/default, "),
        ("robots", 5, BY_TEAM.format("research", "5 GPUs, 12 of 16 used")),
        ("robots", 4, ADMITTED),
        ("shop", 4, ADMITTED),
        ("shop", 1, BY_TEAM.format("sales", "1 GPU")),
    ],
    "course": [
        ("course-ana", 2, "can never fit: the quota grants 1"),
        *((f"course-{name}", 1, ADMITTED) for name in ("ana", "ben", "eva")),
        ("course-tom", 1, BY_TEAM.format("course", "1 GPU, 3 of 3 used")),
    ],
}


@pytest.fixture
def members(counted: Counting, name: str) -> Iterator[list[str]]:
    """Apply an example, and take its documents away at the end; return its namespaces."""
    client = counted.plane.client()
    documents = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
    for document in sorted(documents, key=lambda each: each["kind"] != "Namespace"):
        answer = eventually(partial(applied, client, document))
        assert answer in {(200, ()), (201, ())}, document
    yield [each["metadata"]["name"] for each in documents if each["kind"] == "Namespace"]
    for each in documents:
        if each["kind"] == "ClusterGPUQuota":
            client.delete(f"{TEAMS}/{each['metadata']['name']}")


def applied(client: Client, document: Any) -> tuple[int, tuple[str, ...]] | None:
    """Return the status and the warnings; None if the webhook, which just started, has not read the other documents yet."""
    status, _, warnings = client.apply(document)
    return None if any("could not be read yet" in each for each in warnings) else (status, tuple(warnings))


def is_in_force(store: ClusterStore, namespace: str) -> bool:
    """Whether the ledgers of a team have the namespace, and it is counted."""
    with suppress(LedgerError):
        found = store.read(namespace, 10)
        return found is not None and found.team_ledgers is not None and not found.ledger.uncounted
    return False  # it is being moved


@pytest.mark.parametrize("name", DONE)
def test_an_example_does_what_the_page_says(counted: Counting, members: list[str], name: str) -> None:
    client = counted.plane.client()
    store = ClusterStore(api_client(counted.plane), INSTALLATION)
    assert eventually(lambda: all(is_in_force(store, member) for member in members), seconds=60)

    said = []
    for number, (namespace, gpus, _) in enumerate(DONE[name]):
        pod = gpu_pod(f"pod-{number}", gpus, nodeSelector={"accelerator": "nvidia-a100-80gb"})
        status, answer = client.post(PODS.format(namespace), pod)
        said.append(ADMITTED if status == 201 else answer["message"])

    for (namespace, gpus, expected), message in zip(DONE[name], said, strict=True):
        assert (expected in message) if expected else message == ADMITTED, (namespace, gpus, message)
