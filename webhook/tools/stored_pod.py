"""The fields of stored pods that say why they do not run."""

import re
from datetime import datetime
from typing import Any

import msgspec

from policies.pods.pod import Metadata, Named, OwnerReference
from policies.quota.waiting import GATE

_ATTEMPTS = re.compile(r"[.,] (?:no new claims to deallocate|preemption:)")
"""Where the scheduler's message goes on to what it tried in vain (`FitError` and `PostFilter` of v1.37)."""


class _Metadata(Metadata, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_grace_period_seconds: int = 0

    @property
    def owner(self) -> OwnerReference | None:
        """The controller, else the first owner."""
        return self.controller or next(iter(self.owner_references or ()), None)

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
        after = f", after it exited with {ended} (restarts: {self.restart_count})" if ended else ""
        return f"container {self.name}: {why}{after}"


def ended_with(state: dict[str, Any] | None) -> str:
    """Return how a container ended: `code 137, OOMKilled`; "" if it did not."""
    ended = (state or {}).get("terminated")
    return f"code {ended.get('exitCode')}, {ended.get('reason') or 'no reason'}" if ended else ""


class _Claim(msgspec.Struct, frozen=True, rename="camel"):
    """A claim that the pod names, or one that a controller made for it; its name is None if the pod does not need it."""

    resource_claim_name: str | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    resource_claim_statuses: tuple[_Claim, ...] | None = None
    extended_resource_claim_status: _Claim | None = None
    message: str = ""
    conditions: tuple[dict[str, Any], ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[Named, ...] | None = None
    resource_claims: tuple[_Claim, ...] | None = None


def without_attempts(message: str) -> str:
    """Return why a scheduler finds no node, without what else it tried."""
    return _ATTEMPTS.split(message)[0]


class StoredPod(msgspec.Struct, frozen=True):
    """The fields of a stored pod that say why it does not run. Owners are read as this, too: their lists have metadata only."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def title(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

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
    def other_gates(self) -> tuple[str, ...]:
        """Its scheduling gates that we do not remove."""
        return tuple(gate for gate in self.gates if gate != GATE)

    @property
    def holder(self) -> str:
        return self.metadata.controlled_by or f"Pod/{self.metadata.name}"

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of its ResourceClaims: those that it names, and those that were made for it."""
        extended = self.status.extended_resource_claim_status
        made = (*(self.status.resource_claim_statuses or ()), *((extended,) if extended else ()))
        named = (claim.resource_claim_name for claim in (*(self.spec.resource_claims or ()), *made))
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def waits_in_line(self) -> bool:
        return GATE in self.gates and not self.is_terminating

    @property
    def unscheduled(self) -> str:
        """What the scheduler says of a pod that it finds no node for, "" of any other."""
        if self.spec.node_name or self.waits_in_line:
            return ""
        conditions = (each for each in self.status.conditions or () if each["type"] == "PodScheduled")
        message = next((each.get("message", "") for each in conditions if each["status"] == "False"), "")
        return without_attempts(str(message))

    @property
    def awaits_scheduler(self) -> bool:
        """Whether no scheduler has considered it yet, as while one of its ResourceClaims is not there."""
        is_over = self.spec.node_name or self.is_terminating or self.status.phase != "Pending"
        return not (is_over or self.gates or self.unscheduled)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Why its containers wait on their node."""
        return tuple(filter(None, (container.waits_for for container in self._containers)))

    @property
    def failure(self) -> str:
        """How the first container that failed ended: `container main exited with code 1, Error`; "" if none did."""
        for container in self._containers:
            ended = (container.state or {}).get("terminated")
            if ended and ended.get("exitCode"):
                return f"container {container.name} exited with {ended_with(container.state)}"
        return ""

    @property
    def _containers(self) -> tuple[_ContainerStatus, ...]:
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


decode_stored = msgspec.json.Decoder(StoredPod).decode
