"""Doctor on quotas, their ledgers and the class catalogues that these are counted by."""

from pathlib import Path
from typing import Any

import msgspec

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import COUNTED, QUOTAS, conditions, quota
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.quota.ledger_objects import EPOCH_OBJECT

LEDGERS = "/apis/gpu-admission.dev/v1alpha1/namespaces/gpu-admission/gpuquotaledgers"
CATALOGUES_CONFIG_MAP = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-catalogues"


def managed(document: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Return the object with managedFields that name these fields of its spec."""
    entry = {"manager": "kubectl", "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}}}
    return {**document, "metadata": {**document["metadata"], "managedFields": [entry]}}


def counted_by(*digests: str) -> dict[str, Any]:
    """Return a quota and its ledger: counted by one catalogue, and moving to the other one if there is one."""
    fields = zip(("classCatalogue", "nextCatalogue"), digests, strict=False)
    spec = {"quotaUid": "u", "generation": 1, "hard": {"gpus": "4"}, "unclassifiedPods": "TotalOnly"}
    return {
        QUOTAS: [quota()],
        LEDGERS: [ledger_object({**spec, **{field: f"{each}/TotalOnly" for field, each in fields}})],
    }


def ledger_object(ledger: Any, name: str = "team") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "gpu-admission", "uid": "r", "resourceVersion": "2"}
    return {"metadata": metadata, "ledger": msgspec.json.encode(ledger).decode()}


def published(*digests: str) -> dict[str, Any]:
    return {CATALOGUES_CONFIG_MAP: {"metadata": {"name": "c"}, "data": dict.fromkeys(digests, "{}")}}


PENDING = {
    **quota(),
    "status": {"hard": {"gpus": "4"}, "conditions": conditions(COUNTED), "observedGeneration": 0},
}
TOO_MUCH, SILENT = "gpus: 5 used of 4, 1 too many", "no message about pods for 200 s"
UNKNOWN = {"classes": {"nvidia-t4": "1", "deleted": "2"}, "resources": {"example.com/gpus": "1"}}
NOT_HELD = (
    "quota-classes-not-held: GPUQuota/default in team spec.unclassifiedPods: TotalOnly lets pods that "
    "pin no class exceed hard.classes: they count for a class only once they are bound; set "
    "MostExpensive, or Deny\n"
    "correct it: kubectl -n team edit gpuquota default"
)


@cases(
    ("found", "want"),
    all_is_well=(quota(COUNTED, ("Exceeded", "False", ""), ("Stale", "False", "")), []),
    exceeded=(
        quota(COUNTED, ("Exceeded", "True", TOO_MUCH)),
        [
            f"quota-exceeded: GPUQuota/default in team is Exceeded: {TOO_MUCH}\n"
            "see who holds it: gpu-admission quota -n team; nothing more is admitted"
        ],
    ),
    stale=(
        quota(COUNTED, ("Stale", "True", SILENT)),
        [
            f"quota-stale: GPUQuota/default in team is Stale: {SILENT}\n"
            "see in the controller's log, and in its metric gpu_admission_watch_age_seconds, whether it reaches the API server"
        ],
    ),
    unreadable=(
        quota(COUNTED, hard={"gpus": "many"}),
        [
            "quota-unreadable: GPUQuota/default in team the GPUQuota cannot be read: must be an amount such as 16, "
            '"0.5" or "2/7", not "many" - at `$.hard.gpus`\n'
            "correct it: kubectl -n team edit gpuquota default; until then its last valid version stays in force, and the GPUs "
            "of ended pods are not released"
        ],
    ),
    not_in_force=(
        PENDING,
        [
            "quota-pending: GPUQuota/default in team is in force as it was before generation 1 of its spec\n"
            "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
    never_counted=(
        quota(),
        [
            "quota-not-ready: GPUQuota/default in team is not Ready: was never counted: every GPU pod is denied\n"
            "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
    for_a_class_that_was_deleted=(
        quota(COUNTED, hard=UNKNOWN),
        [
            (
                "quota-limits-nothing: GPUQuota/default in team spec.hard.classes.deleted must be a GPU class or "
                "family\n"
                "correct it: kubectl -n team edit gpuquota default; or apply the GPUClass that it means"
            ),
            (
                "quota-limits-nothing: GPUQuota/default in team spec.hard.resources[example.com/gpus] must be a GPU "
                "resource: nothing else counts for a quota"
            ),
        ],
    ),
    stored_by_an_earlier_version_with_its_default=(
        quota(COUNTED, hard={"classes": {"nvidia-t4": "1"}}, unclassifiedPods="TotalOnly"),
        [NOT_HELD],
    ),
    that_lost_a_field_that_was_renamed=(
        managed(quota(COUNTED), "hard", "unpinned"),
        [
            "quota-lost-a-field: GPUQuota/default in team had spec.unpinned, which the API server dropped: the "
            "field is spec.unclassifiedPods now\n"
            "set spec.unclassifiedPods in its manifest, and apply it"
        ],
    ),
    applied_again_by_the_new_name=(managed(quota(COUNTED, unclassifiedPods="Deny"), "hard", "unpinned"), []),
)
def test_quotas(found: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("gpu-quotas", {QUOTAS: [found]}, want, tmp_path)


def test_without_quotas_there_is_nothing_to_find(tmp_path: Path) -> None:
    assert_found("gpu-quotas", {}, [], tmp_path)


@cases(
    ("objects", "want"),
    published=({**counted_by("here"), **published("here")}, []),
    counted_by_nothing_yet=(counted_by(), []),
    no_ledger=(
        {QUOTAS: [quota()]},
        [
            "ledger-missing: GPUQuota/default in team has no GPUQuotaLedger in gpu-admission, so replicas deny "
            "GPU pods there\n"
            "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
    unreadable=(
        {QUOTAS: [quota()], LEDGERS: [ledger_object({"hard": "many"})]},
        [
            "ledger-unreadable: GPUQuota/default in team has a ledger that replicas cannot use: the "
            "GPUQuotaLedger cannot be read: Expected `object`, got `str` - at `$.hard`\n"
            "when little is created, kubectl -n gpu-admission delete gpuquotaledgers team: everything is then "
            "counted again"
        ],
    ),
    the_epoch_is_no_ledger=({LEDGERS: [ledger_object("7", EPOCH_OBJECT)]}, []),
    its_quota_is_gone=(
        {**counted_by("here"), **published("here"), QUOTAS: []},
        [
            "ledger-left: GPUQuotaLedger/team in gpu-admission is of a namespace without a GPUQuota, and limits "
            "it until a controller deletes it\n"
            "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
    the_next_one_is_not_published=(
        {**counted_by("here", "there"), **published("here")},
        [
            "catalogue-not-published: GPUQuota/default in team is counted by class catalogue there, which "
            "ConfigMap gpu-admission-catalogues in gpu-admission lacks\n"
            "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict; the "
            "controller publishes it within a minute, and until then replicas of other versions deny"
        ],
    ),
    no_config_map=(
        counted_by("here"),
        [
            "catalogue-not-published: GPUQuota/default in team is counted by class catalogue here, which "
            "ConfigMap gpu-admission-catalogues in gpu-admission lacks"
        ],
    ),
)
def test_ledgers(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("ledgers", objects, want, tmp_path)


MOVED = {
    "quotaUid": "u",
    "generation": 1,
    "hard": {},
    "unclassifiedPods": "Deny",
    "movedTo": "clustergpuquota.vision",
}
EMPTY = {"team": {"name": "vision", "uid": "t", "generation": 1, "hard": {}, "unclassifiedPods": "Deny"}}
AFTER = "after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller"
DELETE = "when little is created, kubectl -n gpu-admission delete gpuquotaledgers"


@cases(
    ("own", "of_team", "remedy"),
    its_own=({"hard": "many"}, EMPTY, f"{DELETE} team: everything is then counted again"),
    that_of_its_team=(
        MOVED,
        {"hard": 1},
        f"{DELETE} clustergpuquota.vision: everything is then counted again",
    ),
    none_while_it_moves=(MOVED, EMPTY, f"wait ten seconds; {AFTER}"),
)
def test_which_object_is_deleted_if_a_ledger_cannot_be_read(
    own: JSON, of_team: JSON, remedy: str, tmp_path: Path
) -> None:
    ledgers = [ledger_object(own), ledger_object(of_team, "clustergpuquota.vision")]
    (finding,) = checked("ledgers", {QUOTAS: [quota()], LEDGERS: ledgers}, tmp_path).findings

    assert finding.remedy == remedy


@cases(
    ("until", "want"),
    lately=(
        4_000_000_000_000,
        [
            "creations-not-stored: pods in team were admitted lately and never stored, so the namespace may have "
            "less of its team in creation\n"
            "find out what rejects them: a name that is taken, a ResourceQuota, another webhook"
        ],
    ),
    long_ago=(1_000_000_000_000, []),
)
def test_creations_that_are_never_stored(until: int, want: list[str], tmp_path: Path) -> None:
    spec = {key: MOVED[key] for key in ("quotaUid", "generation", "hard", "unclassifiedPods")}
    of_team = {**EMPTY, "ledgers": {"team": {**spec, "unstored": [until - 60_000, until]}}}
    objects = {**published("here"), LEDGERS: [ledger_object(of_team, "clustergpuquota.vision")]}

    assert_found("ledgers", objects, want, tmp_path)


@cases(
    ("reason", "patience"),
    not_counted=("NotCounted", f"wait ten seconds; {AFTER}"),
    unreadable_until_the_bound=("Unreadable", f"wait a minute; {AFTER}"),
)
def test_how_long_a_quota_takes_to_be_ready(reason: str, patience: str, tmp_path: Path) -> None:
    stored_quota = quota(("Ready", "False", "requests are denied"))
    stored_quota["status"]["conditions"][0]["reason"] = reason
    (finding,) = checked("gpu-quotas", {QUOTAS: [stored_quota]}, tmp_path).findings

    assert finding.remedy == patience
