"""What is denied or pending in a namespace, the worst first: `gpu-admission why` without a name.

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

from policies.pods.pod import Metadata
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Resource
from webhook.controller.records import PODS
from webhook.tools.status.denials import DENIED_MARK, ClusterEvent, denials_in_events
from webhook.tools.status.holders import PENDING_AFTER
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.report import DeniedOwner, Shown
from webhook.tools.why.explanation import Answer
from webhook.tools.why.family import StoredPod, decode_stored
from webhook.tools.why.reasons import FAILED_CREATE, REPLICA_FAILURE, has_ended, is_true, pod_cause

_WORST = (Answer.REFUSED, Answer.PENDING, Answer.GATED)


class Problem(Shown, frozen=True):
    """Pods of one owner that are denied (`refused`), or that do not run.

    count: denials that were seen, 0 where only a condition tells of them; or pods. first and last: of the denials; of pods that
      do not run, the creation of the oldest one, and now.
    """

    answer: Answer
    owner: str
    count: int
    first: datetime
    last: datetime
    message: str

    @property
    def order(self) -> tuple[int, int, datetime, str]:
        """The sort key: denied ones first, then most pods, then the longest."""
        return _WORST.index(self.answer), -self.count, self.first, self.owner


class Problems(Shown, frozen=True):
    """Everything of a namespace that is denied, or pending for longer than PENDING_AFTER; the worst first.

    since: the first denial that conditions and Events still tell of, None without any. omitted: what the caller may not read.
    """

    namespace: str
    at: datetime
    since: datetime | None
    problems: tuple[Problem, ...]
    omitted: tuple[str, ...] = ()


class _Owner(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


_OWNER = msgspec.json.Decoder(_Owner)


def _has_failed(owner: _Owner) -> bool:
    return is_true(owner.status or {}, REPLICA_FAILURE)


def _lacks_replicas(owner: _Owner) -> bool:
    return bool((owner.status or {}).get("replicas", 0) < (owner.spec or {}).get("replicas", 1))


def _lacks_pods_of_a_job(owner: _Owner) -> bool:
    spec, status = owner.spec or {}, owner.status or {}
    wanted = spec.get("parallelism", 1)
    if (completions := spec.get("completions")) is not None:
        wanted = min(wanted, completions - status.get("succeeded", 0))
    return not (has_ended(status) or spec.get("suspend")) and bool(status.get("active", 0) < wanted)


_LACKS_PODS: dict[str, tuple[Resource, Callable[[_Owner], bool]]] = {
    "Deployment": (Resource("/apis/apps/v1", "deployments"), _has_failed),
    "ReplicaSet": (Resource("/apis/apps/v1", "replicasets"), _has_failed),
    "ReplicationController": (Resource("/api/v1", "replicationcontrollers"), _has_failed),
    "StatefulSet": (Resource("/apis/apps/v1", "statefulsets"), _lacks_replicas),
    "Job": (Resource("/apis/batch/v1", "jobs"), _lacks_pods_of_a_job),
}
"""By kind, whether an object still lacks pods. Of other kinds only their Events are known."""


def read_problems(api: ApiClient, namespace: str, now: datetime) -> Problems:
    """Return what is denied or pending in the namespace now. Raises `errors.ApiError`, but for a lack of rights."""
    reader = Permitted(api)
    read_denials = partial(denials_in_events, api, namespace, now, _failure)
    denied = reader.attempt(f"list events -n {namespace}", read_denials) or ()
    owners = dict(_owners(reader, namespace))
    pods = reader.attempt(f"list pods -n {namespace}", partial(api.list, PODS.path(namespace), decode_stored))
    found = [*_denied(denied, owners), *pending(pods.items if pods else (), now)]
    return Problems(
        namespace=namespace,
        at=now,
        since=min((each.first for each in found if each.answer is Answer.REFUSED), default=None),
        problems=tuple(sorted(found, key=lambda each: each.order)),
        omitted=tuple(reader.omitted),
    )


def _failure(event: ClusterEvent) -> str:
    return event.denial or (event.message if event.reason == FAILED_CREATE else "")


def _owners(reader: Permitted, namespace: str) -> Iterator[tuple[str, dict[str, _Owner]]]:
    """Yield the objects of each kind that may be listed, by name."""
    for kind, (resource, _) in _LACKS_PODS.items():
        group = resource.prefix.removeprefix("/api").removeprefix("s/").rpartition("/")[0]
        right = f"list {'.'.join(filter(None, (resource.plural, group)))} -n {namespace}"
        listed = reader.attempt(right, partial(reader.api.list, resource.path(namespace), _OWNER.decode))
        if listed is not None:
            yield kind, {each.metadata.name or "": each for each in listed.items}


def _denied(denied: Iterable[DeniedOwner], owners: dict[str, dict[str, _Owner]]) -> Iterator[Problem]:
    """Yield the owners that lack pods: by their Events and, where these are gone, by the conditions."""
    seen: dict[str, Problem] = {}
    for each in denied:
        kind, _, name = each.owner.partition("/")
        if kind in owners:
            owner = owners[kind].get(name)
            if owner is None or not _LACKS_PODS[kind][1](owner):
                continue
        seen[each.owner] = Problem(
            answer=Answer.REFUSED,
            owner=each.owner,
            count=each.count,
            first=each.first,
            last=each.last,
            message=each.message,
        )
    for kind, objects in owners.items():
        for name, owner in objects.items():
            if owner.metadata.is_owned:  # its Deployment has the same condition
                continue
            for first, message in _failures(owner):
                key = f"{kind}/{name}"
                of_condition = Problem(
                    answer=Answer.REFUSED, owner=key, count=0, first=first, last=first, message=message
                )
                by_events = seen.get(key, of_condition)
                seen[key] = replace(by_events, first=min(by_events.first, first))
    yield from seen.values()


def _failures(owner: _Owner) -> Iterator[tuple[datetime, str]]:
    """Yield since when a condition says that pods could not be created, and the first line of why."""
    for each in (owner.status or {}).get("conditions") or ():
        if each.get("type") == REPLICA_FAILURE and each.get("status") == "True":
            message = str(each.get("message", ""))
            message = message.partition(DENIED_MARK)[2] or message
            yield datetime.fromisoformat(each["lastTransitionTime"]), message.partition("\n")[0]


def pending(pods: Sequence[StoredPod], now: datetime) -> Iterator[Problem]:
    """Yield the pods that do not run for longer than PENDING_AFTER, by owner, with what is true for most of them."""
    by_owner: dict[tuple[str, bool], list[tuple[datetime, str, str]]] = defaultdict(list)
    for pod in pods:
        created, cause = pod.metadata.created, None if pod.has_ended else pod_cause(pod)
        if cause is not None and created is not None and now - created > PENDING_AFTER:
            owner = pod.metadata.controlled_by or f"Pod/{pod.metadata.name}"
            by_owner[owner, bool(pod.gates)].append((created, pod.metadata.name, cause.message))
    for (owner, is_gated), found in by_owner.items():
        messages = [message for _, _, message in found]
        message = max(messages, key=messages.count)
        name, alike = min(name for _, name, said in found if said == message), messages.count(message)
        more = f" (and {alike - 1} more)" if alike > 1 else ""
        yield Problem(
            answer=Answer.GATED if is_gated else Answer.PENDING,
            owner=owner,
            count=len(found),
            first=min(created for created, _, _ in found),
            last=now,
            message=f"Pod {name}{more} {message}",
        )
