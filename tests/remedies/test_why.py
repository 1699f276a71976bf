"""What `why` tells people to do is true, in random clusters: then the pod runs now, or the sentence says what is awaited.

An object is stored, and its pods are pending or denied. Of every reason, each way is gone literally, beside the first way of the
others: its edits are made, what it awaits comes, who is asked makes the change. Then the API server and the rules accept the pod,
and the scheduler places it, beside the pods that use the nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from policies.finding import ContactEdit, Edits
from policies.pods.field_paths import path_parts, value_at
from policies.quota.amounts import GPUS
from policies.quota.shortage import QUOTA_CAN_NEVER_FIT, QUOTA_EXCEEDED
from policies.registry import RULES_BY_REASON
from tests.oracle import JSON
from tests.oracle.worlds import CARDS, PASSING, PRODUCT, ROOM, Draw, draw_bound
from tests.remedies.asking import QUOTAS, REQUIRED, labelled, with_quotas
from tests.remedies.following import IMPERATIVE, Failure, edited, identity, seen
from tests.remedies.situations import NOW, Situation, admitted, draw_situation, released
from tests.remedies.stored import UNREADY, Cluster, failed_create, path_of, pending
from tests.remedies.telling import Followed, assert_true, in_worlds
from tests.remedies.workloads import KINDS, pod_of
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.evaluation.decision import Outcome
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Answer, Awaited, Cause, Explanation, Remedy, Source

SMALLEST: dict[str, Callable[[str], str]] = {
    "In": str,
    "Lt": lambda value: str(int(value) - 1),
    "Gt": lambda value: str(int(value) + 1),
}
"""By operator, a value of a label that meets a requirement with this value."""
GOING = ("ToBeDeletedByClusterAutoscaler",)


class Case(NamedTuple):
    """An object, and what `why` says of it."""

    cluster: Cluster
    document: JSON
    said: Explanation


def explained(server: ApiServer, seed: int) -> Case | None:
    """Return an object of which pods are pending or denied; None if they run, or nothing would be stored."""
    situation, document = draw_situation(seed)
    draw = Draw(seed + 1)
    bound = [pod for node in situation.nodes or () for pod in draw_bound(draw, node)]
    cluster = Cluster(situation, tuple(bound))
    evaluation = situation.evaluated(document)
    if evaluation.unreadable:
        return None
    denials = [each.finding for each in evaluation.findings() if each.outcome is Outcome.DENIED]
    answer = cluster.placed(document)
    stored = {**document, "metadata": {**document["metadata"], "uid": "u"}}
    if (denials or answer.code != 201) and document["kind"] == "Pod":
        return None
    if denials:
        of_object = {path_of(document): stored}
        objects = cluster.objects(events=[failed_create(document, denials[0].sentence())]) | of_object
    elif answer.code != 201 or answer.room():
        return None
    else:
        if document["kind"] == "DaemonSet":
            return None  # its controller names the node of each pod
        is_pod = document["kind"] == "Pod"
        count = 1 if is_pod else value_at(document, KINDS[document["kind"]].number)
        pods = pending(document, answer, count)
        objects = {path_of(document): stored, **cluster.objects(pods=pods)}
    server.answer = answering(objects)
    said = explain(server.client(), document["kind"], document["metadata"]["name"], "team", NOW)
    return Case(cluster, document, said)


def failures(case: Case) -> Iterator[Failure]:
    reasons = [each for each in case.said.reasons if each.remedy]
    for reason in reasons:
        if IMPERATIVE.search(reason.remedy) and not reason.ways:
            yield Failure("words without data", reason.reason, f"{reason.message}\n    {reason.remedy}")
    wrong = wrong_of_denied if case.said.answer is Answer.DENIED else wrong_of_pending
    for reason in reasons:
        for way in reason.ways:
            if why := wrong(case, reason, way):
                said = f"{reason.message}\n    {reason.remedy}\n    {way}\n    {why}"
                yield Failure(reason.source.value, reason.reason, said)


def denials(cluster: Cluster, document: JSON) -> Counter[tuple[str, ...]]:
    found = seen(cluster.situation.evaluated(document, tries_choices=False))
    return Counter(identity(each) for each in found if each.outcome is Outcome.DENIED)


def wrong_of_denied(case: Case, reason: Cause, way: Remedy) -> str:
    """Return what still denies a pod once its author, or who is asked, did what the reason says; "" if nothing does."""
    if reason.source is Source.QUOTA:
        by_rules = [each for each in case.said.reasons if each.source is Source.POLICY]
        first = [(each, each.ways[0]) for each in by_rules if each.ways]
        after = gone(case, [*first, (reason, way)])
        pod = owned(after[1], way.edits) if after else None
        if after is None or pod is None:
            return ""
        found = [
            each.finding
            for each in seen(beside_others(*after, pod).evaluated(pod))
            if each.outcome is Outcome.DENIED
        ]
        amounts = {QUOTA_EXCEEDED.name, QUOTA_CAN_NEVER_FIT.name}
        same = amounts if reason.reason == QUOTA_EXCEEDED.name else {reason.reason}
        asked = {(each.kind, each.path) for each in way.contact_edits}
        still = [
            each.sentence()
            for each in found
            if each.reason.name in same
            and (
                not asked
                or {
                    (edit.kind, edit.path)
                    for change in each.contact_choices
                    for edit in change
                    if isinstance(edit, ContactEdit)
                }
                <= asked
            )
        ]
        return f"the quota denies it: {still[0]}" if still else ""
    if way.contact_edits or way.quota or reason.source is not Source.POLICY:
        return ""
    after = gone(case, [(reason, way)])
    before = denials(case.cluster, case.document)
    now = denials(*after) if after else before
    is_there = sum(number for each, number in now.items() if each[1] == reason.reason)
    was_there = sum(number for each, number in before.items() if each[1] == reason.reason)
    uncovers = any(each.name == reason.reason and each.hides_others for each in RULES_BY_REASON)
    fields, fields_before = map(by_field, (now, before))
    # A field that a rule denied already is denied for another reason.
    is_new = (each for each in now - before if fields[each[0], each[2]] > fields_before[each[0], each[2]])
    new = [] if uncovers else [*is_new]
    return "is found again" if is_there >= was_there else f"brings {new}" if new else ""


def beside_others(cluster: Cluster, document: JSON, pod: JSON) -> Situation:
    """Return the situation in which the object holds no more than its other pods can, without the pod that is tried."""
    situation, kind = cluster.situation, KINDS.get(document["kind"])
    if situation.quota is None or kind is None or not kind.number:
        return situation
    decisions = situation.evaluated(pod, tries_choices=False).pods[0].decisions
    reserved = [
        each.reservation.request for each in decisions if each.reservation and each.reservation.request
    ]
    requested = max((each.demand.get(GPUS, Fraction(0)) for each in reserved), default=Fraction(0))
    most = requested * (value_at(document, kind.number) - 1)
    return replace(situation, quota=replace(situation.quota, own=min(situation.quota.own, most)))


def by_field(denied: Counter[tuple[str, ...]]) -> Counter[tuple[str, str]]:
    return Counter((rule, path) for rule, _, path, *_ in denied.elements())


def owned(document: JSON, edits: Edits) -> JSON:
    """Return a pod of the object, as its controller creates it: of several, the one that the edits change."""
    pod = pod_of(document, edits)
    owner = {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": "train",
        "uid": "u",
        "controller": True,
    }
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": [owner]}}


def wrong_of_pending(case: Case, reason: Cause, way: Remedy) -> str:
    """Return why no node takes a pod once all that is said has been done; "" if one does."""
    if any(each.name == reason.reason and each.hides_others for each in RULES_BY_REASON):
        return ""
    if case.cluster.situation.nodes is None:
        return ""
    others = [(each, each.ways[0]) for each in case.said.reasons if each.ways and each is not reason]
    alone = wrong_once(case, [(reason, way)])
    return wrong_once(case, [(reason, way), *others]) if alone and others else alone


def wrong_once(case: Case, ways: list[tuple[Cause, Remedy]]) -> str:
    after = gone(case, ways)
    if after is None:
        return ""
    cluster, document = after
    if any(each.contact_edits for _, each in ways):  # that takes its time
        for awaited in (Awaited.READY, Awaited.TAINT_GONE, Awaited.ROOM):
            cluster = come(cluster, awaited, document)
    # A pod that exists may be one that would be denied now: what is awaited does not create it again.
    if denied := denials(cluster, document) - denials(case.cluster, case.document):
        return f"is denied: {[*denied]}"
    answer = cluster.placed(document)
    if answer.code != 201:
        return f"the API server rejects it: {answer.message}"
    return "" if answer.room() else f"no node takes it: {answer.nodes}"


def gone(case: Case, ways: list[tuple[Cause, Remedy]]) -> tuple[Cluster, JSON] | None:
    """Return the cluster and the object once all of the ways are gone; None if nothing here can do what is asked for."""
    cluster, document = case.cluster, case.document
    for reason, way in ways:
        document = edited(document, way.edits)
        for awaited in way.awaits:
            cluster = come(cluster, awaited, document)
        if way.quota is not None:
            cluster = released_quota(cluster, way)
        for asked in way.contact_edits:
            situation = with_quotas(cluster.situation, way.contact_edits) if asked.kind in QUOTAS else None
            if situation is not None:
                cluster = replace(cluster, situation=situation)
            elif asked.kind == "Node":
                cluster = with_changed_nodes(cluster, reason, asked, document)
            else:
                return None
    return cluster, document


def with_changed_nodes(cluster: Cluster, reason: Cause, asked: ContactEdit, document: JSON) -> Cluster:
    """Return the cluster once its nodes are as is asked, or there is another node."""
    name = str(asked.value or any_class(document))
    if asked.path == "spec.unschedulable":
        return with_nodes(cluster, uncordoned)
    if asked.path == "status.allocatable":
        pod = admitted(
            cluster.situation, document, cluster.situation.evaluated(document, tries_choices=False)
        )
        return with_nodes(cluster, partial(offering, asked=requested(pod)))
    if asked.path.startswith("metadata.labels"):
        key = str(path_parts(asked.path)[-1])
        cluster = with_nodes(cluster, lambda node: labelled(node, key, name, reason.remedy))
        cluster = with_nodes(cluster, partial(of_its_card, value=asked.value))
        return with_node(cluster, name, document) if "for nodes of" in reason.remedy else cluster
    return with_node(cluster, name, document)


def any_class(document: JSON) -> str:
    """Return a class that the pod does not exclude: nodes of no class are asked for."""
    excluded = {
        value
        for each in requirements(pod_of(document)["spec"])
        if each["operator"] == "NotIn"
        for value in each["values"]
    }
    largest_first = (
        each for each in reversed(CARDS) if excluded.isdisjoint({each.accelerator, each.product})
    )
    return next(largest_first, CARDS[-1]).accelerator


def requirements(spec: JSON) -> list[JSON]:
    """Return what the required node affinity of a pod demands of labels."""
    terms = value_at(spec, (*REQUIRED[1:], "nodeSelectorTerms")) or ()
    return [each for term in terms for each in term.get("matchExpressions", ())]


def come(cluster: Cluster, awaited: Awaited, document: JSON) -> Cluster:
    """Return the cluster after that has come."""
    if awaited is Awaited.READY:
        return with_nodes(cluster, lambda node: without_taints(node, UNREADY))
    if awaited is Awaited.TAINT_GONE:
        return with_nodes(
            cluster, lambda node: without_taints(node, {each["key"] for each in PASSING} - UNREADY)
        )
    if awaited is Awaited.ROOM:
        return replace(cluster, bound=())
    assert awaited is Awaited.NODE
    # Instead of a node that is removed comes one of its kind.
    cluster = with_nodes(cluster, lambda node: without_taints(node, set(GOING)))
    if cluster.situation.pools or "autoscaledClasses" in cluster.situation.rules.get("gpu-class", {}):
        return with_node(cluster, "nvidia-h100-80gb", document)
    return cluster


def with_nodes(cluster: Cluster, changed: Callable[[JSON], JSON]) -> Cluster:
    nodes = tuple(map(changed, cluster.situation.nodes or ()))
    return replace(cluster, situation=replace(cluster.situation, nodes=nodes))


def with_node(cluster: Cluster, name: str, document: JSON) -> Cluster:
    """Return the cluster with a node of a class, with the labels by which the pod selects it, and 64 of what it requests."""
    pod = admitted(cluster.situation, document, cluster.situation.evaluated(document, tries_choices=False))
    spec = pod["spec"]
    demanded = {
        each["key"]: SMALLEST[each["operator"]](each["values"][0])
        for each in reversed(requirements(spec))
        if each["operator"] in SMALLEST
    }
    selected = spec.get("nodeSelector", {})
    wanted = {**demanded, **selected}.get("accelerator", "")
    if wanted.startswith("nvidia-h100") and name.startswith("nvidia-h100"):
        name = wanted  # an autoscaler adds the class that the pod selects
    products = [each.product for each in CARDS if each.accelerator == name]
    of_class = {"accelerator": name, **({PRODUCT: products[0]} if products else {})}
    counted = {"nvidia.com/gpu.count": "8"}
    labels = {**counted, **demanded, **of_class, **selected, "kubernetes.io/hostname": "new"}
    room = {**ROOM, "cpu": "256", "memory": "2Ti"}
    has = {**room, **requested(pod)}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "new", "labels": labels},
        "spec": {},
        "status": {"capacity": has, "allocatable": has},
    }
    nodes = (*(cluster.situation.nodes or ()), node)
    return replace(cluster, situation=replace(cluster.situation, nodes=nodes))


def requested(pod: JSON) -> dict[str, str]:
    """Return 64 of each device that the pod requests."""
    containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    amounts = (
        each.get("resources", {}).get(kind, {}) for each in containers for kind in ("limits", "requests")
    )
    return {resource: "64" for asked in amounts for resource in asked if "/" in resource}


def offering(node: JSON, asked: dict[str, str]) -> JSON:
    """Return the node once its device plugin offers what is asked for, if it offers nothing now."""
    has = node["status"]["allocatable"]
    if any("/" in resource and int(amount) for resource, amount in has.items()):
        return node
    return {**node, "status": {**node["status"], "allocatable": {**has, **asked}}}


def of_its_card(node: JSON, value: str | None) -> JSON:
    """Return the node with the label of its class, which its product says."""
    labels = node["metadata"]["labels"]
    known = {each.product: each.accelerator for each in CARDS}
    name = known.get(labels.get(PRODUCT, "").removesuffix("-SHARED"), "")
    added = {"accelerator": value or name} if name.startswith(value or "nvidia") else {}
    return {**node, "metadata": {**node["metadata"], "labels": {**added, **labels}}}


def without_taints(node: JSON, keys: set[str]) -> JSON:
    taints = [each for each in node["spec"].get("taints", ()) if each["key"] not in keys]
    return {**node, "spec": {**node["spec"], "taints": taints}}


def uncordoned(node: JSON) -> JSON:
    return {
        **node,
        "spec": {"taints": without_taints(node, {"node.kubernetes.io/unschedulable"})["spec"]["taints"]},
    }


def released_quota(cluster: Cluster, way: Remedy) -> Cluster:
    assert way.quota is not None
    situation, wait = cluster.situation, way.quota
    amounts = {key: Fraction(amount) for key, amount in wait.amounts}
    situation = released(situation, amounts, by_own=True)
    if situation.quota is not None and wait.until:
        situation = replace(situation, quota=replace(situation.quota, spent=0.0))
    if situation.quota is not None and wait.seconds:
        situation = replace(situation, quota=replace(situation.quota, waiting=0))
    return replace(cluster, situation=situation)


def followed(server: ApiServer, seed: int) -> Followed | None:
    case = explained(server, seed)
    if case is None:
        return None
    remedies = sum(bool(each.remedy) for each in case.said.reasons)
    return Followed(case.said.answer.value, remedies, [*failures(case)])


@pytest.mark.processes
@in_worlds
def test_what_why_says_to_do_is_true(tmp_path: Path, seeds: range) -> None:
    assert_true(tmp_path, seeds, followed)
