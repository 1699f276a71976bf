"""A workload as rules see it: the object itself, and the pods that it makes, with how many there are of each."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec

from policies.pods.pod import Metadata, Pod


class PodCount(msgspec.Struct, frozen=True):
    """How many pods one template makes, as far as the object says."""

    running: int | None = 1
    """Pods at one time, as written: 0 of what is suspended or only a template, None where the object does not say."""
    most: int | None = None
    """Pods up to which the workload may scale itself, None where it does not scale, or without a limit."""
    gang: int | None = None
    """Pods of this template that must run at the same time for any of them to work, None where each works by itself."""


class WorkloadPods(msgspec.Struct, frozen=True):
    """The pods of one template: its path in the object, the pod as written, and their number.

    `admitted` is the pod with what the enforced rules add to it, `denied` whether they deny it.
    """

    path: str
    pod: Pod
    count: PodCount
    admitted: Pod
    denied: bool = False


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """An object that may make pods. `data` is all of it as plain JSON; `pods` omits those that are too long to be read.

    Of a kind that is not known to make pods, `pods` is empty.
    """

    group: str
    kind: str
    namespace: str
    name: str
    metadata: Metadata
    data: Mapping[str, Any]
    pods: tuple[WorkloadPods, ...] = ()
    target: "Workload | None" = None
    """Of an autoscaler: what it scales, as it is with the most replicas that it may get; None where that is not known."""

    @classmethod
    def of(
        cls,
        group: str,
        kind: str,
        namespace: str,
        data: Any,
        pods: Iterable[WorkloadPods],
        target: "Workload | None" = None,
    ) -> Self:
        """Return the workload of an object in plain JSON; what is of the wrong type, which no API server stores, is empty."""
        data = data if isinstance(data, dict) else {}
        try:
            metadata = msgspec.convert(data.get("metadata") or {}, Metadata)
        except msgspec.ValidationError:
            metadata = Metadata()
        name = metadata.name or metadata.generate_name or ""
        return cls(
            group=group,
            kind=kind,
            namespace=namespace,
            name=name,
            metadata=metadata,
            data=data,
            pods=tuple(pods),
            target=target,
        )
