"""PodDisruptionBudgets at /validate: admitted, with a warning of one that lets no pod of a GPU server be evicted."""

from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, status
from tests.webhook.serving.served import admission, request
from webhook.cluster.namespaces import MAX_PDBS_BYTES
from webhook.configuration.loader import load_directory
from webhook.workloads.serving_workloads import list_serving_workloads, serving_workload

KINDS = load_directory(None).workload_kinds
BUDGET = {"group": "policy", "version": "v1", "kind": "PodDisruptionBudget"}
BLOCKS = (
    "PodDisruptionBudget team/a: spec.{}: {}; a drain of a node never ends: no pod of Deployment chat may be evicted ({} in all) "
    "[disruption]"
)


def deployment(replicas: int, name: str = "chat", **container: Any) -> JSON:
    containers = [{**gpu_container("1"), **container}]
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers}}
    return {"metadata": {"name": name}, "spec": {"replicas": replicas, "template": template}}


def budget(**spec: Any) -> JSON:
    selector = {"matchLabels": {"app": "chat"}}
    return {"metadata": {"name": "a"}, "spec": {"selector": selector, **spec}}


@cases(
    ("document", "stored", "reads", "want"),
    none_may_go=(
        budget(maxUnavailable=0), [deployment(2)], 1,
        BLOCKS.format('maxUnavailable = "0"', "set maxUnavailable: 1", 2),
    ),
    all_must_stay=(
        budget(minAvailable=2), [deployment(2)], 1,
        BLOCKS.format('minAvailable = "2"', "remove minAvailable and set maxUnavailable: 1", 2),
    ),
    one_may_go=(budget(minAvailable=1), [deployment(2)], 1, None),
    one_always_may=(budget(maxUnavailable=1), [deployment(2)], 0, None),
    of_another_server=(budget(maxUnavailable=0), [deployment(2, "other")], 1, None),
    of_no_gpu=(budget(maxUnavailable=0), [deployment(2, resources={})], 1, None),
    which_cannot_be_read=(budget(maxUnavailable=0), None, 1, None),
    unreadable=({"spec": {"minAvailable": []}}, [deployment(2)], 0, None),
)  # fmt: skip
def test_a_budget(document: JSON, stored: list[JSON] | None, reads: int, want: str | None) -> None:
    asked = []

    def servers(namespace: str, kinds: Any, _deadline: float) -> Any:
        asked.append(namespace)
        documents = [msgspec.Raw(msgspec.json.encode(each)) for each in stored or ()]
        made = tuple(serving_workload(kinds, ("apps", "Deployment"), namespace, each) for each in documents)
        return None if stored is None else made

    serving = admission(servers=servers)
    for operation in ("CREATE", "UPDATE"):
        review = request(document, kind=BUDGET, namespace="team", operation=operation, oldObject=document)
        response = serving.validate(review, monotonic() + 5)

        assert (response.allowed, response.warnings) == (True, want and (want,))
    assert asked == ["team"] * 2 * reads


DEPLOYMENTS, STATEFUL_SETS = (
    f"/apis/apps/v1/namespaces/team/{each}" for each in ("deployments", "statefulsets")
)


@cases(
    ("deployments", "stateful_sets", "seconds", "want"),
    of_both_kinds=([deployment(2)], [deployment(1, "db")], 5, ["Deployment chat", "StatefulSet db"]),
    forbidden=(status(403, "no", "Forbidden"), [], 5, None),
    the_second_is_forbidden=([deployment(2)], status(403, "no", "Forbidden"), 5, None),
    too_long=([deployment(2, "a", args=["x" * MAX_PDBS_BYTES])], [], 5, None),
    unreadable=([{"metadata": {}, "spec": {"template": 3}}], [], 5, None),
    too_late=([], [], 0, None),
)
def test_reading_servers_of_a_cluster(
    tmp_path: Path, deployments: Any, stateful_sets: Any, seconds: float, want: list[str] | None
) -> None:
    objects = {DEPLOYMENTS: deployments, STATEFUL_SETS: stateful_sets}
    with ApiServer(tmp_path, answering(objects)) as server:
        read = list_serving_workloads(server.client(), "team", KINDS, monotonic() + seconds)

    assert (None if read is None else [each.title for each in read]) == want
