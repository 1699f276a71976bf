"""Pods that wait in line for quota: whether something makes them wait, and somebody starts them."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from policies.quota.amounts import exceeds, total
from policies.quota.waiting import STARVED_SECONDS
from policies.registry import QUOTA_RULE
from policies.rule import Mode
from webhook.cluster.objects import CONTROLLER, service_account
from webhook.quota.documents import PlaceInLine, QuotaRecord
from webhook.tools.doctor.check import Observation, doctor_check, failure, warning
from webhook.tools.doctor.checks.control_plane import controller_age
from webhook.tools.doctor.checks.nodes import names_in_words
from webhook.tools.installed_cluster import InstalledCluster, Permission
from webhook.tools.stored_pod import StoredPod, decode_stored

CONTROLLERS = {"labelSelector": "app.kubernetes.io/name=gpu-admission,app.kubernetes.io/component=controller"}
PAUSE = "gpu-admission pause --for 1h --reason emergency"
STARTED_WITHIN = timedelta(minutes=2)
"""A pod that nothing makes wait has started within this time, or nobody starts it."""


def _waiting(raw: msgspec.Raw) -> StoredPod | None:
    pod = decode_stored(raw)
    return pod if pod.waits_in_line and not pod.has_ended else None


@doctor_check(
    "waiting-pods",
    "Pods that wait in line for quota have something to wait for, and a controller that starts them",
    Permission("list", "pods"),
    Permission("list", "gpuquotas", "gpu-admission.dev"),
)
def _waiting_pods(cluster: InstalledCluster) -> Iterator[Observation]:
    by_namespace: dict[str, list[StoredPod]] = defaultdict(list)
    for pod in cluster.decoded("/api/v1/pods", _waiting):
        by_namespace[pod.metadata.namespace].append(pod)
    if not by_namespace:
        return
    age = controller_age(cluster)
    if age is None or age > STARTED_WITHIN:
        names = names_in_words(pod.title for pods in by_namespace.values() for pod in pods)
        message = f"wait in line for quota ({names}), and no controller leads that would start them"
        remedy = (
            f"start the controller ({CONTROLLER}); in an emergency: {PAUSE}, then gpu-admission release --all"
        )
        yield failure("waiting-without-controller", "pods", message, remedy)
        return
    quotas = {record.namespace: record for record in cluster.quotas}
    for namespace, pods in sorted(by_namespace.items()):
        yield from _in_namespace(cluster, namespace, pods, quotas.get(namespace))


@doctor_check(
    "controller-user",
    "The webhook knows the controller as the one that starts pods in line",
    Permission("list", "deployments", "apps"),
)
def _controller_user(cluster: InstalledCluster) -> Iterator[Observation]:
    own = cluster.names.namespace
    expected = service_account(own, CONTROLLER)
    for controller in cluster.api.list(
        "/apis/apps/v1/deployments", msgspec.json.decode, query=CONTROLLERS
    ).items:
        name, namespace = controller["metadata"]["name"], controller["metadata"]["namespace"]
        spec = controller["spec"]["template"]["spec"]
        user = service_account(namespace, spec.get("serviceAccountName") or "default")
        if any(flag.startswith("--kubeconfig") for it in spec["containers"] for flag in it.get("args") or ()):
            user = "the user of its --kubeconfig"
        if user != expected:
            message = f"must run as {expected}: the webhook puts back the gates that {user} removes"
            remedy = f"run it in {own} with serviceAccountName: {CONTROLLER}, without --kubeconfig"
            yield failure("controller-user", f"Deployment/{name} in {namespace}", message, remedy)


def _in_namespace(
    cluster: InstalledCluster, namespace: str, pods: list[StoredPod], quota: QuotaRecord | None
) -> Iterator[Observation]:
    where = f"pods in {namespace}"
    log = (
        f"see the log of the controller; in an emergency: {PAUSE}, then gpu-admission release -n {namespace}"
    )
    held = cluster.policy_of(namespace).in_force(QUOTA_RULE.id, cluster.now)
    is_enforced = held is not None and held[0].options.mode is Mode.ENFORCE
    if quota is None or not is_enforced:
        late = [
            pod.metadata.name
            for pod in pods
            if _age(cluster, pod.metadata.creation_timestamp) > STARTED_WITHIN
        ]
        if late:
            reason = "no GPUQuota" if quota is None else "no policy that enforces its GPUQuota"
            message = f"wait in line for quota ({names_in_words(late)}), although the namespace has {reason}"
            yield failure("waiting-for-nothing", where, message, log)
    elif not cluster.lets_wait(namespace):
        names = names_in_words(pod.metadata.name for pod in pods)
        message = f"wait in line for quota ({names}), which no new pod does: onExceeded is Deny"
        remedy = f"wait: they start in order; to start them now: {PAUSE}, then gpu-admission release -n {namespace}"
        yield warning("waiting-out-of-use", where, message, remedy)
    elif (first := _first(quota)) and _age(cluster, first.since) > timedelta(seconds=STARVED_SECONDS):
        message = f"{first.owner} is first in line since {first.since}, although the quota has room for what it needs"
        yield warning("waiting-with-room", where, message, log)


def _first(quota: QuotaRecord) -> PlaceInLine | None:
    """Return what is first in line, if the quota has room for it."""
    status = quota.status
    first = next((each for each in status.waiting.next if each.place == 1), None) if status.waiting else None
    if first is None or status.used is None:
        return None
    over = exceeds(total((status.used, status.reserved, first.demand)), status.hard)
    free = status.team.free if status.team else {}
    lacks = any(amount > free.get(key, amount) for key, amount in first.demand.items())
    return None if lacks or any(each.key in first.demand for each in over) else first


def _age(cluster: InstalledCluster, since: str | None) -> timedelta:
    return cluster.now - datetime.fromisoformat(since) if since else timedelta()


CHECKS = (_waiting_pods, _controller_user)
