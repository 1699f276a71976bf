"""What is denied or pending in a namespace or in all, the worst first: `gpu-admission why` without a name.

Denials are from the conditions and Events of the objects whose pods were denied; a denial that is over, because its object has
its pods now, is left out.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from policies.pods.conditions import has_ended, true_condition
from policies.pods.pod import Metadata
from policies.registry import QUOTA_RULE
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.quota.counted_records import PODS
from webhook.tools.json_struct import JsonStruct
from webhook.tools.pending_pods import PENDING_AFTER
from webhook.tools.status.denials import DENIED_MARK, ClusterEvent, denials_in_events
from webhook.tools.status.summaries import DeniedOwner
from webhook.tools.status.tolerant_reader import TolerantReader
from webhook.tools.stored_pod import StoredPod, decode_stored
from webhook.tools.why import reasons, situation
from webhook.tools.why.explanation import Answer

_WORST_FIRST = (Answer.DENIED, Answer.PENDING, Answer.GATED, Answer.WAITING)


class OwnerProblem(JsonStruct, frozen=True):
    """Pods of one owner that are denied, or that do not run.

    count: denials that were seen, 0 where only a condition reports them; or pods. first and last: of the denials; of pods that
      do not run, the creation of the oldest one, and now.
    """

    answer: Answer
    namespace: str
    owner: str
    count: int
    first: datetime
    last: datetime
    message: str

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.owner

    @property
    def is_about_pod(self) -> bool:
        return self.owner.startswith("Pod/")

    @property
    def order(self) -> tuple[int, int, datetime, str, str]:
        """The sort key: denied pods first, then by number, descending, then by age."""
        return _WORST_FIRST.index(self.answer), -self.count, self.first, self.namespace, self.owner


class OwnerProblems(JsonStruct, frozen=True):
    """Everything of a namespace, of all if it is "", that is denied, waits in line, or is pending for long; the worst first.

    since: the first denial that conditions and Events still report, None without any. omitted: what the caller may not read.
    """

    namespace: str
    at: datetime
    since: datetime | None
    problems: tuple[OwnerProblem, ...]
    omitted: tuple[str, ...] = ()


class _Owner(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


_OWNER = msgspec.json.Decoder(_Owner)


def _replica_failure(owner: _Owner) -> dict[str, Any] | None:
    return true_condition(owner.status or {}, situation.REPLICA_FAILURE)


def _lacks_replicas(owner: _Owner) -> bool:
    return bool((owner.status or {}).get("replicas", 0) < (owner.spec or {}).get("replicas", 1))


def _lacks_pods_of_a_job(owner: _Owner) -> bool:
    spec, status = owner.spec or {}, owner.status or {}
    wanted = spec.get("parallelism", 1)
    if (completions := spec.get("completions")) is not None:
        wanted = min(wanted, completions - status.get("succeeded", 0))
    return not (has_ended(status) or spec.get("suspend")) and bool(status.get("active", 0) < wanted)


_LACKS_PODS: dict[str, tuple[Resource, Callable[[_Owner], object]]] = {
    "Deployment": (Resource("/apis/apps/v1", "deployments"), _replica_failure),
    "ReplicaSet": (Resource("/apis/apps/v1", "replicasets"), _replica_failure),
    "ReplicationController": (Resource("/api/v1", "replicationcontrollers"), _replica_failure),
    "StatefulSet": (Resource("/apis/apps/v1", "statefulsets"), _lacks_replicas),
    "Job": (Resource("/apis/batch/v1", "jobs"), _lacks_pods_of_a_job),
}
"""By kind, whether an object still lacks pods. Of other kinds only their Events are known."""

Owners = dict[str, dict[tuple[str, str], _Owner]]
"""By kind, then by namespace and name; without the kinds that may not be listed."""


def read_problems(api: ApiClient, namespace: str, now: datetime) -> OwnerProblems:
    """Return what is denied or pending in the namespace now, in all if it is "".

    Raises `errors.ApiError` for everything but a lack of rights.
    """
    reader = TolerantReader(api)
    owners = dict(_owners(reader, namespace))
    made_by = {key: owner.metadata.controlled_by for key, owner in owners.get("ReplicaSet", {}).items()}
    read_denials = partial(denials_in_events, api, namespace, now, _failure_message, made_by)
    denied = reader.attempt_list("events", namespace, read_denials) or ()
    pods = reader.listed("pods", namespace, PODS.path(namespace), _decode_unfinished)
    listed = pods or []
    creations = (owner for owner in denied if not owner.of_change)
    current_denials = _with_terminating_pods(_denied_owners(creations, owners), listed, now)
    gated = {(pod.metadata.namespace, pod.holder) for pod in listed if pod.other_gates}
    changes = (_problem_of(owner) for owner in denied if owner.of_change)
    unchanged = [change for change in changes if pods is None or change.key in gated]
    # What is denied about a pod is its ResourceClaim. A scheduler considers the pod once that is there.
    unconsidered = {
        (pod.metadata.namespace, f"Pod/{pod.metadata.name}") for pod in listed if pod.awaits_scheduler
    }
    current = [
        each for each in current_denials if pods is None or not each.is_about_pod or each.key in unconsidered
    ]
    explained = {each.key for each in (*current, *unchanged) if each.is_about_pod or each in unchanged}
    others = (problem for problem in pending_problems(listed, now) if problem.key not in explained)
    problems = [*current, *unchanged, *others]
    return OwnerProblems(
        namespace=namespace,
        at=now,
        since=min((problem.first for problem in problems if problem.answer is Answer.DENIED), default=None),
        problems=tuple(sorted(problems, key=lambda problem: problem.order)),
        omitted=tuple(reader.omitted),
    )


def _failure_message(event: ClusterEvent) -> str:
    return event.denial or (event.message if event.reason == reasons.FAILED_CREATE else "")


def _decode_unfinished(document: bytes) -> StoredPod | None:
    """Return a pod that may be a problem, so that a list of all namespaces keeps only these in memory."""
    pod = decode_stored(document)
    return None if pod.has_ended or pod.is_running else pod


def _owners(reader: TolerantReader, namespace: str) -> Iterator[tuple[str, dict[tuple[str, str], _Owner]]]:
    """Yield the objects of each kind that may be listed."""
    for kind, (resource, _) in _LACKS_PODS.items():
        # /apis/batch/v1 → batch, /api/v1 → ""
        group = resource.prefix.removeprefix("/api").removeprefix("s/").rpartition("/")[0]
        name = ".".join(filter(None, (resource.plural, group)))
        listed = reader.listed(name, namespace, resource.path(namespace), _OWNER.decode)
        if listed is not None:
            by_metadata = ((item.metadata, item) for item in listed)
            yield kind, {(meta.namespace or "", meta.name or ""): owner for meta, owner in by_metadata}


def _denied_owners(denied: Iterable[DeniedOwner], owners: Owners) -> Iterator[OwnerProblem]:
    """Yield the owners that lack pods: by their Events and, where these are gone, by the conditions."""
    seen: dict[tuple[str, str], DeniedOwner] = {}
    for denial in denied:
        kind, _, name = denial.owner.partition("/")
        if kind in owners:
            owner = owners[kind].get((denial.namespace, name))
            if owner is None or not _LACKS_PODS[kind][1](owner):
                continue
        seen[denial.namespace, denial.owner] = denial
    for kind, objects in owners.items():
        for (namespace, name), owner in objects.items():
            condition = _replica_failure(owner)
            if condition is None or owner.metadata.controlled_by:  # its Deployment has the same condition
                continue
            at, about = datetime.fromisoformat(condition["lastTransitionTime"]), f"{kind}/{name}"
            text = str(condition.get("message", ""))
            message = (text.partition(DENIED_MARK)[2] or text).partition("\n")[0]
            known = seen.setdefault(
                (namespace, about),
                DeniedOwner(namespace=namespace, owner=about, count=0, first=at, last=at, message=message),
            )
            seen[namespace, about] = replace(known, first=min(known.first, at))
    yield from map(_problem_of, seen.values())


def _problem_of(denied: DeniedOwner) -> OwnerProblem:
    fields = {name: getattr(denied, name) for name in OwnerProblem.__struct_fields__ if name != "answer"}
    return OwnerProblem(answer=Answer.DENIED, **fields)


def _with_terminating_pods(
    problems: Iterable[OwnerProblem], pods: Iterable[StoredPod], now: datetime
) -> Iterator[OwnerProblem]:
    """Yield the denials. One by the quota names a terminating pod of the same owner, for whose end it waits."""
    ending = {
        (pod.metadata.namespace or "", pod.metadata.controlled_by): pod for pod in pods if pod.is_terminating
    }
    for problem in problems:
        pod = ending.get((problem.namespace, problem.owner))
        if pod is not None and problem.message.endswith(f"[{QUOTA_RULE.id}]"):
            why = reasons.terminating_cause(pod, now).message
            message = f"exceeded quota until its old pods have ended: Pod {pod.metadata.name} {why}"
            problem = replace(problem, message=message)  # noqa: PLW2901
        yield problem


def pending_problems(pods: Sequence[StoredPod], now: datetime) -> Iterator[OwnerProblem]:
    """Yield the pods that do not run for longer than PENDING_AFTER, by owner, with what is true for most of them.

    A pod that waits in line for quota does not just start, so it counts at once.
    """
    by_owner: dict[tuple[str, str, Answer], list[tuple[datetime, str, str]]] = defaultdict(list)
    for pod in pods:
        meta = pod.metadata
        # A pod that is being deleted is a problem once its grace period is over.
        since = meta.deletion_timestamp if pod.is_terminating else meta.created
        cause = None if pod.has_ended else reasons.pod_cause(pod, now)
        if cause is None or since is None:
            continue
        if pod.waits_in_line or now - since > PENDING_AFTER:
            gated = Answer.GATED if pod.gates else Answer.PENDING
            answer = Answer.WAITING if pod.waits_in_line else gated
            by_owner[meta.namespace or "", pod.holder, answer].append((since, meta.name, cause.message))
    for (namespace, owner, answer), of_owner in by_owner.items():
        messages = [message for _, _, message in of_owner]
        message = max(messages, key=messages.count)
        name, same_message = (
            min(name for _, name, text in of_owner if text == message),
            messages.count(message),
        )
        more = f" (and {same_message - 1} more)" if same_message > 1 else ""
        yield OwnerProblem(
            answer=answer,
            namespace=namespace,
            owner=owner,
            count=len(of_owner),
            first=min(since for since, _, _ in of_owner),
            last=now,
            message=f"Pod {name}{more} {message}",
        )
