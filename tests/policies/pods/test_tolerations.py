"""Tolerations: which taints they tolerate, and which of each other they cover."""

import msgspec
import pytest

from policies.pods.pod import Toleration
from policies.pods.tolerations import covers, describe_toleration, tolerates, toleration_problems

GT_900 = {"key": "a", "operator": "Gt", "value": "900"}


@pytest.mark.parametrize(
    ("toleration", "taint", "want"),
    [
        pytest.param(
            {"key": "a", "operator": "Exists"},
            {"key": "a", "value": "b", "effect": "NoSchedule"},
            True,
            id="exists",
        ),
        pytest.param(
            {"key": "a", "value": "b"}, {"key": "a", "value": "b", "effect": "NoSchedule"}, True, id="equal"
        ),
        pytest.param(
            {"key": "a", "value": "c"},
            {"key": "a", "value": "b", "effect": "NoSchedule"},
            False,
            id="another-value",
        ),
        pytest.param(
            {"key": "a", "operator": "Exists", "effect": "NoExecute"},
            {"key": "a", "effect": "NoSchedule"},
            False,
            id="another-effect",
        ),
        pytest.param({"operator": "Exists"}, {"key": "a", "effect": "NoSchedule"}, True, id="everything"),
        pytest.param(GT_900, {"key": "a", "value": "950"}, True, id="greater"),
        pytest.param(GT_900, {"key": "a", "value": "900"}, False, id="greater-is-not-equal"),
        pytest.param(GT_900, {"key": "a", "value": "1000"}, True, id="greater-as-a-number-not-as-text"),
        pytest.param(GT_900, {"key": "a", "value": "fast"}, False, id="greater-than-no-number"),
        pytest.param(GT_900, {"key": "a", "value": "0950"}, False, id="greater-than-leading-zeros"),
        pytest.param(GT_900, {"key": "a", "value": "9" * 19}, False, id="greater-than-64-bits"),
        pytest.param(GT_900, {"key": "a"}, False, id="greater-than-a-taint-without-a-value"),
        pytest.param(GT_900, {"key": "b", "value": "950"}, False, id="greater-of-another-key"),
        pytest.param({**GT_900, "operator": "Lt"}, {"key": "a", "value": "-5"}, True, id="less"),
        pytest.param({**GT_900, "operator": "Lt"}, {"key": "a", "value": "900"}, False, id="not-less"),
        pytest.param(
            {**GT_900, "operator": "Ge"}, {"key": "a", "value": "900"}, False, id="unknown-operator"
        ),
    ],
)
def test_tolerates(toleration: dict[str, str], taint: dict[str, str], want: bool) -> None:
    assert tolerates(msgspec.convert(toleration, Toleration), msgspec.convert(taint, Toleration)) is want


@pytest.mark.parametrize(
    ("existing", "want"),
    [
        pytest.param(Toleration(key="a", operator="Exists", effect="NoSchedule"), True, id="same"),
        pytest.param(Toleration(key="a", operator="Exists"), True, id="every-effect"),
        pytest.param(Toleration(operator="Exists"), True, id="every-taint"),
        pytest.param(
            Toleration(operator="Exists", effect="NoExecute"), False, id="every-key-of-another-effect"
        ),
        pytest.param(Toleration(key="a", operator="Exists", effect="NoExecute"), False, id="another-effect"),
        pytest.param(Toleration(key="b", operator="Exists"), False, id="another-key"),
        pytest.param(Toleration(key="a", value="x", effect="NoSchedule"), False, id="one-value-only"),
        pytest.param(Toleration(value=""), False, id="no-key-and-no-exists"),
        pytest.param(
            Toleration(key="a", operator="Exists", toleration_seconds=60), False, id="for-a-while-only"
        ),
    ],
)
def test_covers_exists(existing: Toleration, want: bool) -> None:
    assert covers(existing, Toleration(key="a", operator="Exists", effect="NoSchedule")) is want


@pytest.mark.parametrize(
    ("existing", "want"),
    [
        pytest.param(
            Toleration(key="a", value="x", effect="NoSchedule"), True, id="operator-equal-is-the-default"
        ),
        pytest.param(Toleration(key="a", operator="Equal", value="x"), True, id="every-effect"),
        pytest.param(Toleration(key="a", operator="Exists"), True, id="every-value"),
        pytest.param(Toleration(key="a", operator="Equal", value="y"), False, id="another-value"),
        pytest.param(Toleration(key="a", effect="NoSchedule"), False, id="empty-value"),
        pytest.param(Toleration(key="a", operator="Gt", value="x"), False, id="greater-than-the-same-text"),
        pytest.param(Toleration(key="a", operator="Lt", value="x"), False, id="less-than-the-same-text"),
    ],
)
def test_covers_equal(existing: Toleration, want: bool) -> None:
    assert covers(existing, Toleration(key="a", operator="Equal", value="x", effect="NoSchedule")) is want


@pytest.mark.parametrize(
    ("toleration", "want"),
    [
        pytest.param(
            Toleration(key="dedicated", value="ml", effect="NoSchedule"),
            "dedicated=ml:NoSchedule",
            id="value",
        ),
        pytest.param(
            Toleration(key="sla", operator="Gt", value="900", effect="NoSchedule"),
            "sla>900:NoSchedule",
            id="greater",
        ),
        pytest.param(
            Toleration(key="nvidia.com/gpu", operator="Exists"), "nvidia.com/gpu", id="every-effect"
        ),
        pytest.param(Toleration(operator="Exists", effect="NoExecute"), "*:NoExecute", id="every-key"),
    ],
)
def test_describe_toleration(toleration: Toleration, want: str) -> None:
    assert describe_toleration(toleration) == want


@pytest.mark.parametrize(
    ("existing", "wanted", "want"),
    [
        pytest.param("900", "950", True, id="a-value-that-is-greater"),
        pytest.param("900", "900", False, id="the-same-value"),
    ],
)
def test_a_comparison_covers_what_it_tolerates(existing: str, wanted: str, want: bool) -> None:
    greater = Toleration(key="a", operator="Gt", value=existing)

    assert covers(greater, Toleration(key="a", operator="Equal", value=wanted)) is want
    assert not covers(greater, Toleration(key="a", operator="Exists"))


def test_our_own_documents_do_not_compare() -> None:
    [(path, sentence)] = toleration_problems(
        Toleration(key="a", operator="Gt", value="900"), "tolerations[0]"
    )

    assert path == "tolerations[0].operator"
    assert sentence == (
        'must be Exists or Equal, not "Gt": many API servers refuse a pod with it '
        "(feature gate TaintTolerationComparisonOperators)"
    )
