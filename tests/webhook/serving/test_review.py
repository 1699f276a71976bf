"""AdmissionReview v1 on the wire: the API server is strict about answers, and warnings become HTTP headers."""

from typing import Any

import msgspec
import pytest

from policies.finding import Finding
from policies.policy import EffectivePolicy
from webhook.serving import review
from webhook.serving.engine import Decision, EvaluatedFinding, Outcome

POLICY = EffectivePolicy(name="default", version="abc", why="", namespace="ml", bindings=())


def decision(*findings: tuple[str, Outcome]) -> Decision:
    judged = tuple(
        EvaluatedFinding(Finding(rule="some-rule", path="spec", message=text), outcome)
        for text, outcome in findings
    )
    return Decision(policy=POLICY, judged=judged)


def wire(response: review.AdmissionResponse) -> dict[str, object]:
    document: dict[str, Any] = msgspec.json.decode(review.encode_response(response))
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    sent: dict[str, object] = document["response"]
    return sent


def test_a_denial_carries_code_reason_and_every_finding() -> None:
    denied = decision(("one", Outcome.DENIED), ("two", Outcome.DENIED), ("careful", Outcome.WARNED))

    assert wire(review.decided("u", [denied], subject="pod ml/train", patch=True)) == {
        "uid": "u",
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": "pod ml/train has 2 problems:\n- spec: one [some-rule]\n- spec: two [some-rule]",
        },
        "warnings": ["spec: careful [some-rule]"],
        "auditAnnotations": {"findings": "some-rule=denied,some-rule=warned", "policy": "default@abc"},
    }


def test_one_finding_needs_no_list() -> None:
    response = review.decided("u", [decision(("one", Outcome.DENIED))], subject="pod ml/train", patch=True)

    assert response.status is not None
    assert response.status.message == "pod ml/train: spec: one [some-rule]"


def test_a_template_is_warned_about() -> None:
    response = review.advised("u", [decision(("one", Outcome.DENIED))])

    assert response.allowed is True
    assert response.warnings == ("its pods would be denied: spec: one [some-rule]",)


def test_nothing_to_say_is_the_shortest_answer() -> None:
    assert wire(review.decided("u", [decision()], subject="pod", patch=True)) == {
        "uid": "u",
        "allowed": True,
    }


def test_hundreds_of_findings_are_cut_and_counted() -> None:
    many = decision(*[(f"finding {number}", Outcome.DENIED) for number in range(100)])

    response = review.decided("u", [many], subject="pod ml/train", patch=True)

    assert response.status is not None
    assert response.status.message.startswith("pod ml/train has 100 problems:")
    assert response.status.message.endswith("\n- … and 60 more")


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        pytest.param(["a\nb\tc"], ("a b c",), id="control-characters-would-drop-the-header"),
        pytest.param(["same", "same"], ("same",), id="told-once"),
        pytest.param(["x" * 300], ("x" * 249 + "…",), id="too-long"),
        pytest.param(["a\u202eb\u2028"], ("a b ",), id="direction-and-line-marks"),
    ],
)
def test_warnings_survive_as_headers(texts: list[str], want: tuple[str, ...]) -> None:
    assert review.warning_texts(texts) == want


def test_all_warnings_together_fit_the_budget_of_the_api_server() -> None:
    warnings = review.warning_texts([f"{number}" + "x" * 300 for number in range(40)])

    assert sum(len(warning) for warning in warnings) <= 4096
    assert warnings[-1] == "… and 27 more; the audit log of gpu-admission has them all"


def test_audit_annotation_keys_are_legal() -> None:
    annotations = review.decided(
        "u", [decision(("one", Outcome.DENIED))], subject="pod", patch=True
    ).audit_annotations

    assert annotations is not None
    assert all(key.replace("-", "").isalnum() and len(key) <= 63 for key in annotations)
