"""Which changes of stored claims are denied, because the claim, or its devices, would count in no quota."""

import json

from policies.gpus.claimed_devices import CLAIM, ClaimName, ResourceClaim, decode_claim
from policies.pods.pod import Metadata
from policies.quota.claim_protection import (
    EXTENDED_RESOURCE_CLAIM,
    FINALIZER,
    SCHEDULER,
    borrowed_claims,
    changed_owner,
    forged_mark,
    lost_protection,
    marked_pod_uid,
)
from tests.builders import JSON, gpu_container, pod, view
from tests.cases import cases
from tests.policies.quota.claims import GPU, OWNER, claim, decoded, exactly


@cases(
    ("annotation", "owner", "want"),
    the_schedulers_own=("true", OWNER, "pod-1"),
    annotated_otherwise=("false", OWNER, ""),
    not_annotated=(None, OWNER, ""),
    nobodys=("true", None, ""),
    owned_but_not_controlled=("true", {**OWNER, "controller": False}, ""),
    of_another_kind=("true", {**OWNER, "kind": "Job"}, ""),
    of_another_api=("true", {**OWNER, "apiVersion": "x/v1"}, ""),
)
def test_which_pod_a_claim_was_made_for(annotation: str | None, owner: JSON | None, want: str) -> None:
    assert marked_pod_uid(decoded(claim(exactly(GPU)), annotation, owner).metadata or Metadata()) == want


@cases(
    ("before", "after", "username", "is_refused"),
    created_by_the_scheduler=(None, "true", SCHEDULER, False),
    created_by_anybody_else=(None, "true", "tenant", True),
    created_with_another_value=(None, "false", "tenant", True),
    created_without=(None, None, "tenant", False),
    changed=("", "true", "tenant", True),
    kept=("true", "true", "tenant", False),
    removed_so_it_is_counted_in_full=("true", None, "tenant", False),
)
def test_who_may_mark_a_claim(before: str | None, after: str | None, username: str, is_refused: bool) -> None:
    old, new = (
        Metadata(annotations={EXTENDED_RESOURCE_CLAIM: each} if each else {}) for each in (before, after)
    )
    found = forged_mark(old if before is not None else None, new, username)

    assert (found is not None) is is_refused
    if found is not None:
        assert found.sentence() == (
            f'metadata.annotations[{EXTENDED_RESOURCE_CLAIM}] = "{after}": remove the annotation; must be '
            f"omitted: only {SCHEDULER} marks the claims that it makes for pods"
        )


@cases(
    ("allocated", "before", "after", "is_refused"),
    the_only_one_is_removed=(True, [FINALIZER], None, True),
    another_one_is_left=(True, [FINALIZER, "a.example/b"], ["a.example/b"], True),
    another_one_beside_it=(True, [FINALIZER], ["a.example/b", FINALIZER], False),
    after_the_allocation_was_cleared=(False, [FINALIZER], None, False),
    there_was_none=(True, None, None, False),
)
def test_an_allocated_claim_keeps_its_finalizer(
    allocated: bool, before: list[str] | None, after: list[str] | None, is_refused: bool
) -> None:
    def stored(finalizers: list[str] | None) -> ResourceClaim:
        body: JSON = {"metadata": {"name": "taken"}, "status": {}}
        if finalizers is not None:
            body["metadata"]["finalizers"] = finalizers
        if allocated:
            body["status"]["allocation"] = {"devices": {"results": []}}
        return decode_claim(json.dumps(body).encode())

    found = lost_protection(stored(before), stored(after))

    assert (found is not None) is is_refused
    if found is not None:
        assert found.sentence() == (
            "metadata.finalizers: delete the pods that use the claim; its controller then removes the finalizer; must "
            f"keep {FINALIZER} while the claim is allocated: pods may be using its devices"
        )


POD_OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "train-0", "uid": "p", "controller": True}
OTHER_POD = {**POD_OWNER, "name": "train-1", "uid": "q"}
JOB_OWNER = {**POD_OWNER, "kind": "Job", "apiVersion": "batch/v1"}
TAKEN = (
    "metadata.ownerReferences: delete the pod without --cascade=orphan, and create a ResourceClaim for pods that share devices; "
    "must keep the Pod that is its controller: the claim counts the devices of this pod, and ends with it"
)
GIVEN = (
    "metadata.ownerReferences: set controller of the Pod to false, or name a ResourceClaimTemplate in the pod; must not have a "
    "Pod as controller: only Kubernetes makes claims for pods, from templates"
)


@cases(
    ("before", "after", "want"),
    orphaned=([POD_OWNER], [], TAKEN),
    given_to_another_pod=([POD_OWNER], [OTHER_POD], TAKEN),
    no_controller_any_more=([POD_OWNER], [{**POD_OWNER, "controller": False}], TAKEN),
    of_an_unknown_kind_any_more=([POD_OWNER], [{**POD_OWNER, "apiVersion": "x/v1"}], TAKEN),
    kept_beside_another_owner=([POD_OWNER], [{**OTHER_POD, "controller": False}, POD_OWNER], None),
    of_no_pod=([JOB_OWNER], [], None),
    made_by_hand=([], [], None),
    given_to_a_pod=([], [POD_OWNER], GIVEN),
    given_to_the_pod_that_owns_it=([{**POD_OWNER, "controller": False}], [POD_OWNER], GIVEN),
    given_to_a_pod_by_the_version_of_its_owner=([{**POD_OWNER, "apiVersion": "x/v1"}], [POD_OWNER], GIVEN),
    taken_from_a_job_for_a_pod=([JOB_OWNER], [POD_OWNER], GIVEN),
    created_for_a_pod=(None, [POD_OWNER], GIVEN),
    created_to_end_with_a_pod=(None, [{**POD_OWNER, "controller": False}], None),
    created_for_a_job=(None, [JOB_OWNER], None),
)
def test_who_has_a_claim_stays_as_it_was_made(
    before: list[JSON] | None, after: list[JSON], want: str | None
) -> None:
    old, new = (
        None
        if owners is None
        else decode_claim(json.dumps({"metadata": {"name": "a", "ownerReferences": owners}}).encode())
        for owners in (before, after)
    )
    assert new is not None
    found = changed_owner(old, new)

    assert (found and found.sentence()) == want


def test_a_pod_that_names_a_claim_of_another_pod_is_denied() -> None:
    claims = [
        {"name": "gpu", "resourceClaimName": "made"},
        {"name": "own", "resourceClaimTemplateName": "made"},
    ]
    made = {ClaimName(CLAIM, "ml", "made"): True}
    (found,) = borrowed_claims(view(pod(gpu_container(), resourceClaims=claims)), "ml", made.get)
    (unread,) = borrowed_claims(
        view(pod(gpu_container(), resourceClaims=claims)), "ml", lambda name: None if name in made else False
    )

    assert [found.sentence(), unread.sentence()] == [
        'spec.resourceClaims[0].resourceClaimName = "made": name a ResourceClaim that you create for several pods, or the '
        "template; must not name a claim that was made from a template: it counts the devices of its own pod alone",
        'spec.resourceClaims[0].resourceClaimName = "made": create the pod again; could not be read',
    ]
