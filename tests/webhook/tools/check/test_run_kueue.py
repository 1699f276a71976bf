"""`gpu-admission check` of what names a LocalQueue: by the other documents, and by a cluster.

With the real Kueue: tests/neighbours/test_kueue.py.
"""

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from tests.builders import JSON, gpu_container, manifest
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering, group
from tests.webhook.commands.checked_cluster import FORBIDDEN, cluster
from webhook.commands import main

API = "kueue.x-k8s.io/v1beta2"
LABEL = "kueue.x-k8s.io/queue-name"
NEVER = (
    "spec.template: need 4 nvidia.com/gpu for 4 pods, and ClusterQueue gpus can admit {} of one flavor: Kueue never starts the "
    "object"
)


def made(kind: str, name: str, spec: JSON) -> JSON:
    return manifest(API, kind, name, spec, namespace="ml")


def whole(gpus: int | str, **spec: Any) -> JSON:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    return made(
        "ClusterQueue",
        "gpus",
        {"resourceGroups": [{"flavors": [{"name": "t4", "resources": [quota]}]}], **spec},
    )


def job(pods: int = 4, queue: str = "main") -> JSON:
    template = {"spec": {"containers": [gpu_container()], "restartPolicy": "Never"}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return manifest("batch/v1", "Job", "one", spec, namespace="ml", labels={LABEL: queue})


LOCAL = made("LocalQueue", "main", {"clusterQueue": "gpus"})
HELD = made("LocalQueue", "main", {"clusterQueue": "gpus", "stopPolicy": "Hold"})
COHORT = made("Cohort", "lab", {"resourceGroups": whole(3)["spec"]["resourceGroups"]})
MISSING = (
    f'metadata.labels[{LABEL}] = "other": set label {LABEL}: main; must be a LocalQueue of namespace ml: Kueue does not start '
    "the object; or ask the platform team for a LocalQueue of the namespace"
)


def said(documents: list[JSON], *options: str) -> str:
    text = yaml.safe_dump_all(documents)
    found = CliRunner(env={"COLUMNS": "1000"}).invoke(main, ["check", "-f", "-", *options], input=text)
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def warnings(output: str) -> list[str]:
    return [
        part.partition(" [workloads]")[0] for part in output.split("warning: ")[1:] if "[workloads]" in part
    ]


@cases(
    ("documents", "want"),
    it_fits=([LOCAL, whole(4), job()], []),
    of_a_queue_that_no_document_describes=([job()], []),
    in_no_queue=([LOCAL, whole(4), job(queue="other")], [MISSING]),
    in_a_held_queue=([HELD, job()], [
        f"metadata.labels[{LABEL}]: stopPolicy of LocalQueue main is set: Kueue does not start the object until it is None; ask "
        "the platform team why it is set"]),
    more_than_a_flavor_has=([LOCAL, whole(2), job()], [NEVER.format(2)]),
    within_what_it_borrows=([LOCAL, whole(2, cohortName="lab"), COHORT, job()], []),
    an_amount_that_is_none=([LOCAL, whole("many"), job()], []),
    unlike_a_queue=([made("LocalQueue", "main", {"clusterQueue": 1}), job()], []),
)  # fmt: skip
def test_by_documents(documents: list[JSON], want: list[str]) -> None:
    assert warnings(said(documents)) == want


WORKLOAD = {
    "metadata": {"name": "w", "uid": "w", "namespace": "ml", "ownerReferences": [{"kind": "Job", "name": "one", "uid": "u"}]},
    "spec": {"queueName": "main"},
}  # fmt: skip
QUEUES, STORED = f"/apis/{API}/namespaces/ml/localqueues", f"/apis/{API}/namespaces/ml/workloads"
CLUSTER = {
    "/apis/kueue.x-k8s.io": group("v1beta2"),
    QUEUES: [LOCAL],
    STORED: [],
    f"/apis/{API}/clusterqueues": [whole(2)],
    f"/apis/{API}/clusterqueues/gpus": whole(2),
    f"/apis/{API}/cohorts": [],
}
RESERVED = "ClusterQueue gpus has reserved 0 of 2 nvidia.com/gpu of flavor t4"


@cases(
    ("objects", "documents", "found", "note"),
    a_new_object=({}, [job(2)], [], f"Job/one would be behind 0 pending: LocalQueue main: 0 admitted, 0 pending; {RESERVED}"),
    a_stored_one=(
        {STORED: [WORKLOAD]}, [job(2)], [], f"Job/one waits in LocalQueue main of Kueue, place 1 of 1; {RESERVED}"
    ),
    it_is_too_large=({}, [job()], [NEVER.format(2)], "Job/one would be behind 0 pending"),
    a_document_counts_in_place_of_the_stored=({}, [whole(4), job()], [], "Job/one would be behind 0 pending"),
    in_no_queue=({}, [job(queue="other")], [MISSING], ""),
    where_kueue_is_not_installed=({"/apis/kueue.x-k8s.io": None}, [job(queue="other")], [], ""),
    where_queues_may_not_be_read=({QUEUES: FORBIDDEN}, [job(queue="other")], [], "list localqueues.kueue.x-k8s.io -n ml"),
    where_only_the_namespace_may_be_read=(
        {f"/apis/{API}/clusterqueues": FORBIDDEN, f"/apis/{API}/clusterqueues/gpus": FORBIDDEN},
        [job()],
        [],
        "Job/one would be behind 0 pending: LocalQueue main: 0 admitted, 0 pending",
    ),
)  # fmt: skip
def test_by_a_cluster(
    tmp_path: Path, objects: JSON, documents: list[JSON], found: list[str], note: str
) -> None:
    served = {path: each for path, each in {**cluster(), **CLUSTER, **objects}.items() if each is not None}
    with ApiServer(tmp_path, answering(served)) as server:
        output = said(documents, "--kubeconfig", str(server.kubeconfig()))
    assert warnings(output) == found
    assert note in output
