"""AdmissionReview v1 on the wire: the API server is strict about answers, and warnings become HTTP headers."""

from typing import Any

import msgspec

from policies.finding import TOO_LARGE, Finding
from policies.policy import EffectivePolicy
from tests.cases import cases
from webhook.evaluation.decision import Decision, Outcome, Violation
from webhook.serving import admission_review

POLICY = EffectivePolicy(name="default", version="abc", why="", namespace="ml", bound_rules=())


def decision(*findings: tuple[str, Outcome]) -> Decision:
    violations = tuple(
        Violation(Finding(rule="some-rule", reason=TOO_LARGE, path="spec", message=text), outcome)
        for text, outcome in findings
    )
    return Decision(policy=POLICY, violations=violations)


def wire(response: admission_review.AdmissionResponse) -> dict[str, object]:
    document: dict[str, Any] = msgspec.json.decode(admission_review.encode_response(response))
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    sent: dict[str, object] = document["response"]
    return sent


def test_a_denial_carries_code_reason_and_every_finding() -> None:
    denied = decision(("one", Outcome.DENIED), ("two", Outcome.DENIED), ("careful", Outcome.WARNED))

    assert wire(admission_review.decided("u", [denied], subject="pod ml/train", patch=True)) == {
        "uid": "u",
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": "pod ml/train: spec: one [some-rule] (and 1 more)\n- spec: two [some-rule]",
            "details": {
                "causes": [
                    {"field": "spec", "message": "spec: one [some-rule]", "reason": "TooLarge"},
                    {"field": "spec", "message": "spec: two [some-rule]", "reason": "TooLarge"},
                ]
            },
        },
        "warnings": ["pod ml/train: spec: careful [some-rule]"],
        "auditAnnotations": {"findings": "some-rule=denied,some-rule=warned", "policy": "default@abc"},
    }


def test_nothing_to_say_is_the_shortest_answer() -> None:
    assert wire(admission_review.decided("u", [decision()], subject="pod", patch=True)) == {
        "uid": "u",
        "allowed": True,
    }


def test_hundreds_of_findings_are_cut_and_counted() -> None:
    many = decision(*[(f"finding {number}", Outcome.DENIED) for number in range(100)])

    response = admission_review.decided("u", [many], subject="pod ml/train", patch=True)

    assert response.status is not None
    assert response.status.message.startswith(
        "pod ml/train: spec: finding 0 [some-rule] (and 99 more)\n- spec: "
    )
    assert response.status.message.endswith("\n- … and 60 more")


CONTACT = msgspec.structs.replace(POLICY, help="#gpu-support")
REFUSED = Finding(rule="some-rule", reason=TOO_LARGE, path="spec", message="one")
ASKING = msgspec.structs.replace(REFUSED, ask_contact="for more").with_origin("some-rule", "#gpu-support")
OF_TEAM = msgspec.structs.replace(REFUSED, ask_contact="for more", contact="vision-lead").with_origin(
    "some-rule", "#gpu-support"
)


@cases(
    ("denied", "want"),
    one=([REFUSED], "pod ml/train: spec: one [some-rule] (help: #gpu-support)"),
    two=(
        [REFUSED, msgspec.structs.replace(REFUSED, message="two")],
        "pod ml/train: spec: one [some-rule] (and 1 more; help: #gpu-support)\n- spec: two [some-rule]",
    ),
    named_already=([ASKING], "pod ml/train: spec: one; ask #gpu-support for more [some-rule]"),
    the_one_of_a_team=([OF_TEAM], "pod ml/train: spec: one; ask vision-lead for more [some-rule]"),
)
def test_a_denial_names_one_contact_in_its_first_line(denied: list[Finding], want: str) -> None:
    violations = tuple(Violation(finding, Outcome.DENIED) for finding in denied)

    response = admission_review.decided(
        "u", [Decision(policy=CONTACT, violations=violations)], subject="pod ml/train", patch=True
    )

    assert response.status is not None
    assert response.status.message == want


def warnings(*findings: Finding) -> tuple[str, ...]:
    return admission_review.warning_texts(findings, subject="pod ml/train")


def warning(message: str, remedy: str = "") -> Finding:
    return Finding(rule="some-rule", reason=TOO_LARGE, path="spec", message=message, remedy=remedy)


@cases(
    ("messages", "want"),
    control_characters_would_drop_the_header=(["a\nb\tc"], ("pod ml/train: spec: a b c [some-rule]",)),
    repeated=(["same", "same"], ("pod ml/train: spec: same [some-rule]",)),
    long_and_alone=(["x" * 3000], (f"pod ml/train: spec: {'x' * 3000} [some-rule]",)),
    direction_and_line_marks=(["a\u202eb\u2028"], ("pod ml/train: spec: a b  [some-rule]",)),
)
def test_warnings_survive_as_headers(messages: list[str], want: tuple[str, ...]) -> None:
    assert warnings(*map(warning, messages)) == want


def test_warnings_lose_their_reasons_before_what_to_write() -> None:
    found = [warning(f"{number} must " + "x" * 280, f"set limit: {number}") for number in range(20)]

    assert warnings(*found[:10]) == tuple(f"pod ml/train: {each.sentence()}" for each in found[:10])
    assert warnings(*found) == tuple(
        f"pod ml/train: spec: set limit: {number} [some-rule]" for number in range(20)
    )


def test_all_warnings_together_fit_the_budget_of_the_api_server() -> None:
    said = warnings(*(warning(f"{number}" + "x" * 300) for number in range(40)))

    assert sum(len(warning) for warning in said) <= 3500
    assert said[-1] == "… and 27 more; the audit log of gpu-admission has them all"


def test_one_warning_that_no_header_holds_is_cut() -> None:
    (only,) = warnings(warning("must " + "x" * 5000, "remove " + "y" * 5000))
    assert only == "pod ml/train: spec: remove " + "y" * 972 + "…"


def test_a_warning_without_a_remedy_is_cut_with_its_object_to_what_the_api_server_keeps() -> None:
    found = [warning(f"{number}" + "x" * 300) for number in range(20)]
    said = admission_review.warning_texts(found, subject=f"Deployment {'n' * 63}/{'d' * 253}")

    assert all(each.startswith(f"Deployment {'n' * 63}/{'d' * 24}…: spec: ") for each in said[:-1])
    assert {len(each) for each in said[:-1]} == {250}, "of 256"


@cases(
    ("metadata", "sent", "want"),
    a_name=({"name": "web"}, "web", "Deployment ml/web"),
    a_name_to_be_generated=({"generateName": "web-"}, "", "Deployment ml/web-"),
)
def test_the_object_of_a_warning(metadata: dict[str, str], sent: str, want: str) -> None:
    document = msgspec.Raw(msgspec.json.encode({"metadata": metadata}))
    kind = admission_review.GroupKind("apps", "Deployment")
    asked = admission_review.AdmissionRequest(uid="u", kind=kind, namespace="ml", name=sent, object=document)

    assert admission_review.subject_of(asked) == want
