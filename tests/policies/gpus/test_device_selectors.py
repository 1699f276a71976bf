"""CEL selectors over kinds of devices. tests/oracle compares them with the package of the scheduler."""

import subprocess
import sys
from typing import Any

import pytest

from policies.gpus.device_selectors import MAX_LENGTH, MAX_LOOP_LENGTH, possible_types, unevaluated
from policies.gpus.device_types import DeviceAttribute, DeviceCapacity, DeviceType, DeviceTypes

DRIVER = "gpu.nvidia.com"
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
MEMORY = 'device.capacity["gpu.nvidia.com"].memory'


def kind(product: str, memory: str, **attributes: Any) -> DeviceType:
    stated = {"productName": product, "type": "gpu", **attributes}
    return DeviceType(
        DRIVER,
        {
            **{f"{DRIVER}/{name}": DeviceAttribute(string=value) for name, value in stated.items()},
            f"{DRIVER}/driverVersion": DeviceAttribute(version="580.1.2-rc.1+build"),
            f"{DRIVER}/major": DeviceAttribute(integer=8),
            f"{DRIVER}/ready": DeviceAttribute(boolean=True),
        },
        {f"{DRIVER}/memory": DeviceCapacity(memory)},
        unknown_names=(f"{DRIVER}/uuid",),
    )


KINDS = DeviceTypes(
    (
        kind("NVIDIA A100-SXM4-40GB", "40Gi"),
        kind("NVIDIA H100 80GB HBM3", "80Gi"),
        kind("NVIDIA H100 80GB HBM3", "9984Mi", type="mig", profile="1g.10gb"),
        DeviceType("gpu.amd.com", {"gpu.amd.com/family": DeviceAttribute(string="AI")}, is_shared=True),
    )
)
A100, H100, SLICE, AMD = range(4)
ALL = {A100, H100, SLICE, AMD}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        pytest.param("device.driver == 'gpu.nvidia.com'", {A100, H100, SLICE}, id="driver"),
        pytest.param("true", ALL, id="always"),
        pytest.param("false", set(), id="never"),
        pytest.param(f"{ATTRIBUTES}.productName.lowerAscii().matches('^.*a100.*$')", {A100}, id="product"),
        pytest.param(f'{ATTRIBUTES}["profile"] == "1g.10gb"', {SLICE}, id="an-attribute-that-others-lack"),
        pytest.param(f'{ATTRIBUTES}.type == "mig" || {ATTRIBUTES}.major > 8', {SLICE, AMD}, id="one-of-two"),
        pytest.param(f'{ATTRIBUTES}.type in ["gpu", "vgpu"]', {A100, H100}, id="in-a-list"),
        pytest.param(
            f"{ATTRIBUTES}.ready && device.driver == 'gpu.nvidia.com'", {A100, H100, SLICE}, id="a-bool"
        ),
        pytest.param("device.allowMultipleAllocations", {AMD}, id="shared"),
        pytest.param(f'{MEMORY}.isGreaterThan(quantity("40Gi"))', {H100}, id="more-memory"),
        pytest.param(f'{MEMORY}.compareTo(quantity("40Gi")) >= 0', {A100, H100}, id="at-least-memory"),
        pytest.param(f'{MEMORY}.isLessThan(quantity("10Gi"))', {SLICE}, id="less-memory"),
        pytest.param(f'{MEMORY} == quantity("40960Mi")', {A100}, id="equal-memory"),
        pytest.param(
            f'{ATTRIBUTES}.driverVersion.isLessThan(semver("580.1.2"))',
            {A100, H100, SLICE},
            id="a-pre-release",
        ),
        pytest.param(
            f'{ATTRIBUTES}.driverVersion.isGreaterThan(semver("580.1.2-rc.0"))',
            {A100, H100, SLICE},
            id="a-later-pre-release",
        ),
        pytest.param(
            f'{ATTRIBUTES}.driverVersion == semver("580.1.2-rc.1")', {A100, H100, SLICE}, id="another-build"
        ),
        pytest.param(f'{ATTRIBUTES}.uuid == "GPU-1"', {A100, H100, SLICE}, id="an-identity"),
        pytest.param(f'{ATTRIBUTES}.uuid == "GPU-1" && {ATTRIBUTES}.type == "mig"', {SLICE}, id="and-more"),
        pytest.param(f'!({ATTRIBUTES}.uuid == "GPU-1")', {A100, H100, SLICE}, id="another-identity"),
        pytest.param(f"has({ATTRIBUTES}.profile)", {SLICE}, id="has"),
        pytest.param(
            f"'profile' in {ATTRIBUTES} && {ATTRIBUTES}.profile.startsWith('1g.')", {SLICE}, id="guarded"
        ),
        pytest.param(f"'uuid' in {ATTRIBUTES}", {A100, H100, SLICE}, id="whether-it-has-an-identity"),
        pytest.param(
            "!('family' in device.attributes['gpu.amd.com'])", {A100, H100, SLICE}, id="in-of-another-domain"
        ),
        pytest.param(
            f"'gpu.nvidia.com' in device.attributes && 'profile' in {ATTRIBUTES} && {ATTRIBUTES}['profile'] == '1g.10gb'",
            {SLICE},
            id="guarded-by-the-domain",
        ),
        pytest.param("!('gpu.amd.com' in device.attributes)", {A100, H100, SLICE}, id="without-a-domain"),
        pytest.param(
            "!('resource.kubernetes.io' in device.attributes)", ALL, id="without-a-domain-of-identities"
        ),
        pytest.param(f"'a' in {ATTRIBUTES} ['uuid']", ALL, id="in-of-a-value"),
        pytest.param(
            '!has(device.attributes["gpu.amd.com"].family)', {A100, H100, SLICE}, id="has-of-another-domain"
        ),
        pytest.param(f"!has({ATTRIBUTES}.uuid)", ALL, id="has-of-an-identity"),
        pytest.param(f'{ATTRIBUTES}.?profile.orValue("none") == "none"', {A100, H100, AMD}, id="an-optional"),
        pytest.param(f'{ATTRIBUTES}.?uuid.orValue("none") == "none"', ALL, id="an-optional-identity"),
        pytest.param(f'"profile" in {ATTRIBUTES}', {SLICE}, id="a-key-beside-identities"),
        pytest.param(
            f'cel.bind(gpu, {ATTRIBUTES}, gpu.type == "mig")', ALL, id="all-attributes-beside-identities"
        ),
        pytest.param('device.attributes["gpu.amd.com"].family == "AI"', {AMD}, id="of-another-driver"),
        pytest.param(
            'device.attributes["gpu.amd.com"].size() == 1', ALL, id="size-where-others-lack-the-domain"
        ),
        pytest.param(
            f'{ATTRIBUTES}.none == "" || quantity("1e30").isGreaterThan(quantity("1"))',
            ALL,
            id="an-error-of-ours-only",
        ),
        pytest.param(f"[1, 2].exists(n, n == {ATTRIBUTES}.major)", {AMD}, id="a-macro"),
    ],
)
def test_a_selector_selects_the_kinds_of_which_a_device_may_satisfy_it(
    expression: str, want: set[int]
) -> None:
    assert possible_types([expression], KINDS) == want
    assert unevaluated([expression]) == ()


