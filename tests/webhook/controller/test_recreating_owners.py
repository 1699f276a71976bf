"""Which object makes a pod again, by what the API server has: an ownerReference may have any text."""

from pathlib import Path
from time import monotonic

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.configuration.loader import load_directory
from webhook.controller.recreating_owners import Owner, Owners
from webhook.workloads.gang_sources import GangSource

APPS = "/apis/apps/v1/namespaces/team"
OLD = GangSource("apps/v1", "ReplicaSet", "app-1", uid="old")
NEW = GangSource("apps/v1", "ReplicaSet", "app-2", uid="new")


def stored(uid: str, *owner: str, **metadata: str) -> JSON:
    found: JSON = {"uid": uid, **metadata}
    if owner:
        names = ("apiVersion", "kind", "name", "uid")
        found["ownerReferences"] = [dict(zip(names, owner, strict=True)) | {"controller": True}]
    return {"metadata": found}


OF_APP = ("apps/v1", "Deployment", "app", "app")
OBJECTS = {
    f"{APPS}/replicasets/app-1": stored("old", *OF_APP),
    f"{APPS}/replicasets/app-2": stored("new", *OF_APP),
    f"{APPS}/replicasets/alone": stored("alone"),
    f"{APPS}/replicasets/of-none": stored("of-none", "apps/v1", "Deployment", "gone", "gone"),
    f"{APPS}/replicasets/of-another": stored("of-another", "apps/v1", "Deployment", "app", "another"),
    f"{APPS}/replicasets/of-a-forged-group": stored("forged", "foo.example/v1", "Deployment", "app", "app"),
    f"{APPS}/deployments/app": stored("app"),
    f"{APPS}/statefulsets/ends": stored("ends", deletionTimestamp="2026-01-01T00:00:00Z"),
    "/apis/batch/v1/namespaces/team/jobs/train": stored("train"),
}
APP = Owner("apps", "Deployment", "app")


@cases(
    ("reference", "want"),
    the_deployment_of_a_replicaset=(OLD, APP),
    the_same_of_its_update=(NEW, APP),
    a_replicaset_without_deployment=(
        GangSource("apps/v1", "ReplicaSet", "alone", uid="alone"),
        Owner("apps", "ReplicaSet", "alone"),
    ),
    a_job=(GangSource("batch/v1", "Job", "train", uid="train"), Owner("batch", "Job", "train")),
    a_job_of_that_name_made_again=(GangSource("batch/v1", "Job", "train", uid="before"), None),
    a_forged_group=(GangSource("foo.example/v1", "ReplicaSet", "app-1", uid="old"), None),
    a_forged_uid=(GangSource("apps/v1", "ReplicaSet", "app-1", uid="forged"), None),
    no_uid=(GangSource("apps/v1", "ReplicaSet", "app-1"), None),
    a_replicaset_of_a_deployment_that_is_gone=(
        GangSource("apps/v1", "ReplicaSet", "of-none", uid="of-none"),
        None,
    ),
    a_replicaset_with_a_forged_uid=(
        GangSource("apps/v1", "ReplicaSet", "of-another", uid="of-another"),
        None,
    ),
    a_replicaset_with_a_forged_group=(
        GangSource("apps/v1", "ReplicaSet", "of-a-forged-group", uid="forged"),
        None,
    ),
    one_that_is_being_deleted=(GangSource("apps/v1", "StatefulSet", "ends", uid="ends"), None),
    a_pod_without_controller=(None, None),
)
def test_the_owner(tmp_path: Path, reference: GangSource | None, want: Owner | None) -> None:
    with ApiServer(tmp_path, answering(OBJECTS)) as server:
        owners = owners_of(server)
        assert owners.of("team", reference, monotonic() + 9) == want
        read = len(server.requests)
        assert owners.of("team", reference, monotonic() + 9) == want
        assert len(server.requests) == read, "it is remembered"


def test_owners_are_not_read_for_long_at_a_time(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(OBJECTS)) as server:
        owners = owners_of(server)
        assert owners.of("team", OLD, monotonic()) is None
        assert owners.of("team", OLD, monotonic() + 9) == APP


def owners_of(server: ApiServer) -> Owners:
    configuration = load_directory(None)
    return Owners(server.client(), lambda: configuration)
