"""A GPUQuota in JSON: what decides is read apart from what people see."""

from fractions import Fraction
from typing import Any

import msgspec

from policies.quota.ledger.quota_ledger import Holder
from tests.cases import cases
from webhook.cluster.objects import Condition
from webhook.quota.documents import (
    IdleGPUs,
    IdleHolder,
    PlaceInLine,
    QuotaRecord,
    QuotaStatus,
    decode_quota,
    encode_status,
    quota_reference,
)

METADATA = {"name": "default", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 3}
STATUS = QuotaStatus(
    hard={"gpus": Fraction(8), "classes/nvidia-t4": Fraction(1, 2)},
    used={"gpus": Fraction(2, 7), "classes/nvidia-t4": Fraction(0)},
    reserved={"gpus": Fraction(1)},
    holders={"gpus": (Holder("Job/train", "2/7"),)},
    idle=IdleGPUs(
        gpus=Fraction(2, 7),
        holders=(IdleHolder("Job/train", Fraction(2, 7), "2027-01-01T10:00:00Z"),),
        observed="2027-01-01T12:00:00Z",
    ),
    conditions=(Condition("Ready", "True", "Ready", "counted", "2027-01-01T12:00:00Z", 3),),
    observed_generation=3,
)


def stored(spec: Any, status: Any = None) -> bytes:
    document = {"metadata": METADATA, "spec": spec}
    return msgspec.json.encode(document if status is None else {**document, "status": status})


def read(document: bytes) -> QuotaRecord:
    record = decode_quota(document)
    assert record is not None
    return record


def test_a_status_comes_back_as_it_was_written() -> None:
    written = msgspec.json.decode(encode_status(quota_reference("team", "u"), "7", STATUS))

    assert written["metadata"] == {
        key: METADATA[key] for key in ("name", "namespace", "uid", "resourceVersion")
    }
    assert "spec" not in written
    assert written["status"]["used"] == {"classes/nvidia-t4": "0", "gpus": "2/7"}
    assert read(stored({"hard": {"gpus": 8}}, written["status"])).status == STATUS
    assert read(stored({"hard": {"gpus": 8}}, {})).status == QuotaStatus()
    assert [STATUS.condition(each) for each in ("Ready", "Exceeded")] == [STATUS.conditions[0], None]


@cases(
    ("status", "gpus", "is_pending"),
    nothing_is_written_yet=(None, 9, False),
    in_force_is_what_the_ledger_has=({"hard": {"gpus": "8"}, "observedGeneration": 2}, 8, True),
    of_this_generation=({"hard": {"gpus": "9"}, "observedGeneration": 3}, 9, False),
    of_an_earlier_version=({"used": {"gpus": "1"}}, 9, False),
)
def test_hard_is_what_is_in_force(status: Any, gpus: int, is_pending: bool) -> None:
    record = read(stored({"hard": {"gpus": 9}}, status))
    assert record.hard == {"gpus": gpus}
    assert record.is_pending is is_pending


@cases("status", no_amount={"used": {"gpus": "many"}}, no_conditions={"conditions": "none"})
def test_a_status_that_cannot_be_read_is_that_of_a_new_quota(status: Any) -> None:
    record = read(stored({"hard": {"gpus": 9}}, status))
    assert (record.problem, record.status) == ("", QuotaStatus())


@cases(
    ("spec", "problem"),
    a_mistyped_limit=({"hard": {"gpu": 1}}, "unknown field `gpu`"),
    no_amount=({"hard": {"gpus": "many"}}, "must be an amount"),
    no_limits=({}, "missing required field `hard`"),
    no_spec=(None, "Expected `object`, got `null`"),
)
def test_a_spec_that_cannot_be_read_is_not_an_empty_one(spec: Any, problem: str) -> None:
    record = read(stored(spec, {"used": {"gpus": "1"}}))
    assert record.spec is None
    assert record.problem.startswith("the GPUQuota cannot be read: ")
    assert problem in record.problem
    assert record.hard == {}


def test_who_waits_in_words() -> None:
    places = PlaceInLine(name="train-0", gang="Job/train", pods=8), PlaceInLine(name="notebook")
    assert [each.title for each in places] == ["Job/train (8 pods)", "Pod/notebook"]


def test_another_name_has_no_meaning() -> None:
    other = {"metadata": {**METADATA, "name": "second"}, "spec": {"hard": {}}}
    assert decode_quota(msgspec.json.encode(other)) is None
