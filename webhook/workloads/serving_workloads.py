"""Workloads whose pods a PodDisruptionBudget may select, with the labels and numbers of their pods."""

from contextlib import suppress
from time import monotonic

import msgspec

from policies.pods.field_paths import value_at
from policies.pods.workload import Workload, WorkloadPods
from policies.rules.disruption import ServingWorkload
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient, Page, api_path
from webhook.cluster.namespaces import bounded_items
from webhook.configuration.workload_kinds import WorkloadKinds, plural
from webhook.workloads.places import workload_pods

LISTED_SERVING_KINDS = ("Deployment", "StatefulSet")
"""Kinds of API group apps that the webhook lists in the namespace of a new PodDisruptionBudget."""

_SERVERS = msgspec.json.Decoder(Page[msgspec.Raw])


def serving_workload(
    kinds: WorkloadKinds, key: tuple[str, str], namespace: str, document: msgspec.Raw
) -> ServingWorkload:
    """Return the server of an object, without the other fields of the object. Raises `msgspec.ValidationError`."""
    data, places = workload_pods(kinds, *key, document)
    pods = tuple(WorkloadPods(place.path, pod, place.count, pod) for place, pod in places)
    return ServingWorkload(
        Workload(*key, namespace, {"metadata": {"name": value_at(data, ("metadata", "name"))}}, pods)
    )


def list_serving_workloads(
    api: ApiClient, namespace: str, kinds: WorkloadKinds, deadline: float
) -> tuple[ServingWorkload, ...] | None:
    """Return the servers of a namespace; None if they are too many, or cannot be read by a `monotonic` deadline."""
    servers: list[ServingWorkload] = []
    with suppress(errors.ApiError, msgspec.ValidationError):
        for kind in LISTED_SERVING_KINDS:
            seconds = min(deadline - monotonic(), REVIEW_READ_SECONDS)
            path = api_path("/apis/apps/v1", "namespaces", namespace, plural(kind))
            items = bounded_items(api, path, _SERVERS.decode, seconds) if seconds > 0 else None
            if items is None:
                return None
            servers += (serving_workload(kinds, ("apps", kind), namespace, item) for item in items)
        return tuple(servers)
    return None
