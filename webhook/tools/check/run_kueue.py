"""What Kueue does with the objects of one run of `check` that name a LocalQueue, by its documents and by the cluster."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from policies.finding import NOT_STARTED_BY_KUEUE, ContactEdit, Edit, Finding, Severity, separate_choices
from policies.pods.field_paths import value_at
from policies.pods.quantity import QuantityError
from policies.quota.amounts import RESOURCES, ZERO, format_amount
from policies.quota.demand import UnclassifiedPods, pod_demand
from policies.quota.waiting import QUEUE_NAME
from webhook.cluster.kueue import GROUP, NOT_STOPPED, Queue, most_admitted
from webhook.configuration.loader import Configuration
from webhook.tools.check.manifests import Manifest
from webhook.tools.check.run_context import CheckedCluster
from webhook.tools.status.kueue import QueueState

QUEUE_LABEL_PATH = f"metadata.labels[{QUEUE_NAME}]"


class RunKueue:
    """Documents of the run count in place of those of the cluster."""

    def __init__(
        self, manifests: Sequence[Manifest], configuration: Configuration, cluster: CheckedCluster | None
    ) -> None:
        self._configuration, self._cluster = configuration, cluster
        self._written: dict[str, dict[tuple[str, str], Queue]] = {}
        for manifest in manifests:
            if manifest.group == GROUP:
                with suppress(msgspec.ValidationError):  # the API server rejects it
                    namespace = manifest.namespace if manifest.kind == "LocalQueue" else ""
                    read = msgspec.convert(manifest.data, Queue)
                    self._written.setdefault(manifest.kind, {})[namespace, manifest.name] = read

    def findings(self, manifest: Manifest) -> Iterator[Finding]:
        """Yield why Kueue does not start the object. What it says of a stored one is a note of the cluster."""
        name = value_at(manifest.data, ("metadata", "labels", QUEUE_NAME))
        namespace, cluster = manifest.namespace, self._cluster
        stored = cluster.queues(namespace) if cluster and name else None
        local_queues = self._written.get("LocalQueue", {})
        written = {name: queue for (at, name), queue in local_queues.items() if at == namespace}
        if not isinstance(name, str) or (stored is None and not written):
            return
        states = {state.name: state for state in stored or () if state.exists}
        local, state = written.get(name), states.get(name)
        warning = partial(Finding, rule="workloads", reason=NOT_STARTED_BY_KUEUE, severity=Severity.WARNING)
        if local is None and state is None:
            yield warning(
                path=QUEUE_LABEL_PATH,
                value=name,
                message=f"must be a LocalQueue of namespace {namespace}: Kueue does not start the object",
                choices=separate_choices(
                    *(Edit(QUEUE_LABEL_PATH, queue) for queue in sorted({*written, *states}))
                ),
                ask_contact="for a LocalQueue of the namespace",
                contact_choices=((ContactEdit("LocalQueue"),),),
            )
            return
        cluster_queue = local.spec.cluster_queue if local else state.cluster_queue if state else ""
        queue = self._queues_of("ClusterQueue").get(cluster_queue)
        queues_by_title = {f"LocalQueue {name}": local, f"ClusterQueue {cluster_queue}": queue}
        titles = [
            title for title, each in queues_by_title.items() if each and each.spec.stop_policy != NOT_STOPPED
        ]
        if titles or (local is None and state and state.is_stopped):
            unknown = (
                f" or ClusterQueue {cluster_queue}" if queue is None else ""
            )  # tenants can seldom read one
            subject = " and ".join(titles) or f"LocalQueue {name}{unknown}"
            message = f"stopPolicy of {subject} is set: Kueue does not start the object until it is None"
            yield warning(path=QUEUE_LABEL_PATH, message=message, ask_contact="why it is set")
        if queue is not None:
            for path, message in self._too_large(manifest, queue):
                yield warning(path=path, message=message)
        if cluster is not None and state is not None:
            cluster.note(_kueue_note(manifest, state))

    def _queues_of(self, kind: str) -> dict[str, Queue]:
        """Return the ClusterQueues or Cohorts by name."""
        stored = self._cluster.kueue_objects(kind) if self._cluster else ()
        written = {name: queue for (_, name), queue in self._written.get(kind, {}).items()}
        return {queue.metadata.name or "": queue for queue in stored} | written

    def _too_large(self, manifest: Manifest, queue: Queue) -> Iterator[tuple[str, str]]:
        """Yield path and problem of pods that need more than a flavor has: Kueue gives those of one template the same."""
        try:
            queues, cohorts = self._queues_of("ClusterQueue").values(), self._queues_of("Cohort").values()
            max_amounts = most_admitted(queue, queues, cohorts, self._configuration.resource_mapping)
        except QuantityError:  # the API server rejects it
            return
        for written, pod in manifest.pods:
            count = (written.count.resumed or written.count).running or 0
            vector = pod_demand(pod, self._configuration, UnclassifiedPods.TOTAL_ONLY).vector
            for key, amount in vector.items():
                resource, needed = key.removeprefix(RESOURCES), amount * count
                max_amount = max(
                    (amount for (_, name), amount in max_amounts.items() if name == resource), default=ZERO
                )
                if key.startswith(RESOURCES) and needed > max_amount:
                    message = (
                        f"need {format_amount(needed)} {resource} for {count} pods, and ClusterQueue {queue.metadata.name} can "
                        f"admit {format_amount(max_amount)} of one flavor: Kueue never starts the object"
                    )
                    yield written.path, message


def _kueue_note(manifest: Manifest, queue: QueueState) -> str:
    """Return what Kueue says of the object, or of its LocalQueue if it does not know the object yet."""
    title = f"{manifest.kind}/{manifest.name}"
    known = next((state for state in queue.objects if state.owner == title), None)
    if known is None:
        return f"{title} would be behind {queue.pending} pending: {queue.in_words}"
    return f"{title} {known.waits_for or f'was admitted by Kueue, in LocalQueue {queue.name}'}"
