"""Makes the changes that a finding asks the people who run the cluster for, and then the edits of the author."""

import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from msgspec.structs import replace

from policies.finding import ContactChange, ContactEdit, Edit, Finding, as_plain_data
from policies.gpus.classes import GPUClasses
from policies.pods.field_paths import path_parts, value_at, with_edits
from policies.quota.amounts import GPUS
from tests.oracle import JSON
from tests.oracle.worlds import CORDON, ROOM
from tests.remedies.situations import Quota, Situation
from tests.remedies.workloads import pod_of

QUOTAS = ("GPUQuota", "ClusterGPUQuota")
REQUIRED = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
LARGE = {**ROOM, "cpu": "512", "memory": "8Ti"}
MANY = "64"
"""Amount of what a new node offers; the largest request is 16 in each of three containers."""


def granted(situation: Situation, document: JSON, finding: Finding) -> Iterator[tuple[Situation, JSON]]:
    """Yield the situation and the object after each change.

    Not followed: a value that people must choose, such as `larger cards`; and quotas of workloads, for which one thing is asked
    at a time: what stands in its way first.
    """
    for change in finding.contact_choices:
        after = _after(situation, document, finding, change)
        if after is not None:
            edits = [
                (path_parts(each.path), as_plain_data(each.value))
                for each in change
                if isinstance(each, Edit)
            ]
            yield after, with_edits(document, edits)


def _after(situation: Situation, document: JSON, finding: Finding, change: ContactChange) -> Situation | None:
    after: Situation | None = situation
    for each in change:
        if isinstance(each, ContactEdit) and after is not None:
            after = _changed(after, document, finding, each)
    return after


def _changed(situation: Situation, document: JSON, finding: Finding, asked: ContactEdit) -> Situation | None:
    """Return the situation after one change; None if it is not followed."""
    nodes, after = situation.nodes, None
    match asked.kind, asked.path:
        case kind, _ if kind in QUOTAS:
            after = with_quotas(situation, [asked]) if document["kind"] == "Pod" else None
        case "Node", "":
            pod = situation.answer(document).reviewed or pod_of(document)
            new = (
                _node(situation.configuration.classes, asked.value, pod) if asked.value is not None else None
            )
            if new is not None and nodes is not None:
                after = replace(situation, nodes=(*nodes, new))
        case "Node", "spec.unschedulable":
            after = _with_nodes(situation, lambda node: _uncordoned(node, finding.ask_contact))
        case "Node", path:
            key = str(path_parts(path)[-1])
            after = _with_nodes(situation, lambda node: labelled(node, key, asked.value, finding.ask_contact))
        case "GPUPolicy", path if asked.value is not None:
            edited = with_edits({"spec": {"rules": situation.rules}}, [(path_parts(path), asked.value)])
            after = replace(situation, rules=edited["spec"]["rules"])
        case "LimitRange", path:
            named = re.findall(r"LimitRange (\S+)", finding.ask_contact)
            ranges = [
                _without(each, path) if each["metadata"]["name"] in named else each
                for each in situation.limit_ranges
            ]
            after = replace(situation, limit_ranges=tuple(ranges))
        case _:
            pass
    return after


def with_quotas(situation: Situation, edits: Iterable[ContactEdit]) -> Situation | None:
    """Return the situation with all changes of quotas; None if nothing is asked of a quota that exists."""
    quota, asked = situation.quota, [each for each in edits if each.kind in QUOTAS and each.path]
    if quota is None or not asked:
        return None
    for each in asked:
        quota = _raised(quota, each)
    return replace(situation, quota=quota)


def _raised(quota: Quota, asked: ContactEdit) -> Quota:
    if asked.path.startswith("spec.budget."):
        return replace(quota, spent=0.1)
    if asked.path == "spec.queue.maxWaiting":
        return replace(quota, waiting=0)
    amount, field = Fraction(asked.value), asked.path.removeprefix("spec.hard.")
    if asked.kind == "ClusterGPUQuota":
        return replace(quota, team=max(amount, quota.team or amount))
    key = GPUS if field == GPUS else f"classes/{field.partition('[')[2].rstrip(']')}"
    return replace(quota, hard={**quota.hard, key: max(amount, quota.hard.get(key, amount))})


def _node(classes: GPUClasses, name: str, pod: JSON) -> JSON | None:
    """Return a node of a class or family, which offers what the pod requests; None if the pod demands other labels, too."""
    of_class = {
        each.key: each.values[0] for gpu_class in classes.resolve(name)[:1] for each in gpu_class.node_labels
    }
    labels = {"nvidia.com/gpu.count": "8", **of_class, "accelerator": name}
    demanded = {*pod["spec"].get("nodeSelector", {}), *_required_keys(pod)}
    if demanded - {"accelerator"}:
        return None
    containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    kinds = (
        each.get("resources", {}).get(kind, {}) for each in containers for kind in ("limits", "requests")
    )
    amounts = {**LARGE, **{resource: MANY for asked in kinds for resource in asked if "/" in resource}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "new", "labels": {"kubernetes.io/hostname": "new", **labels}},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _required_keys(pod: JSON) -> Iterator[str]:
    for term in value_at(pod, (*REQUIRED, "nodeSelectorTerms")) or ():
        for each in (*term.get("matchExpressions", ()), *term.get("matchFields", ())):
            yield each["key"]


def _with_nodes(situation: Situation, change: Callable[[JSON], JSON]) -> Situation | None:
    """Return the situation with changed nodes; None if no node is as the words say."""
    nodes = tuple(map(change, situation.nodes or ()))
    return replace(situation, nodes=nodes) if nodes != situation.nodes else None


def _uncordoned(node: JSON, asked: str) -> JSON:
    """Return the node without its cordon, if it has all resources that the words name."""
    wanted, spec = asked.partition(" with ")[2].split(" and "), node["spec"]
    if not set(wanted) <= set(node["status"]["allocatable"]):
        return node
    taints = [each for each in spec.get("taints", ()) if each["key"] != CORDON["key"]]
    return {**node, "spec": {**spec, "unschedulable": False, "taints": taints}}


def labelled(node: JSON, key: str, value: str, asked: str) -> JSON:
    """Return the node with the label, if it is one of those that the words name by another label."""
    labels = node["metadata"]["labels"]
    is_named = key not in labels and any(f"{each}={of}" in asked for each, of in labels.items())
    named = {**labels, key: value} if is_named else labels
    return {**node, "metadata": {**node["metadata"], "labels": named}}


def _stored(item: JSON) -> JSON:
    """Return an item as the API server stores it (`SetDefaults_LimitRangeItem` in `pkg/apis/core/v1`)."""
    if item["type"] != "Container":
        return item
    default = {**item.get("max", {}), **item.get("default", {})}
    return {
        **item,
        "default": default,
        "defaultRequest": {**item.get("min", {}), **default, **item.get("defaultRequest", {})},
    }


def _without(limit_range: JSON, path: str) -> JSON:
    """Return the LimitRange without the field."""
    stored = [_stored(item) for item in limit_range["spec"]["limits"]]
    edited: JSON = with_edits({**limit_range, "spec": {"limits": stored}}, [(path_parts(path), None)])
    return edited
