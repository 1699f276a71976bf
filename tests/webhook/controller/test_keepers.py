"""Which object keeps quota for a pod, and how much it asks for, by what the API server has."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.keeps import DemandOfObject
from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.cluster import errors
from webhook.configuration.loader import load_directory
from webhook.controller.gangs import Gangs
from webhook.controller.keepers import Keepers
from webhook.workloads.gang_sources import GangSource

ONE, TWO = Fraction(1), Fraction(2)


def template(gpus: int = 1) -> JSON:
    return {"spec": {"containers": [gpu_container(str(gpus))] if gpus else [{"name": "main", "image": "x"}]}}


def stored(api_version: str, kind: str, spec: JSON, above: str = "", **fields: Any) -> tuple[str, JSON]:
    """Return the path and the object, whose uid is its kind. `above` is the apiVersion and kind of its controller."""
    metadata: JSON = {"name": "x", "uid": kind, **fields.pop("metadata", {})}
    if above:
        version, _, owner = above.rpartition("/")
        metadata["ownerReferences"] = [
            {"apiVersion": version, "kind": owner, "name": "x", "uid": owner, "controller": True}
        ]
    api = "/apis" if "/" in api_version else "/api"
    path = f"{api}/{api_version}/namespaces/team/{kind.lower()}s/x"
    return path, {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, **fields}


REPLICAS: JSON = {"replicas": 3, "template": template()}
WHOLE: JSON = {"completionMode": "Indexed", "completions": 4, "parallelism": 4, "template": template()}
JOBSET: JSON = {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": WHOLE}}]}
GROUPS: JSON = {
    "headGroupSpec": {"template": template(0)},
    "workerGroupSpecs": [{"replicas": 4, "maxReplicas": 9, "template": template(2)}],
}
LWS: JSON = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}}
ROLES: JSON = {
    "pytorchReplicaSpecs": {
        "Master": {"replicas": 1, "template": template(2)},
        "Worker": {"replicas": 3, "template": template(2)},
    }
}
RS = stored("apps/v1", "ReplicaSet", REPLICAS, "apps/v1/Deployment")
DEPLOYMENT = stored("apps/v1", "Deployment", REPLICAS)


@contextmanager
def keepers_of(folder: Path, *objects: tuple[str, JSON]) -> Iterator[tuple[Keepers, ApiServer]]:
    configuration = load_directory(None)
    with ApiServer(folder, answering(dict(objects))) as server:
        gangs = Gangs(server.client(), lambda: configuration, lambda _: None)

        def gpus_of(pod: Any) -> Fraction:
            return sum(
                (Fraction(each.resources.limits["nvidia.com/gpu"]) for each in pod.spec.containers or ()),
                Fraction(0),
            )

        yield Keepers(gangs, gpus_of), server


def source(api_version: str, kind: str) -> GangSource:
    return GangSource(api_version, kind, "x", uid=kind)


@cases(
    ("reference", "objects", "want"),
    a_deployment_of_a_replicaset=(source("apps/v1", "ReplicaSet"), [RS, DEPLOYMENT], "Deployment"),
    a_rollout_of_a_replicaset=(
        source("apps/v1", "ReplicaSet"),
        [
            stored("apps/v1", "ReplicaSet", REPLICAS, "argoproj.io/v1alpha1/Rollout"),
            stored("argoproj.io/v1alpha1", "Rollout", REPLICAS),
        ],
        "Rollout",
    ),
    a_replicaset_whose_deployment_is_gone=(source("apps/v1", "ReplicaSet"), [RS], "ReplicaSet"),
    a_replicaset_of_an_experiment=(
        source("apps/v1", "ReplicaSet"),
        [
            stored("apps/v1", "ReplicaSet", REPLICAS, "argoproj.io/v1alpha1/Experiment"),
            stored("argoproj.io/v1alpha1", "Experiment", {"templates": [REPLICAS]}),
        ],
        "ReplicaSet",
    ),
    a_job_of_a_cronjob=(
        source("batch/v1", "Job"),
        [
            stored("batch/v1", "Job", WHOLE, "batch/v1/CronJob"),
            stored("batch/v1", "CronJob", {"jobTemplate": {"spec": WHOLE}}),
        ],
        "Job",
    ),
    a_job_of_a_configmap=(
        source("batch/v1", "Job"),
        [stored("batch/v1", "Job", WHOLE, "v1/ConfigMap"), stored("v1", "ConfigMap", {})],
        "Job",
    ),
    the_jobset_of_a_job=(
        source("batch/v1", "Job"),
        [
            stored("batch/v1", "Job", WHOLE, "jobset.x-k8s.io/v1alpha2/JobSet"),
            stored("jobset.x-k8s.io/v1alpha2", "JobSet", JOBSET, "trainer.kubeflow.org/v1alpha1/TrainJob"),
            stored("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"numNodes": 8}}),
        ],
        "JobSet",
    ),
    a_raycluster_of_a_rayjob=(
        source("ray.io/v1", "RayCluster"),
        [
            stored("ray.io/v1", "RayCluster", GROUPS, "ray.io/v1/RayJob"),
            stored("ray.io/v1", "RayJob", {"rayClusterSpec": GROUPS}),
        ],
        "RayCluster",
    ),
    a_leaderworkerset_of_a_leader=(
        source("apps/v1", "StatefulSet"),
        [
            stored("apps/v1", "StatefulSet", REPLICAS, "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet"),
            stored("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", LWS),
        ],
        "LeaderWorkerSet",
    ),
    a_pytorchjob=(
        source("kubeflow.org/v1", "PyTorchJob"),
        [stored("kubeflow.org/v1", "PyTorchJob", ROLES)],
        "PyTorchJob",
    ),
    a_configmap=(source("v1", "ConfigMap"), [stored("v1", "ConfigMap", {})], None),
    a_cronjob=(
        source("batch/v1", "CronJob"),
        [stored("batch/v1", "CronJob", {"jobTemplate": {"spec": WHOLE}})],
        None,
    ),
    a_workflow=(
        source("argoproj.io/v1alpha1", "Workflow"),
        [stored("argoproj.io/v1alpha1", "Workflow", {"templates": [{"container": gpu_container("1")}]})],
        None,
    ),
    an_object_with_another_uid=(
        GangSource("apps/v1", "ReplicaSet", "x", uid="forged"),
        [RS, DEPLOYMENT],
        "",
    ),
    an_object_of_another_group=(source("foo.example/v1", "ReplicaSet"), [RS, DEPLOYMENT], ""),
    a_configmap_that_is_being_deleted=(
        source("v1", "ConfigMap"),
        [stored("v1", "ConfigMap", {}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})],
        "",
    ),
    no_uid=(GangSource("apps/v1", "ReplicaSet", "x"), [RS], ""),
    no_controller=(None, [], ""),
)
def test_which_object_keeps_quota(
    tmp_path: Path, reference: GangSource | None, objects: list[tuple[str, JSON]], want: str | None
) -> None:
    with keepers_of(tmp_path, *objects) as (keepers, server):
        found = keepers.of("team", reference, monotonic() + 9)
        kind = reference.kind if reference else ""
        wanted = {None: (kind, ""), "": None}.get(want, (want, kind))
        assert (found and (found.uid, found.through)) == wanted, "None: itself, which keeps nothing"
        read = len(server.requests)
        assert keepers.of("team", reference, monotonic() + 9) == found
        assert len(server.requests) == read, "it is remembered"


def test_objects_are_not_read_for_long_at_a_time(tmp_path: Path) -> None:
    with keepers_of(tmp_path, RS, DEPLOYMENT) as (keepers, server):
        assert keepers.of("team", source("apps/v1", "ReplicaSet"), monotonic()) is None
        assert not server.requests
        assert keepers.of("team", source("apps/v1", "ReplicaSet"), monotonic() + 9) is not None


def job(**fields: Any) -> tuple[str, JSON]:
    return stored("kubeflow.org/v1", "PyTorchJob", ROLES, **fields)


def status(**fields: Any) -> tuple[str, JSON]:
    return job(status=fields)


TRAIN = Keeper("kubeflow.org/v1", "PyTorchJob", "x", "PyTorchJob", "PyTorchJob")


@cases(
    ("found", "live", "want"),
    all_of_its_pods=(job(), [], DemandOfObject(4, Fraction(8))),
    what_its_live_pods_lack=(job(), [TWO, TWO, TWO], DemandOfObject(1, TWO)),
    more_live_ones_than_it_asks_for=(job(), [TWO] * 5, DemandOfObject(-1, -TWO)),
    nothing_of_one_that_is_suspended=(
        stored("kubeflow.org/v1", "PyTorchJob", {**ROLES, "runPolicy": {"suspend": True}}),
        [],
        DemandOfObject(0, Fraction(0)),
    ),
    nothing_of_one_that_is_being_deleted=(
        job(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        [],
        None,
    ),
    nothing_of_another_one_of_that_name=(job(metadata={"uid": "another"}), [], None),
    nothing_of_one_that_has_failed=(status(conditions=[{"type": "Failed", "status": "True"}]), [], None),
    nothing_of_one_that_is_failing=(
        status(conditions=[{"type": "FailureTarget", "status": "True"}]),
        [],
        None,
    ),
    nothing_of_one_that_ended_by_its_state=(status(state={"phase": "Aborted"}), [], None),
    all_of_one_that_restarts=(
        status(conditions=[{"type": "Restarting", "status": "True"}, {"type": "Failed", "status": "False"}]),
        [],
        DemandOfObject(4, Fraction(8)),
    ),
    hostile_conditions=(status(conditions=["x", 1, {"type": 1}]), [], DemandOfObject(4, Fraction(8))),
)
def test_what_an_object_asks_for(
    tmp_path: Path, found: tuple[str, JSON], live: list[Fraction], want: DemandOfObject | None
) -> None:
    with keepers_of(tmp_path, found) as (keepers, _):
        assert keepers.room("team", TRAIN, live) == want


def test_an_object_that_is_gone_asks_for_nothing(tmp_path: Path) -> None:
    with keepers_of(tmp_path) as (keepers, _):
        assert keepers.room("team", TRAIN, []) is None


def test_an_object_that_cannot_be_read_now_is_not_taken_for_one_that_is_gone(tmp_path: Path) -> None:
    with keepers_of(tmp_path) as (keepers, _):
        pass
    with pytest.raises(errors.ApiError):
        keepers.room("team", TRAIN, [])
