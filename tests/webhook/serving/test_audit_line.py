"""What an audit line says of an object: its demand, class, owner and quota, the id of its creation, and nothing secret."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.builders import CLASSES, JSON, gpu_container, pod, uid
from tests.cases import cases
from tests.webhook.serving.served import lines_of, request
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.counted_records import demand_fields
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.metrics import QuotaMetrics
from webhook.quota.store import MemoryStore

QUOTA = Document("GPUQuota", "default", {"hard": {"gpus": "2"}}, "team")

Reviewed = Callable[..., JSON]


@pytest.fixture
def reviewed(tmp_path: Path) -> Reviewed:
    """Return a function that has an object reviewed and returns its line."""
    configuration, metrics = load_objects([QUOTA]), QuotaMetrics(CollectorRegistry())
    quota = QuotaEnforcer(ReservationBatcher(MemoryStore(lambda: configuration), metrics))

    def review(document: JSON, phase: str = "validate", **tweaks: Any) -> JSON:
        kind = {"version": "v1", "kind": document["kind"]}
        sent = request(document, **{"kind": kind, "namespace": "team", **tweaks})
        (line,) = lines_of(
            tmp_path,
            lambda served: getattr(served, phase)(sent, monotonic() + 60),
            QUOTA,
            replica="webhook-1",
            quota=quota,
        )
        return line

    return review


def created(label: str = "train", count: str = "1", metadata: JSON | None = None, **spec: Any) -> JSON:
    spec = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], **spec}
    document = pod(gpu_container(count), **spec)
    return {**document, "metadata": {"name": label, "uid": uid(label), **(metadata or {})}}


L4: JSON = {"nvidia.com/gpu.product": "NVIDIA-L4"}


@pytest.mark.parametrize("namespace", ["team", "without-a-quota"])
@cases(
    ("spec", "demand", "of_class"),
    that_may_be_any_class=({}, {"gpus": "1", "resources/nvidia.com/gpu": "1"}, None),
    that_pins_its_class=(
        {"nodeSelector": L4},
        {"classes/nvidia-l4": "1", "gpus": "1", "resources/nvidia.com/gpu": "1"},
        "nvidia-l4",
    ),
)
def test_a_line_has_the_demand_of_a_pod(
    reviewed: Reviewed, namespace: str, spec: JSON, demand: JSON, of_class: str | None
) -> None:
    for label in ("first", "second"):
        line = reviewed(created(label, **spec), namespace=namespace)

        assert (line["demand"], line.get("class")) == (demand, of_class)


@cases(
    ("names", "want"),
    a_class_and_its_family=(["nvidia-a100", "nvidia-a100-80gb"], {"class": "nvidia-a100-80gb"}),
    a_family=(["nvidia-a100"], {"class": "nvidia-a100"}),
    several_classes=(["nvidia-a100-80gb", "nvidia-t4"], {}),
)
def test_the_class_of_a_demand(names: list[str], want: JSON) -> None:
    demand = {f"classes/{name}": Fraction(1) for name in names}

    assert demand_fields(demand, CLASSES) == {"demand": dict.fromkeys(demand, "1"), **want}


def test_a_line_has_the_quota_after_the_decision(reviewed: Reviewed) -> None:
    lines = [reviewed(created(label)) for label in ("one", "two", "three")]

    assert [(line["verdict"], line["quota"]["held"], line["quota"]["hard"]) for line in lines] == [
        ("allowed", {"gpus": "1"}, {"gpus": "2"}),
        ("allowed", {"gpus": "2"}, {"gpus": "2"}),
        ("denied", {"gpus": "2"}, {"gpus": "2"}),
    ]
    assert lines[2]["demand"]["gpus"] == "1", "what the quota refused"


def test_what_a_rule_denies_has_no_demand(reviewed: Reviewed) -> None:
    line = reviewed(created(count="500m"))

    assert line["verdict"] == "denied"
    assert "demand" not in line


def test_a_line_names_object_owner_and_replica(reviewed: Reviewed) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid("job"), "controller": True}
    kept = {**owner, "name": "kept", "controller": False}

    line = reviewed(created(metadata={"ownerReferences": [kept, owner]}))

    assert (line["objectUid"], line["owner"], line["replica"]) == (uid("train"), "Job/train", "webhook-1")


TOKEN: JSON = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "kube-api-access-x7v2k"}]}
OTHER_TOKEN: JSON = {"volumes": [{"name": "kube-api-access-bbbbb"}]}
NAMELESS: JSON = {"metadata": {"generateName": "train-"}, "kind": "Pod"}


@cases(
    ("first", "second", "is_one"),
    one_name=(created(), created(), True),
    two_names=(created(), created("other"), False),
    a_name_that_was_made_meanwhile=(
        {**created(**TOKEN), **NAMELESS},
        created("train-abcde", metadata={"generateName": "train-"}, **TOKEN),
        True,
    ),
    two_of_a_controller=({**created(**TOKEN), **NAMELESS}, {**created(**OTHER_TOKEN), **NAMELESS}, False),
)
def test_an_id_joins_the_lines_of_one_creation(
    reviewed: Reviewed, first: JSON, second: JSON, is_one: bool
) -> None:
    ids = [reviewed(first, "mutate")["creation"], reviewed(second)["creation"]]

    assert (ids[0] == ids[1]) is is_one


def test_pods_that_nothing_tells_apart_have_no_id(reviewed: Reviewed) -> None:
    assert "creation" not in reviewed({**created(), **NAMELESS}, "mutate")