LONG = f'{ATTRIBUTES}.type == "{"x" * MAX_LENGTH}"'


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param("", id="nothing"),
        pytest.param("device.driver ==", id="unfinished"),
        pytest.param("device.driver == 'x", id="an-unfinished-string"),
        pytest.param("'''x''' == device.driver", id="a-string-in-three-quotes"),
        pytest.param("model.name == 'x'", id="an-unknown-variable"),
        pytest.param("false // never", id="a-comment"),
        pytest.param(f"type({MEMORY}) == bytes", id="the-type-of-a-stand-in"),
        pytest.param(f'{MEMORY} == b"q1"', id="bytes"),
        pytest.param(f'{MEMORY} == dyn(bytes("q1"))', id="made-into-bytes"),
        pytest.param("string(0.1) == 'x'", id="a-float"),
        pytest.param("1e3 > 2.0", id="an-exponent"),
        pytest.param(f"{ATTRIBUTES}.major < 1u", id="an-unsigned-number"),
        pytest.param(f'{ATTRIBUTES}.type == {{"gpu": "mig"}}["gpu"]', id="a-map"),
        pytest.param('device.attributes[?"gpu.intel.com"].hasValue()', id="an-optional-domain"),
        pytest.param("has(device.attributes.gpu)", id="has-of-a-domain"),
        pytest.param('"%s".format([1]) == "2"', id="a-function-that-was-not-compared"),
        pytest.param(f'{ATTRIBUTES}.type.matches("(x{{9}}){{9}}")', id="a-pattern-that-repeats"),
        pytest.param(f"{ATTRIBUTES}.type.matches('{'[^k]?' * 13}')", id="a-long-pattern"),
        pytest.param(f"{ATTRIBUTES}.type.matches({ATTRIBUTES}.type)", id="a-pattern-that-is-no-text"),
        pytest.param("['a'].all(a, a.matches('b'))", id="a-pattern-in-a-loop"),
        pytest.param(" || ".join([f"{ATTRIBUTES}.type.matches('a')"] * 5), id="five-patterns"),
        pytest.param(LONG, id="too-long"),
        pytest.param(f"[{'1, ' * (MAX_LOOP_LENGTH // 3)}1].all(n, n == 2)", id="too-long-for-a-macro"),
        pytest.param("[1].all(a, [1].all(b, a == 2))", id="two-macros"),
        pytest.param("(" * 99 + "false" + ")" * 99, id="too-deep"),
    ],
)
def test_a_selector_that_is_not_evaluated_allows_every_kind_and_is_named(expression: str) -> None:
    assert possible_types([expression], KINDS) == ALL
    assert unevaluated([expression, "true"]) == (expression,)


def test_all_selectors_must_hold() -> None:
    assert possible_types(["device.driver == 'gpu.nvidia.com'", f'{ATTRIBUTES}.type == "mig"'], KINDS) == {
        SLICE
    }
    assert possible_types([], KINDS) == ALL
    assert possible_types(["true"], DeviceTypes()) == set()


@pytest.mark.parametrize(
    "unread", [DeviceAttribute(version="v1"), DeviceAttribute()], ids=["version", "no-value"]
)
def test_a_kind_with_a_value_that_cannot_be_read_is_always_possible(unread: DeviceAttribute) -> None:
    kinds = DeviceTypes((DeviceType(DRIVER, {f"{DRIVER}/driverVersion": unread}),))

    assert possible_types(["false"], kinds) == {0}


def test_processes_without_kinds_do_not_load_the_library() -> None:
    code = (
        "import sys; from policies.gpus.device_types import NO_DEVICE_TYPES; "
        "from policies.gpus.device_selectors import possible_types; "
        "possible_types(['true'], NO_DEVICE_TYPES); sys.exit('cel_expr_python' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
