"""Why Kueue does not start an object yet, and what to do."""

from collections.abc import Sequence
from itertools import chain

from policies.finding import ContactEdit, Edit
from policies.quota.waiting import QUEUE_NAME
from webhook.cluster.objects import decode_owned
from webhook.tools.status.kueue import KueueState
from webhook.tools.stored_pod import StoredPod
from webhook.tools.why.explanation import Awaited, Cause, Source, Way


def family_uids(document: bytes, pods: Sequence[StoredPod]) -> frozenset[str]:
    """Return the uids of an object, of its pods, and of the owners of both: a Workload may belong to any of them."""
    members = (decode_owned(document).metadata, *(pod.metadata for pod in pods))
    owners = chain.from_iterable(each.owner_references or () for each in members)
    return frozenset(filter(None, (*(each.uid for each in members), *(each.uid for each in owners))))


def kueue_cause(state: KueueState, contact: str) -> Cause | None:
    """Return why Kueue does not start the object yet, without its name. None once Kueue has admitted it."""
    label = f"metadata.labels[{QUEUE_NAME}]"
    remedy, ways = "wait until Kueue admits it", tuple[Way, ...]([Way(awaits=(Awaited.KUEUE,))])
    if not state.waits_for:
        return None
    if not state.is_active:
        remedy = f"set spec.active: true of Workload {state.workload}"
        ways = (Way(contact_edits=(ContactEdit("Workload", "spec.active", "true"),)),)
    elif state.others is not None:
        remedy = f"set label {QUEUE_NAME}: {' or '.join(state.others)}"
        ways = tuple(Way(edits=(Edit(label, name),)) for name in state.others)
        if not state.others:
            remedy = f"ask {contact} for a LocalQueue of the namespace"
            ways = (Way(contact_edits=(ContactEdit("LocalQueue"),)),)
    elif state.stopped:
        remedy = f"wait until it is None, or ask {contact} why it is set"
    return Cause(source=Source.KUEUE, message=state.waits_for, remedy=remedy, ways=ways)
