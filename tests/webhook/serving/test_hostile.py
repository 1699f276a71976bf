"""What people, broken clients and attackers may send: answered in order, at once, and without growing."""

import base64
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from prometheus_client import CollectorRegistry

from tests.all_faults import longer
from tests.builders import JSON, container, gpu_container, pod
from tests.cases import cases
from tests.webhook.app_client import AppClient
from tests.webhook.serving.clients import client_of
from tests.webhook.serving.hostile_bodies import bodies, review, workload
from tests.webhook.serving.hostile_program import POLICY, Trial, client_with_quotas, slow_seconds
from tests.webhook.serving.long_objects import long_reviews
from webhook.serving.metrics import Metrics

ROOT = Path(__file__).parents[3]
SEED = 3
MEBIBYTE = 1024 * 1024


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "number",
    [5_000, pytest.param(20_000, marks=pytest.mark.long), pytest.param(100_000, marks=longer)],
)
def test_hostile_bodies_by_the_thousand(number: int, record_property: Callable[[str, Any], None]) -> None:
    command = [sys.executable, "-m", "tests.webhook.serving.hostile_program", str(number), str(SEED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)

    broken = report.pop("broken")
    for name, value in report.items():
        record_property(name, value)
    print(report)  # noqa: T201  figures, shown by -rA
    assert broken == []
    assert report["defects"] == {}
    assert report["reserved"] > number / 100
    assert report["grown_bytes"] < 10 * MEBIBYTE
    assert set(report["outcomes"]) == {"allowed", "patched", "no review", "code 400", "code 403"}
    assert min(report["outcomes"].values()) > number / 50, "each kind of answer has to be tried"


def test_some_hostile_bodies(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    trial = Trial(tmp_path)
    gc.freeze()  # a collection of all that earlier tests left takes half a second of some review
    for body in islice(bodies(SEED + 1), 300):
        trial.run(body)

    assert (trial.broken, trial.defects.places) == ([], [])
    assert trial.outcomes["allowed"] + trial.outcomes["patched"] > 150


MANY = 20_000


def slices(container_number: int, quantity: str) -> JSON:
    names = {f"nvidia.com/mig-{number}g.{container_number}gb": quantity for number in range(8)}
    return container(f"c{container_number}", resources={"limits": names})


@pytest.mark.parametrize("endpoint", ["/mutate", "/validate"])
@cases(
    ("document", "code"),
    many_wrong_containers=(pod(*[gpu_container("0.5", f"c{number}") for number in range(128)]), 403),
    many_wrong_numbers=(pod(*[slices(number, "0.5") for number in range(128)]), 403),
    many_unknown_slices=(pod(*[slices(number, "1") for number in range(128)]), 403),
    a_name_of_two_megabytes=(pod(gpu_container(resource="nvidia.com/mig-" + "1g" * 10**6)), 403),
    a_container_of_a_megabyte=(pod(gpu_container(name="c" * 10**6)), 403),
    a_quantity_of_a_megabyte=(pod(gpu_container("1" * 10**6)), 403),
    a_million_tolerations=(pod(gpu_container(), tolerations=[{}] * 10**6), 400),
)  # fmt: skip
def test_a_huge_object_is_answered_soon_and_shortly(endpoint: str, document: JSON, code: int | None) -> None:
    client = app()

    seconds, response = timed(client, endpoint, review("", "Pod", document))
    template_seconds, advice = timed(
        client, "/validate", review("apps", "Deployment", workload("Deployment", document))
    )

    assert response.get("status", {}).get("code") == code
    assert advice["allowed"]
    assert max(seconds, template_seconds) < slow_seconds(client)


BAD = gpu_container("0.5")
ROLES = {str(number): {"template": pod(BAD)} for number in range(MANY)}


@cases(
    ("group", "kind", "spec"),
    many_groups=("ray.io", "RayCluster", {"workerGroupSpecs": [{"template": pod(BAD)}] * MANY}),
    many_roles=("kubeflow.org", "PyTorchJob", {"pytorchReplicaSpecs": ROLES}),
    many_templates=("argoproj.io", "Workflow", {"templates": [{"container": BAD}] * MANY}),
    many_containers_of_one=(
        "argoproj.io",
        "Workflow",
        {"templates": [{"containerSet": {"containers": [BAD] * MANY}}]},
    ),
)
def test_a_huge_workload_is_answered_soon_and_shortly(group: str, kind: str, spec: JSON) -> None:
    client = app()

    seconds, advice = timed(client, "/validate", review(group, kind, {"spec": spec}))

    assert advice["allowed"]
    assert advice["warnings"]
    assert seconds < slow_seconds(client)


@pytest.mark.parametrize("endpoint", ["/mutate", "/validate"])
@pytest.mark.parametrize("namespace", ["defaults", "strict"])
def test_objects_as_long_as_they_may_be_take_no_time(tmp_path: Path, endpoint: str, namespace: str) -> None:
    Path(tmp_path, "policy.yaml").write_text(POLICY)
    client, _ = client_with_quotas(tmp_path)

    slow = slow_seconds(client)

    def is_slow(data: bytes) -> bool:
        """Whether it is twice: a garbage collection in between is not the review's."""
        return all(timed(client, endpoint, data)[0] > slow for _ in range(2))

    assert [name for name, data in long_reviews(namespace) if is_slow(data)] == []


def app() -> AppClient:
    return client_of(Metrics(CollectorRegistry()))


def timed(client: AppClient, endpoint: str, data: bytes) -> tuple[float, JSON]:
    started = time.process_time()
    answer = client.post(endpoint, data=data, content_type="application/json")
    seconds = time.process_time() - started
    assert len(answer.data) < 100_000
    response: JSON = answer.json["response"]
    return seconds, response


def test_bytes_that_are_no_text_are_refused_wherever_they_stand() -> None:
    data = review("", "Pod", pod(gpu_container(name="tr\u00e4ner"))).replace(b"\xc3\xa4", b"\xe4")

    answer = app().post("/mutate", data=data, content_type="application/json")

    assert (answer.status_code, answer.mimetype) == (400, "text/plain")
    assert answer.text.startswith("the body is not JSON: 'utf-8' codec can't decode byte 0xe4")


def test_a_pod_without_a_spec_gets_one_with_its_first_change() -> None:
    document = {"metadata": {"name": "empty", "annotations": {"gpu-fraction": "0.5"}}}
    answer = app().post("/mutate", data=review("", "Pod", document), content_type="application/json")

    patched = jsonpatch.apply_patch(document, base64.b64decode(answer.json["response"]["patch"]).decode())
    assert [each["key"] for each in patched["spec"]["tolerations"]] == ["nvidia.com/gpu"]
