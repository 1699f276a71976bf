"""Kyverno and Gatekeeper beside us: what they set is respected, what they break is reported, and one that is down says so.

Reproduced, not the real ones. What is added or taken out after us, with and without reinvocation, stands in
test_other_webhooks.py; denials by other webhooks after we reserved, in quota/test_leak.py.
"""

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.cluster.neighbours.team import Team, body
from tests.cluster.other_webhook import OtherWebhook

KYVERNO = "kyverno-resource-mutating-webhook-cfg"
T4 = {"accelerator": "nvidia-t4"}


def changes_nothing(_document: JSON) -> None:
    pass


def pins_to_t4(document: JSON) -> None:
    document["spec"]["nodeSelector"] = {**document["spec"].get("nodeSelector", {}), **T4}


def test_a_class_that_a_policy_engine_chose_before_us_is_kept_and_charged(
    team: Team, other: OtherWebhook
) -> None:
    team.counted_quota({"gpus": "4", "classes": {"nvidia-t4": "1"}})
    with other.in_force(pins_to_t4, name=KYVERNO):
        status, answer = team.create(body("first", gpu_container()))
        second = team.create(body("second", gpu_container()))

    assert status == 201, answer
    assert answer["spec"]["nodeSelector"] == T4
    assert second[0] == 403
    assert "requested 1 nvidia-t4, " in second[1]["message"]


@cases("name", before_us=KYVERNO, after_us="zzz-kyverno")
def test_a_class_that_contradicts_the_annotation_is_denied(
    team: Team, other: OtherWebhook, name: str
) -> None:
    requested = {"annotations": {"gpu-admission.dev/gpu-class": "nvidia-a100-80gb"}}
    with other.in_force(pins_to_t4, name=name):
        status, answer = team.create(body("torn", gpu_container(), metadata=requested))

    assert status == 403
    assert "[gpu-class]" in answer["message"]
    assert "nvidia-t4" in answer["message"]


def test_an_engine_that_is_down_denies_in_its_own_name_and_nothing_is_reserved(
    team: Team, other: OtherWebhook
) -> None:
    team.counted_quota({"gpus": "4"})
    with other.in_force(changes_nothing, name=KYVERNO):
        other.close()
        status, answer = team.create(body("refused", gpu_container()))

    assert status == 500
    assert 'failed calling webhook "pods.another.example.com"' in answer["message"]
    assert not team.ledger_object().reservations
