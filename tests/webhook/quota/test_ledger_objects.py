"""Ledgers as they stand on the API server: ledger to JSON and back, and ledgers that cannot be read."""

from fractions import Fraction

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.credits import Credit, Mark
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.reservations import Reservation, Reservations
from tests.budgets import budget, spending
from tests.builders import JSON, quota_ledger
from tests.cases import cases
from webhook.quota import ledger_objects
from webhook.quota.ledger_objects import (
    LedgerObjectError,
    decode_identity,
    decode_ledger_object,
    encode_ledger_object,
    ledger_objects_path,
)

LEDGER = QuotaLedger(
    ledger_uid="ledger",
    quota_uid="quota",
    generation=3,
    hard={"gpus": Fraction(16), "classes/nvidia-a100": Fraction(1, 2)},
    unclassified_pods=UnclassifiedPods.DENY,
    scarce={"gpus": True},
    marks={"mark-1": Mark({"gpus": Fraction(1, 2)}, 1_790_000_000_000, 1_790_000_060_000)},
    credits=(Credit("0a1b", {"gpus": Fraction(1, 2)}, (1_790_000_000_000, 1_790_000_060_000)),),
    keepers=(Keeper("apps/v1", "Deployment", "web", "u", "ReplicaSet", 7, ((1, 2),)),),
    used={"gpus": Fraction(2, 7), "classes/nvidia-a100": Fraction(0)},
    stored_names={"pods/train-0": {"gpus": Fraction(1)}},
    reservations=Reservations.of(Reservation("pod1", {"gpus": Fraction(1)}, name="pods/train-0")),
    revisions=Revisions(pods=2**53 + 1, resource_claims=7, nodes=8),
    class_catalogue="catalogue/Deny",
    next_catalogue="next/Deny",
    holders={"gpus": (Holder("Notebook/ana", "2", "2027-01-01T10:00:00Z"), Holder("Job/train", "8"))},
    budget=budget(gpus=5000, t4=0.5),
    spending=spending(spent=0.25, unknown=1),
)

SPEC = '{"quotaUid":"q","generation":1,"hard":{},"unclassifiedPods":"Deny",%s}'


def stored(ledger: QuotaLedger) -> JSON:
    found: JSON = msgspec.json.decode(encode_ledger_object("team", "11", ledger))
    del found["metadata"]["managedFields"]
    found["metadata"] |= {"uid": "ledger", "resourceVersion": "12", "namespace": "gpu-admission"}
    return found


def test_only_an_idle_holder_has_a_time() -> None:
    holders = msgspec.json.decode(stored(LEDGER)["ledger"])["holders"]

    assert holders == {
        "gpus": [
            {"name": "Notebook/ana", "amount": "2", "idleSince": "2027-01-01T10:00:00Z"},
            {"name": "Job/train", "amount": "8"},
        ]
    }


@cases("ledger", all=LEDGER, never_counted=quota_ledger(ledger_uid="ledger"))
def test_what_is_written_is_read(ledger: QuotaLedger) -> None:
    ledger_object = decode_ledger_object(msgspec.json.encode(stored(ledger)))
    assert (ledger_object.version, ledger_object.ledger) == ("12", ledger)


def test_a_ledger_replaces_one_version_and_is_created_without_one() -> None:
    replaces, creates = (
        msgspec.json.decode(encode_ledger_object("team", version, LEDGER)) for version in ("11", "")
    )
    assert replaces["metadata"] == {"name": "team", "managedFields": [{}], "resourceVersion": "11"}
    assert creates["metadata"] == {"name": "team", "managedFields": [{}]}


def test_a_ledger_without_a_budget_has_not_a_byte_more() -> None:
    text = stored(replace(LEDGER, budget=None, spending=None))["ledger"]
    assert not {"budget", "spending"} & msgspec.json.decode(text).keys()


@cases(("room", "is_left_out"), as_long_as_the_longest=(0, False), longer=(-1, True))
def test_a_ledger_that_is_too_long_is_written_without_holders(
    monkeypatch: pytest.MonkeyPatch, room: int, is_left_out: bool
) -> None:
    body = encode_ledger_object("team", "11", LEDGER)
    monkeypatch.setattr(ledger_objects, "LONGEST_BODY", len(body) + room)

    found = decode_ledger_object(msgspec.json.encode(stored(LEDGER)))
    assert found.ledger.holders == ({} if is_left_out else LEDGER.holders)


@cases(
    ("change", "want"),
    cut=({"ledger": "{"}, "Input data was truncated"),
    empty=({"ledger": "{}"}, "Object missing required field `quotaUid`"),
    no_ledger=({"ledger": None}, "Expected `str`, got `null` - at `$.ledger`"),
    amount=(
        {"ledger": SPEC % '"used":{"gpus":"one"}'},
        'must be an amount such as 16, "0.5" or "2/7", not "one"',
    ),
    stored_name=(
        {"ledger": SPEC % '"storedNames":{"pods/a":{"gpus":"-1"}}'},
        'must be an amount such as 16, "0.5" or "2/7", not "-1"',
    ),
    revision=({"ledger": SPEC % '"revisions":{"pods":"x"}'}, "Expected `int`, got `str` - at `$.pods`"),
)
def test_a_ledger_that_cannot_be_read_is_an_error(change: JSON, want: str) -> None:
    document = stored(LEDGER) | change
    with pytest.raises(LedgerObjectError) as raised:
        decode_ledger_object(msgspec.json.encode(document))
    assert str(raised.value) == f"the GPUQuotaLedger cannot be read: {want}"


def test_a_line_of_reservations_that_cannot_be_read_is_kept() -> None:
    unreadable = msgspec.structs.replace(LEDGER, reservations=Reservations.parse("gpus=one | pod1"))
    ledger_object = decode_ledger_object(msgspec.json.encode(stored(unreadable)))
    assert ledger_object.ledger.reservations.unreadable == ("gpus=one | pod1",)


def test_an_answer_has_uid_and_version() -> None:
    found = decode_identity(b'{"metadata":{"name":"team","uid":"u","resourceVersion":"7"}}')
    assert (found.uid, found.resource_version) == ("u", "7")
    with pytest.raises(LedgerObjectError) as raised:
        decode_identity(b'{"metadata":{"name":"team","resourceVersion":"7"}}')
    assert str(raised.value) == (
        "the GPUQuotaLedger cannot be read: Object missing required field `uid` - at `$.metadata`"
    )


def test_where_ledgers_are() -> None:
    path = "/apis/gpu-admission.dev/v1alpha1/namespaces/gpu-admission/gpuquotaledgers"
    assert ledger_objects_path("gpu-admission") == path
    assert ledger_objects_path("gpu-admission", "team") == f"{path}/team"


def test_a_ledger_of_before_has_no_credits() -> None:
    text = SPEC % '"used":{"gpus":"1"}'
    document = stored(LEDGER) | {"ledger": text}
    assert decode_ledger_object(msgspec.json.encode(document)).ledger.credits == ()
