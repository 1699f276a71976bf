"""`gpu-admission check` with a PodDisruptionBudget: what the other documents say of the pods that it selects."""

from typing import Any

import yaml

from tests.builders import JSON, gpu_container, manifest
from tests.cases import cases
from tests.webhook.commands.checking import document


def made(api_version: str, kind: str, name: str, spec: JSON, **metadata: Any) -> JSON:
    return manifest(api_version, kind, name, spec, **{"namespace": "ml", **metadata})


def budget(app: str = "a", namespace: str = "ml", **spec: Any) -> JSON:
    selector = {"matchLabels": {"app": app}}
    return made("policy/v1", "PodDisruptionBudget", "a", {"selector": selector, **spec}, namespace=namespace)


def scaler(least: int) -> JSON:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}
    spec = {"scaleTargetRef": reference, "minReplicas": least, "maxReplicas": 9}
    return made("autoscaling/v2", "HorizontalPodAutoscaler", "a", spec)


TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [gpu_container()]}}
SERVER = made("apps/v1", "Deployment", "a", {"replicas": 3, "template": TEMPLATE})
PODS = made("v1", "Pod", "db", {"containers": [{"name": "db", "image": "db"}]}, labels={"app": "db"})
OPERATED = made("postgresql.example.com/v1", "Cluster", "db", {})
MONITOR = made("networking.k8s.io/v1", "Ingress", "a", {})


@cases(
    ("documents", "want"),
    all_must_stay=([SERVER, budget(minAvailable=3)], ["BlocksDrains"]),
    it_stands_before_its_server=([budget(maxUnavailable="0%"), SERVER], ["BlocksDrains"]),
    one_may_go=([SERVER, budget(minAvailable=2)], []),
    at_the_least_of_the_autoscaler=([SERVER, scaler(2), budget(minAvailable=2)], ["BlocksDrains"]),
    below_it=([SERVER, scaler(3), budget(minAvailable=2)], []),
    of_other_labels=([SERVER, MONITOR, budget("b", maxUnavailable=1)], ["SelectsNoPod"]),
    of_another_pod=([SERVER, PODS, budget("db", maxUnavailable=0)], []),
    of_pods_of_an_operator=([SERVER, OPERATED, budget("db", maxUnavailable=1)], []),
    of_a_placeholder=([SERVER, budget("${APP}", maxUnavailable=1)], []),
    of_another_namespace=([SERVER, budget("b", "web", maxUnavailable=0)], []),
    alone=([budget(maxUnavailable=0)], []),
    unreadable=([SERVER, budget(maxUnavailable=[])], []),
)
def test_a_budget_beside_its_pods(documents: list[JSON], want: list[str]) -> None:
    objects = document(stdin=yaml.safe_dump_all(documents))["objects"]

    assert [finding["reason"] for each in objects for finding in each["findings"]] == want
