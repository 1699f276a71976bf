"""Tolerations: which taints they tolerate, and which of each other they cover."""

import msgspec
import pytest

from policies.pods.pod import Toleration
from policies.pods.tolerations import covers, describe_toleration, tolerates, toleration_problems
from tests.builders import JSON

GT_900 = {"key": "a", "operator": "Gt", "value": "900"}


LT_900 = {**GT_900, "operator": "Lt"}
EXISTS = {"key": "a", "operator": "Exists"}
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "taint", "want"),
    [
        pytest.param(EXISTS, TAINT, True, id="exists"),
        pytest.param({"key": "a", "value": "b"}, TAINT, True, id="equal"),
        pytest.param({"key": "a", "value": "c"}, TAINT, False, id="another-value"),
        pytest.param({**EXISTS, "effect": "NoExecute"}, TAINT, False, id="another-effect"),
        pytest.param({"operator": "Exists"}, TAINT, True, id="everything"),
        pytest.param(GT_900, {"key": "a", "value": "950"}, True, id="greater"),
        pytest.param(GT_900, {"key": "a", "value": "900"}, False, id="greater-is-not-equal"),
        pytest.param(GT_900, {"key": "a", "value": "1000"}, True, id="greater-as-a-number-not-as-text"),
        pytest.param(GT_900, {"key": "a", "value": "fast"}, False, id="greater-than-no-number"),
        pytest.param(GT_900, {"key": "a", "value": "0950"}, False, id="greater-than-leading-zeros"),
        pytest.param(GT_900, {"key": "a", "value": "9" * 19}, False, id="greater-than-64-bits"),
        pytest.param(GT_900, {"key": "a"}, False, id="greater-than-a-taint-without-a-value"),
        pytest.param(GT_900, {"key": "b", "value": "950"}, False, id="greater-of-another-key"),
        pytest.param(LT_900, {"key": "a", "value": "-5"}, True, id="less"),
        pytest.param(LT_900, {"key": "a", "value": "900"}, False, id="not-less"),
        pytest.param(
            {**GT_900, "operator": "Ge"}, {"key": "a", "value": "900"}, False, id="unknown-operator"
        ),
    ],
)
def test_tolerates(toleration: JSON, taint: JSON, want: bool) -> None:
    assert tolerates(msgspec.convert(toleration, Toleration), msgspec.convert(taint, Toleration)) is want


@pytest.mark.parametrize(
    ("existing", "want"),
    [
        pytest.param({**EXISTS, "effect": "NoSchedule"}, True, id="same"),
        pytest.param(EXISTS, True, id="every-effect"),
        pytest.param({"operator": "Exists"}, True, id="every-taint"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="every-key-of-another-effect"),
        pytest.param({**EXISTS, "effect": "NoExecute"}, False, id="another-effect"),
        pytest.param({**EXISTS, "key": "b"}, False, id="another-key"),
        pytest.param({"key": "a", "value": "x", "effect": "NoSchedule"}, False, id="one-value-only"),
        pytest.param({"value": ""}, False, id="no-key-and-no-exists"),
        pytest.param({**EXISTS, "tolerationSeconds": 60}, False, id="for-a-while-only"),
        pytest.param(GT_900, False, id="greater-values-only"),
    ],
)
def test_covers_exists(existing: JSON, want: bool) -> None:
    wanted = Toleration(key="a", operator="Exists", effect="NoSchedule")
    assert covers(msgspec.convert(existing, Toleration), wanted) is want


@pytest.mark.parametrize(
    ("existing", "value", "want"),
    [
        pytest.param(
            {"key": "a", "value": "x", "effect": "NoSchedule"}, "x", True, id="equal-is-the-default"
        ),
        pytest.param({"key": "a", "operator": "Equal", "value": "x"}, "x", True, id="every-effect"),
        pytest.param(EXISTS, "x", True, id="every-value"),
        pytest.param({"key": "a", "operator": "Equal", "value": "y"}, "x", False, id="another-value"),
        pytest.param({"key": "a", "effect": "NoSchedule"}, "x", False, id="empty-value"),
        pytest.param({**GT_900, "value": "x"}, "x", False, id="greater-than-the-same-text"),
        pytest.param({**LT_900, "value": "x"}, "x", False, id="less-than-the-same-text"),
        pytest.param(GT_900, "950", True, id="a-value-that-is-greater"),
        pytest.param(GT_900, "900", False, id="a-value-that-is-not-greater"),
    ],
)
def test_covers_equal(existing: JSON, value: str, want: bool) -> None:
    wanted = Toleration(key="a", operator="Equal", value=value, effect="NoSchedule")
    assert covers(msgspec.convert(existing, Toleration), wanted) is want


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
    ("toleration", "want"),
    [
        (Toleration(key="a", operator="Exist"), 'operator: must be Exists or Equal, not "Exist"'),
        (
            Toleration(key="a", operator="Gt", value="900"),
            'operator: must be Exists or Equal, not "Gt": many API servers refuse a pod with it '
            "(feature gate TaintTolerationComparisonOperators)",
        ),
        (Toleration(value="x"), "key: is required unless operator is Exists"),
        (Toleration(key="a b"), 'key: must be a taint key, not "a b"'),
        (Toleration(key="a", operator="Exists", value="x"), "value: must be empty when operator is Exists"),
        (Toleration(key="a", value="x y"), 'value: must be a taint value, not "x y"'),
        (
            Toleration(key="a", effect="NoRun"),
            'effect: must be one of NoSchedule, PreferNoSchedule, NoExecute, not "NoRun"',
        ),
        (
            Toleration(key="a", toleration_seconds=5),
            "tolerationSeconds: is allowed only with effect NoExecute",
        ),
    ],
)
def test_problems(toleration: Toleration, want: str) -> None:
    found = toleration_problems(toleration, "spec.tolerations[0]")

    assert [f"{path}: {sentence}" for path, sentence in found] == [f"spec.tolerations[0].{want}"]
