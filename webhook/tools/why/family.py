"""The pods of an object, whoever made them for it: a Deployment's by its ReplicaSets, a CronJob's by its Jobs.

Owners are followed upwards from the pods, and from what was denied pods, by one list of metadata for each kind of owner: few
calls, whatever operators there are, and however many objects.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from policies.pods.pod import Metadata, Named, OwnerReference
from policies.quota.waiting import GATE
from webhook.cluster import errors
from webhook.cluster.api import METADATA_LIST, shallow
from webhook.cluster.objects import decode_owned
from webhook.controller.records import PODS
from webhook.tools.status.denials import ClusterEvent
from webhook.tools.status.pending import no_node_words
from webhook.tools.status.permitted import Permitted
from webhook.tools.why.discovery import ServedKind, ServedKinds

MAX_LEVELS = 5
"""Owners above a pod: a Pod of a Job of a JobSet of a TrainJob has three."""


class _Metadata(Metadata, frozen=True):
    name: str = ""
    uid: str = ""
    deletion_grace_period_seconds: int = 0

    @property
    def owner(self) -> OwnerReference | None:
        """The controller, else the first owner."""
        owners = self.owner_references or ()
        return next((each for each in owners if each.controller), owners[0] if owners else None)

    @property
    def created(self) -> datetime | None:
        return datetime.fromisoformat(self.creation_timestamp) if self.creation_timestamp else None


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    state: dict[str, Any] | None = None
    last_state: dict[str, Any] | None = None
    restart_count: int = 0

    @property
    def waits_for(self) -> str:
        """Why it waits on its node, and how it ended before: `container main: CrashLoopBackOff: …`; "" if it does not wait."""
        waiting = (self.state or {}).get("waiting")
        if waiting is None:
            return ""
        why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        ended = ended_with(self.last_state)
        after = f", after it exited with {ended} ({self.restart_count} restarts)" if ended else ""
        return f"container {self.name}: {why}{after}"


def ended_with(state: dict[str, Any] | None) -> str:
    """Return how a container ended: `code 137, OOMKilled`; "" if it did not."""
    ended = (state or {}).get("terminated")
    return f"code {ended.get('exitCode')}, {ended.get('reason') or 'no reason'}" if ended else ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    message: str = ""
    conditions: tuple[dict[str, Any], ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[Named, ...] | None = None


class StoredPod(msgspec.Struct, frozen=True):
    """A stored pod, as far as it says why it does not run. Owners are read as this, too: their lists have metadata only."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def has_ended(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None and not self.has_ended

    @property
    def is_running(self) -> bool:
        return self.status.phase == "Running" and not self.is_terminating and not any(self.waiting)

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(gate.name for gate in self.spec.scheduling_gates or ())

    @property
    def waits_in_line(self) -> bool:
        """Whether it waits in line for quota."""
        return GATE in self.gates and not self.is_terminating

    @property
    def unscheduled(self) -> str:
        """What the scheduler says of a pod that it finds no node for, "" of any other."""
        if self.spec.node_name or self.waits_in_line:
            return ""
        found = (each for each in self.status.conditions or () if each["type"] == "PodScheduled")
        said = next((each.get("message", "") for each in found if each["status"] == "False"), "")
        return no_node_words(str(said))

    @property
    def is_unconsidered(self) -> bool:
        """Whether no scheduler has considered it yet, as while one of its ResourceClaims is not there."""
        is_over = self.spec.node_name or self.is_terminating or self.status.phase != "Pending"
        return not (is_over or self.gates or self.unscheduled)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Why its containers wait on their node."""
        return tuple(filter(None, (each.waits_for for each in self._containers)))

    @property
    def failure(self) -> str:
        """How the first container that failed ended: `container main exited with code 1, Error`; "" if none did."""
        for each in self._containers:
            ended = (each.state or {}).get("terminated")
            if ended and ended.get("exitCode"):
                return f"container {each.name} exited with {ended_with(each.state)}"
        return ""

    @property
    def _containers(self) -> tuple[_ContainerStatus, ...]:
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


decode_stored = msgspec.json.Decoder(StoredPod).decode


def read_author(
    reader: Permitted, kinds: ServedKinds, namespace: str, served: ServedKind, document: bytes
) -> tuple[ServedKind, bytes]:
    """Return the object that people wrote: the last controller above this one that is served and readable, else this one."""
    for _ in range(MAX_LEVELS):
        owner = decode_owned(document).controller
        above = kinds.of_reference(owner.api_version, owner.kind) if owner else None
        if owner is None or above is None:
            break
        try:
            document = shallow(reader.api.get(above.resource.path(namespace, owner.name)))
        except (errors.Forbidden, errors.NotFound):
            break
        served = above
    return served, document


def read_family(
    reader: Permitted, kinds: ServedKinds, namespace: str, uid: str, denied: Iterable[ClusterEvent]
) -> tuple[list[StoredPod], frozenset[str]]:
    """Return the pods of the object `uid`, and the uids of everything between it and them, with its own.

    `denied` are the Events about objects of its namespace whose pods were denied.
    """
    read = partial(reader.api.list, PODS.path(namespace), decode_stored)
    listed = reader.attempt_list("pods", namespace, read)
    pods = listed.items if listed else []
    parents: dict[str, str] = {}
    unknown: dict[str, tuple[str, str]] = {}
    for pod in pods:
        owner = pod.metadata.owner
        if owner is not None:
            parents[pod.metadata.uid] = owner.uid
            unknown[owner.uid] = owner.api_version, owner.kind
    for event in denied:
        about = event.involved_object
        unknown[about.uid] = about.api_version, about.kind
    for _ in range(MAX_LEVELS):
        unknown = {each: of for each, of in unknown.items() if each not in parents and each != uid}
        if not unknown:
            break
        above = _follow(reader, kinds, namespace, sorted(set(unknown.values())), parents)
        for gone in unknown.keys() - parents.keys():
            parents[gone] = ""
        unknown = above
    members = frozenset(each for each in {*parents, uid} if _belongs(each, uid, parents))
    return [pod for pod in pods if pod.metadata.uid in members], members


def _follow(
    reader: Permitted, kinds: ServedKinds, namespace: str, of: list[tuple[str, str]], parents: dict[str, str]
) -> dict[str, tuple[str, str]]:
    """Add the owners of all objects of these kinds to `parents`; return the owners with their kinds."""
    found: dict[str, tuple[str, str]] = {}
    for api_version, kind in of:
        served = kinds.of_reference(api_version, kind)
        if served is None:
            continue
        path = served.resource.path(namespace)
        read = partial(reader.api.list, path, decode_stored, accept=METADATA_LIST)
        listed = reader.attempt_list(f"{served.plural}.{served.group}".rstrip("."), namespace, read)
        for each in listed.items if listed else ():
            owner = each.metadata.owner
            parents[each.metadata.uid] = owner.uid if owner else ""
            if owner is not None:
                found[owner.uid] = owner.api_version, owner.kind
    return found


def _belongs(each: str, uid: str, parents: Mapping[str, str]) -> bool:
    for _ in range(MAX_LEVELS + 1):
        if each == uid:
            return True
        each = parents.get(each, "")
    return False
