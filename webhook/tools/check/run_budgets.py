"""PodDisruptionBudgets of one run of `check`, by the workloads and the autoscalers among its documents."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from policies.finding import Finding
from policies.pods.label_selector import LabelSelector
from policies.pods.workload import Workload
from policies.rules.disruption import SERVERS, DisruptionBudget, Server, check_budget
from webhook.configuration.loader import Configuration
from webhook.tools.check.manifests import Manifest
from webhook.tools.check.placeholders import is_placeholder
from webhook.tools.check.run_context import Key
from webhook.workloads.autoscalers import scale_target

_OF_TEMPLATES = {*SERVERS, ("", "Pod"), ("apps", "DaemonSet"), ("batch", "Job"), ("batch", "CronJob")}
"""Kinds whose documents show the labels of their pods."""


def budget_findings(
    manifest: Manifest,
    manifests: Sequence[Manifest],
    workloads: Mapping[tuple[str, *Key], Workload],
    configuration: Configuration,
) -> Iterator[Finding]:
    """Yield what there is to say of a PodDisruptionBudget; nothing of one that the API server rejects."""
    try:
        budget = msgspec.convert(manifest.data.get("spec") or {}, DisruptionBudget)
    except msgspec.ValidationError:
        return
    beside = [each for each in manifests if each.namespace == manifest.namespace]
    scalers = {
        (target.group, target.kind, target.name): (target.least, f"{each.kind} {each.name}")
        for each in beside
        if (target := scale_target(*each.group_kind, each.data))
    }
    servers = [
        Server(workload, *scalers.get((workload.group, workload.kind, workload.name), ()))
        for (namespace, *_), workload in workloads.items()
        if namespace == manifest.namespace and workload.pods
    ]
    shown = [each for each in beside if each.pods and each.group_kind in _OF_TEMPLATES]
    labels = [(pod.metadata and pod.metadata.labels) or {} for each in shown for _, pod in each.pods]
    selector = budget.selector or LabelSelector()
    may_be_met = (
        any(map(selector.matches, labels))
        or any(
            map(is_placeholder, chain(selector.match_labels.values(), *(each.values() for each in labels)))
        )
        or any(each not in shown and _may_make_pods(each) for each in beside)
    )
    yield from check_budget(budget, servers, configuration.resource_mapping, are_all=not may_be_met)


def _may_make_pods(manifest: Manifest) -> bool:
    """Whether it makes pods with labels that nobody knows, or is of a kind that is not known, and not one of Kubernetes."""
    is_of_others = "." in manifest.group.removesuffix(".k8s.io")
    return bool(manifest.pods) or (is_of_others and not manifest.is_known)
