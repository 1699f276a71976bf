"""PodDisruptionBudgets of one run of `check`, by the workloads and the autoscalers among its documents."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.finding import Finding
from policies.gpus.resource_mapping import ResourceMapping
from policies.pods.label_selector import LabelSelector
from policies.pods.workload import Workload
from policies.rules.disruption import SERVERS, DisruptionBudget, Server, check_budget
from webhook.tools.check.manifests import Manifest
from webhook.tools.check.placeholders import is_placeholder
from webhook.tools.check.run_quotas import Key
from webhook.workloads.autoscalers import scale_target

_OF_TEMPLATES = {*SERVERS, ("", "Pod"), ("apps", "DaemonSet"), ("batch", "Job"), ("batch", "CronJob")}
"""Kinds whose documents show the labels of their pods."""


def budget_findings(
    manifest: Manifest,
    manifests: Sequence[Manifest],
    workloads: Mapping[tuple[str, *Key], Workload],
    mapping: ResourceMapping,
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
        if namespace == manifest.namespace
    ]
    selector = budget.selector or LabelSelector()
    are_all = not any(map(is_placeholder, selector.match_labels.values())) and all(
        _selects_none_of(selector, each) for each in beside
    )
    yield from check_budget(budget, servers, mapping, are_all=are_all)


def _selects_none_of(selector: LabelSelector, manifest: Manifest) -> bool:
    """Whether the document makes no pod that the selector may match. An unknown kind of Kubernetes itself makes none."""
    if manifest.pods and manifest.group_kind in _OF_TEMPLATES:
        labels = ((pod.metadata and pod.metadata.labels) or {} for _, pod in manifest.pods)
        return not any(map(selector.matches, labels))
    is_of_others = "." in manifest.group.removesuffix(".k8s.io")
    return not manifest.pods and (manifest.is_known or not is_of_others)
