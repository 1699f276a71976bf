"""What the API server itself rejects of a GPUQuota, and what kubectl shows of one."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec
import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.crds import AMOUNT, STRICT
from tests.cluster.quota.quotas import QUOTAS, gpu_quota
from tests.controlplane import ControlPlane, accepted
from webhook.cluster.objects import Condition, timestamp
from webhook.quota.documents import (
    PlaceInLine,
    QuotaRecord,
    QuotaStatus,
    WaitingPods,
    decode_quota,
    encode_status,
    quota_path,
    quota_reference,
)

NAMESPACE = "crd"


@pytest.fixture(scope="module", autouse=True)
def namespace(quotas: ControlPlane) -> None:
    quotas.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


@cases(
    ("spec", "want"),
    word=({"hard": {"gpus": "sixteen"}}, f'spec.hard.gpus: Invalid value: "sixteen": {AMOUNT}'),
    negative=({"hard": {"gpus": "-1"}}, f'"-1": {AMOUNT}'),
    division_by_zero=({"hard": {"gpus": "1/0"}}, f'"1/0": {AMOUNT}'),
    suffix=({"hard": {"gpus": "1Gi"}}, f'"1Gi": {AMOUNT}'),
    empty=({"hard": {"gpus": ""}}, f'"": {AMOUNT}'),
    negative_number=({"hard": {"gpus": -16}}, f"-16: {AMOUNT}"),
    decimal_number=({"hard": {"gpus": 0.5}}, "spec.hard.gpus: Invalid value: "),
    boolean=({"hard": {"gpus": True}}, "spec.hard.gpus: Invalid value: "),
    endless_amount=({"hard": {"gpus": "9" * 41}}, "may not be more than 40 bytes"),
    amount_of_a_class=({"hard": {"classes": {"nvidia-t4": "x"}}}, f'"x": {AMOUNT}'),
    class_name=(
        {"hard": {"classes": {"NVIDIA T4": "1", "nvidia-t4": "1"}}},
        "a key must be the name of a class or a family, such as nvidia-a100-80gb or nvidia-a100, not NVIDIA T4",
    ),
    resource_name=(
        {"hard": {"resources": {"cpu": "1", "amd.com/gpu": "1"}}},
        "a key must be a resource name without requests. or limits., such as nvidia.com/mig-1g.10gb, not cpu",
    ),
    resource_as_in_a_resourcequota=(
        {"hard": {"resources": {"requests.nvidia.com/gpu": "1"}}},
        "write the resource name as containers do, without requests. or limits., not requests.nvidia.com/gpu",
    ),
    unpinned_value=({"hard": {}, "unclassifiedPods": "Cheapest"}, "supported values: "),
    no_hard=({}, "spec.hard: Required value"),
    budget_of_nothing=({"hard": {}, "budget": {"period": "week"}}, "must have gpuHours, byClass or both"),
    budget_of_another_period=(
        {"hard": {}, "budget": {"gpuHours": 1, "period": "year"}},
        "supported values: ",
    ),
    budget_that_never_warns=({"hard": {}, "budget": {"gpuHours": 1, "warnAt": 0}}, "must be more than 0"),
    budget_below_zero=({"hard": {}, "budget": {"gpuHours": -1}}, f"-1: {AMOUNT}"),
    budget_of_a_class=({"hard": {}, "budget": {"byClass": {"nvidia-t4": "x"}}}, f'"x": {AMOUNT}'),
)
def test_the_api_server_refuses_a_bad_spec(quotas: ControlPlane, spec: JSON, want: str) -> None:
    document = {**gpu_quota(NAMESPACE), "spec": spec}
    status, answer = quotas.client().post(QUOTAS.format(NAMESPACE), document, STRICT)
    assert status in {400, 422}, answer
    assert want in answer["message"]


@cases(
    "hard",
    nothing_at_all={"gpus": "0"},
    number={"gpus": 16},
    numbers={"classes": {"nvidia-t4": 2}, "resources": {"nvidia.com/mig-1g.10gb": 0}},
    decimal={"gpus": "0.5"},
    fraction={"gpus": "02/07"},
    no_total=({"classes": {"nvidia-a100-80gb": "1"}, "resources": {"nvidia.com/mig-1g.10gb": "14"}}),
    only_counted={},
)
def test_what_the_api_server_takes_can_be_read(quotas: ControlPlane, hard: JSON) -> None:
    client = quotas.client()
    answer = accepted(client.post(QUOTAS.format(NAMESPACE), gpu_quota(NAMESPACE, hard=hard), STRICT))
    client.delete(quota_path(NAMESPACE))
    record = read(answer)
    assert record.spec is not None, record.problem
    dimensions = {f"{key}/{name}" for key in ("classes", "resources") for name in hard.get(key, ())}
    assert set(record.hard) == dimensions | {"gpus"} & hard.keys()
    assert record.status.used is None
    assert "unclassifiedPods" not in answer["spec"], "the API server has no default for it"
    assert record.spec.unclassified_pods.value == ("MostExpensive" if "classes" in hard else "TotalOnly")


def read(answer: JSON) -> QuotaRecord:
    record = decode_quota(msgspec.json.encode(answer))
    assert record is not None
    return record


def test_a_mistyped_limit_that_was_stored_while_the_webhook_was_away_is_not_taken_for_none(
    quotas: ControlPlane,
) -> None:
    document = gpu_quota(NAMESPACE, hard={"gpu": 1})
    answer = accepted(quotas.client().post(QUOTAS.format(NAMESPACE), document, STRICT))
    quotas.client().delete(quota_path(NAMESPACE))
    assert read(answer).spec is None
    assert "unknown field `gpu`" in read(answer).problem


def test_a_namespace_has_one_quota(quotas: ControlPlane) -> None:
    status, answer = quotas.client().post(QUOTAS.format(NAMESPACE), gpu_quota(NAMESPACE, name="second"))
    assert status == 422
    assert "a namespace has one GPUQuota, and its name must be default" in answer["message"]


PLACE = PlaceInLine(
    name="train-0",
    gang="Job/train",
    pods=8,
    place=1,
    since="2026-11-22T11:00:00Z",
    demand={"gpus": Fraction(8), "classes/nvidia-a100": Fraction(8)},
    reason="Next",
    message="next in line",
)


def test_kubectl_shows_used_reserved_waiting_hard_and_status(quotas: ControlPlane) -> None:
    hard = {"gpus": 12, "classes": {"nvidia-a100": "8"}}
    client = quotas.client()
    client.post(QUOTAS.format(NAMESPACE), gpu_quota(NAMESPACE, hard=hard))
    path = quota_path(NAMESPACE)
    _, answer = client.get(path)
    status = QuotaStatus(
        used={"gpus": Fraction(92, 7), "classes/nvidia-a100": Fraction(8)},
        reserved={"gpus": Fraction(2)},
        shown={"used": {"gpus": "13.14", "classes/nvidia-a100": "8"}, "reserved": {"gpus": "2"}},
        waiting=WaitingPods(
            pods=9, since="2026-11-22T11:00:00Z", demand={"gpus": Fraction(9)}, next=(PLACE,)
        ),
        conditions=(Condition("Ready", "True", "Exceeded", "1 too many", "2026-11-22T11:00:00Z", 1),),
        counted_at=timestamp(datetime.now(UTC) - timedelta(minutes=17)),
    )
    record = read(answer)
    reference = quota_reference(NAMESPACE, record.uid)
    written = msgspec.json.decode(encode_status(reference, record.version, status))
    assert client.put(f"{path}/status", written)[0] == 200
    assert read(client.get(path)[1]).status == status
    shown, wide = (
        quotas.kubectl("get", "gpuq", "-n", NAMESPACE, *options).stdout.splitlines()
        for options in ((), ("-o", "wide"))
    )
    client.delete(path)
    assert shown[0].split() == ["NAME", "USED", "RESERVED", "WAITING", "HARD", "STATUS", "COUNTED", "AGE"]
    assert shown[1].split()[:7] == ["default", "13.14", "2", "9", "12", "Exceeded", "17m"]
    assert '{"nvidia-a100":"8"}' in wide[1]
    assert '{"classes/nvidia-a100":"8","gpus":"13.14"}' in wide[1]


def test_a_write_to_the_object_leaves_the_status_alone(quotas: ControlPlane) -> None:
    client = quotas.client()
    client.post(QUOTAS.format(NAMESPACE), gpu_quota(NAMESPACE))
    path = quota_path(NAMESPACE)
    client.patch(path, {"status": {"used": {"gpus": "0"}}})
    _, answer = client.get(path)
    client.delete(path)
    assert "status" not in answer
