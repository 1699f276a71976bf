"""Tolerations: which taints they tolerate, and which of each other they cover."""

import msgspec
import pytest
import yaml

from policies.pods.pod import Toleration
from policies.pods.tolerations import (
    covers,
    overlaps,
    tolerates,
    toleration_problems,
    toleration_text,
    toleration_yaml,
)
from tests.builders import JSON
from tests.cases import cases

GT_900 = {"key": "a", "operator": "Gt", "value": "900"}

LT_900 = {**GT_900, "operator": "Lt"}
EXISTS = {"key": "a", "operator": "Exists"}
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


@cases(
    ("toleration", "taint", "want"),
    exists=(EXISTS, TAINT, True),
    equal=({"key": "a", "value": "b"}, TAINT, True),
    another_value=({"key": "a", "value": "c"}, TAINT, False),
    another_effect=({**EXISTS, "effect": "NoExecute"}, TAINT, False),
    everything=({"operator": "Exists"}, TAINT, True),
    greater=(GT_900, {"key": "a", "value": "950"}, True),
    greater_is_not_equal=(GT_900, {"key": "a", "value": "900"}, False),
    greater_as_a_number_not_as_text=(GT_900, {"key": "a", "value": "1000"}, True),
    greater_than_no_number=(GT_900, {"key": "a", "value": "fast"}, False),
    greater_than_leading_zeros=(GT_900, {"key": "a", "value": "0950"}, False),
    greater_than_64_bits=(GT_900, {"key": "a", "value": "9" * 19}, False),
    greater_than_a_taint_without_a_value=(GT_900, {"key": "a"}, False),
    greater_of_another_key=(GT_900, {"key": "b", "value": "950"}, False),
    less=(LT_900, {"key": "a", "value": "-5"}, True),
    not_less=(LT_900, {"key": "a", "value": "900"}, False),
    unknown_operator=({**GT_900, "operator": "Ge"}, {"key": "a", "value": "900"}, False),
)
def test_tolerates(toleration: JSON, taint: JSON, want: bool) -> None:
    assert tolerates(msgspec.convert(toleration, Toleration), msgspec.convert(taint, Toleration)) is want


@cases(
    ("one", "other", "want"),
    every_effect=({"key": "a", "value": "b"}, TAINT, True),
    of_every_effect=(TAINT, {"key": "a", "value": "b"}, True),
    another_effect=({**TAINT, "effect": "NoExecute"}, TAINT, False),
    another_value=({**TAINT, "value": "c"}, TAINT, False),
    of_every_value=({**TAINT, "value": "c"}, EXISTS, True),
    of_every_value_of_another_key=(TAINT, {**EXISTS, "key": "b"}, False),
    no_key=({"value": "b"}, {"operator": "Exists"}, False),
)
def test_overlaps(one: JSON, other: JSON, want: bool) -> None:
    assert overlaps(msgspec.convert(one, Toleration), msgspec.convert(other, Toleration)) is want


@cases(
    ("value", "want"),
    a_value=("b", "{key: a, operator: Equal, value: b, effect: NoSchedule}"),
    none=(None, "{key: a, operator: Exists, effect: NoSchedule}"),
)
def test_the_toleration_of_a_taint(value: str | None, want: str) -> None:
    assert toleration_yaml(Toleration(key="a", value=value, effect="NoSchedule")) == want


@pytest.mark.parametrize(
    "value", ["true", "1", "1.5", "null", "NO", "on", "~", "0x10", "1e3", "2026-11-28", "a.b-c_d", ""]
)
def test_the_toleration_of_a_taint_can_be_pasted(value: str) -> None:
    taint = Toleration(key="example.com/reserved", value=value, effect="NoExecute")
    (pasted,) = yaml.safe_load(f"tolerations: [{toleration_yaml(taint)}]")["tolerations"]

    assert tolerates(msgspec.convert(pasted, Toleration), taint)


@cases(
    ("existing", "value", "want"),
    same=({**EXISTS, "effect": "NoSchedule"}, None, True),
    every_effect=(EXISTS, None, True),
    every_taint=({"operator": "Exists"}, None, True),
    every_key_of_another_effect=({"operator": "Exists", "effect": "NoExecute"}, None, False),
    another_effect=({**EXISTS, "effect": "NoExecute"}, None, False),
    another_key=({**EXISTS, "key": "b"}, None, False),
    one_value_only=({"key": "a", "value": "x", "effect": "NoSchedule"}, None, False),
    no_key_and_no_exists=({"value": ""}, None, False),
    for_a_while_only=({**EXISTS, "tolerationSeconds": 60}, None, False),
    greater_values_only=(GT_900, None, False),
    equal_is_the_default=({"key": "a", "value": "x", "effect": "NoSchedule"}, "x", True),
    every_effect_of_a_value=({"key": "a", "operator": "Equal", "value": "x"}, "x", True),
    every_value=(EXISTS, "x", True),
    another_value=({"key": "a", "operator": "Equal", "value": "y"}, "x", False),
    empty_value=({"key": "a", "effect": "NoSchedule"}, "x", False),
    greater_than_the_same_text=({**GT_900, "value": "x"}, "x", False),
    less_than_the_same_text=({**LT_900, "value": "x"}, "x", False),
    a_value_that_is_greater=(GT_900, "950", True),
    a_value_that_is_not_greater=(GT_900, "900", False),
)
def test_covers(existing: JSON, value: str | None, want: bool) -> None:
    operator = "Exists" if value is None else "Equal"
    wanted = Toleration(key="a", operator=operator, value=value, effect="NoSchedule")
    assert covers(msgspec.convert(existing, Toleration), wanted) is want


@cases(
    ("toleration", "want"),
    value=(Toleration(key="dedicated", value="ml", effect="NoSchedule"), "dedicated=ml:NoSchedule"),
    gt=(Toleration(key="sla", operator="Gt", value="900", effect="NoSchedule"), "sla>900:NoSchedule"),
    every_effect=(Toleration(key="nvidia.com/gpu", operator="Exists"), "nvidia.com/gpu"),
    every_key=(Toleration(operator="Exists", effect="NoExecute"), "*:NoExecute"),
)
def test_describe_toleration(toleration: Toleration, want: str) -> None:
    assert toleration_text(toleration) == want


@pytest.mark.parametrize(
    ("toleration", "want"),
    [
        (Toleration(key="a", operator="Exist"), 'operator: must be Exists or Equal, not "Exist"'),
        (
            Toleration(key="a", operator="Gt", value="900"),
            'operator: must be Exists or Equal, not "Gt": many API servers reject a pod with it '
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
