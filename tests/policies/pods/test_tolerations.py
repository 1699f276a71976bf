"""Tolerations: which taints they tolerate, and which of each other they cover."""

import msgspec
import pytest

from policies.pods.pod import Toleration
from policies.pods.tolerations import covers, describe_toleration, tolerates


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
            Toleration(key="nvidia.com/gpu", operator="Exists"), "nvidia.com/gpu", id="every-effect"
        ),
        pytest.param(Toleration(operator="Exists", effect="NoExecute"), "*:NoExecute", id="every-key"),
    ],
)
def test_describe_toleration(toleration: Toleration, want: str) -> None:
    assert describe_toleration(toleration) == want
