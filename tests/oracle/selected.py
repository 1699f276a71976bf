"""Devices and CEL selectors of random clusters, and which devices the scheduler's own package selects."""

import random
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from policies.gpus.device_types import DeviceAttribute, DeviceCapacity, DeviceType, DeviceTypes
from tests.controlplane import ControlPlaneUnavailable
from tests.oracle.binary import SELECTORS
from tests.unavailable import skip_without

JSON = dict[str, object]
GPU, AMD, TPU = "gpu.nvidia.com", "gpu.amd.com", "tpu.google.com"


class Selected(msgspec.Struct):
    """`error`: why the API server rejects the expression, or "". `selected`: None where the scheduler stops with an error."""

    error: str
    selected: list[bool | None]


class Scheduler:
    """The running program, for one list of devices."""

    def __init__(self, devices: Sequence[JSON]) -> None:
        self._process = subprocess.Popen([SELECTORS.locate()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        self._write({"devices": devices})

    def close(self) -> None:
        self._process.communicate()  # the end of its input ends it

    def ask(self, expression: str) -> Selected:
        assert self._process.stdout
        with self._lock:
            self._write({"expression": expression})
            return msgspec.json.decode(self._process.stdout.readline(), type=Selected)

    def _write(self, line: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(line) + b"\n")
        self._process.stdin.flush()


def scheduler(devices: Sequence[JSON]) -> Scheduler:
    """Return the program. Skips the test where it cannot be had, as tests of a cluster are skipped."""
    try:
        return Scheduler(devices)
    except ControlPlaneUnavailable as unavailable:
        skip_without(unavailable)


def _attribute(value: object) -> DeviceAttribute:
    if isinstance(value, bool):
        return DeviceAttribute(boolean=value)
    if isinstance(value, int):
        return DeviceAttribute(integer=value)
    text = str(value)
    return DeviceAttribute(version=text[1:]) if text[:1] == "=" else DeviceAttribute(string=text)


def kind(
    driver: str, capacity: dict[str, str], /, *unknown: str, shared: bool = False, **attributes: Any
) -> DeviceType:
    """Return a kind. An attribute that begins with "=" is a version."""
    return DeviceType(
        driver,
        {f"{driver}/{name}": _attribute(value) for name, value in attributes.items()},
        {f"{driver}/{name}": DeviceCapacity(value) for name, value in capacity.items()},
        tuple(f"{driver}/{name}" for name in unknown),
        is_shared=shared,
    )


def _nvidia() -> list[DeviceType]:
    products = {
        "NVIDIA A100-SXM4-40GB": ("40Gi", "=8.0.0", "Ampere", ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")),
        "NVIDIA H100 80GB HBM3": ("80Gi", "=9.0.0", "Hopper", ("1g.10gb", "1g.20gb", "3g.40gb", "1g.12gb")),
        "NVIDIA H200": ("141Gi", "=9.0.0", "Hopper", ("1g.18gb", "3g.71gb")),
        "NVIDIA B200": ("180Gi", "=10.0.0", "Blackwell", ("1g.23gb", "4g.90gb")),
        "Tesla T4": ("15Gi", "=7.5.0", "Turing", ()),
    }
    kinds = []
    for product, (memory, capability, architecture, profiles) in products.items():
        for driver in ("=570.86.15", "=580.126.20-rc.1"):
            common: dict[str, Any] = {
                "productName": product,
                "architecture": architecture,
                "cudaComputeCapability": capability,
            }
            common |= {"driverVersion": driver, "brand": "Nvidia"}
            kinds.append(kind(GPU, {"memory": memory}, "uuid", "index", type="gpu", **common))
            if driver == "=570.86.15":
                kinds.extend(
                    kind(
                        GPU,
                        {"memory": f"{9728 * (n + 1)}Mi", "multiprocessors": str(14 * (n + 1))},
                        "uuid",
                        "parentUUID",
                        type="mig",
                        profile=profile,
                        **common,
                    )
                    for n, profile in enumerate(profiles)
                )
    return kinds


KINDS = DeviceTypes(
    (
        *_nvidia(),
        kind(
            AMD,
            {"memory": "192Gi"},
            "cardIndex",
            type="amdgpu",
            productName="AMD_Instinct_MI300X_OAM",
            family="AI",
        ),
        kind(
            AMD,
            {"memory": "24Gi"},
            "cardIndex",
            type="amdgpu-partition",
            partitionProfile="cpx_nps4",
            family="AI",
        ),
        kind(TPU, {}, "uuid", tpuGen="v5e", brand="Google", accelerator="tpu-v5-lite-podslice"),
        kind(
            "gpu.intel.com",
            {"memory": "16Gi"},
            "uid",
            model="Flex 170",
            family="Flex",
            driver="i915",
            sriov=True,
        ),
        kind("gaudi.intel.com", {}, "serial", model="Gaudi3", healthy=True),
        kind("qat.intel.com", {}, "device", services="sym;asym"),
        kind(
            "gpu.example.com",
            {"memory": "80Gi", "vram": "80Gi"},
            "uuid",
            model="H100",
            tier="high",
            memory=80,
        ),
        kind("gpu.example.com", {"memory": "2Gi"}, "uuid", model="LATEST-GPU-MODEL", shared=True),
        kind(
            "hami-core-gpu.project-hami.io", {"memory": "40Gi", "cores": "100"}, type="hami-gpu", shared=True
        ),
        kind("dra.net", {}, "ifName", "name", rdma=True, type="dummy", cloudNetwork="dranet-net-1"),
        kind("neuron.aws.com", {}, instanceType="trn2.48xlarge"),
        kind("dra.example.com", {"name": "2Ki"}, name="=0.1.0", services="sym example dc"),
        kind("compute-domain.nvidia.com", {}, type="channel", id=0),
        kind("sriovnetwork.k8snetworkplumbingwg.io", {}),
        kind("bare.example.com", {"odd": "1500m", "large": "1Ei"}, shared=True),
    )
)
_VALUES = ("0", "1", "2", "GPU-1", "GPU-2", "eth1", "dummy8", "gpu1rdma0")
"""Of attributes that are unknown of a kind."""


@cache
def devices() -> tuple[tuple[int, ...], list[JSON]]:
    """Return devices of every kind, with several values of what is unknown, and the kind of each."""
    of: list[int] = []
    found: list[JSON] = []
    for index, each in enumerate(KINDS.types):
        values = (
            [_attribute(int(text) if text.isdecimal() else text) for text in _VALUES]
            if each.unknown_names
            else [None]
        )
        for value in values:
            hidden = {} if value is None else dict.fromkeys(each.unknown_names, value)
            # As drivers publish them: without the driver's domain.
            short = {
                name.removeprefix(f"{each.driver}/"): one
                for name, one in {**each.attributes, **hidden}.items()
            }
            of.append(index)
            found.append(
                {
                    "driver": each.driver,
                    "allowMultipleAllocations": each.is_shared,
                    "attributes": short,
                    "capacity": {
                        name.removeprefix(f"{each.driver}/"): one for name, one in each.capacity.items()
                    },
                }
            )
    return tuple(of), found


_DOMAINS = (GPU, GPU, GPU, AMD, "gpu.example.com", "dra.example.com", "none.example.com")
_STRINGS = (
    "productName",
    "type",
    "profile",
    "architecture",
    "brand",
    "family",
    "model",
    "uuid",
    "none",
    "services",
)
_WORDS = (
    "gpu", "mig", "1g.10gb", "1g.5gb", "NVIDIA H100 80GB HBM3", "Tesla T4", "Hopper", "Nvidia", "AI", "amdgpu", "GPU-1", "H100",
    "", "NVIDIA", "100", "a100",
)  # fmt: skip
_PATTERNS = (
    "^.*a100.*$",
    "H[12]00",
    "(?i)nvidia",
    r"^1g\\.",
    "gb$",
    "[",
    "^$",
    "\\\\d+",
    ".*",
    "a{2}",
    "x*y",
)
_AMOUNTS = ("40Gi", "80Gi", "10Gi", "0", "1500m", "15Gi", "40960Mi", "1e30", "14", "100", "much", "1Ei", "-1")
_VERSIONS = (
    "570.86.15",
    "580.126.20",
    "580.126.20-rc.1",
    "580.126.20-rc.2+b",
    "9.0.0",
    "0.0.1",
    "v1",
    "1.2",
    "1.0.0-a..b",
)
_TRICKS = (
    'string(0.1 + 0.2) == "0.30000000000000004"', "1.0 / 3.0 > 0.333", '"%s".format([1.5]) == "1.5"', '"".split("") == []',
    "[3, 1].sort() == [1, 3]", '{"a": 1}.a == 1', "dyn(1) == 1u", 'b"q1" == bytes("q1")', "type(device.driver) == string",
    "true // && false", 'device.attributes[?"none.example.com"].hasValue()', "has(device.attributes.none)",
    'device.attributes["none.example.com"].size() == 0', '"none.example.com" in device.attributes',
    "device.attributes.size() > 0", "device.attributes.exists(d, d == device.driver)", 'device["driver"] == "gpu.nvidia.com"',
    'cel.bind(d, device.attributes["gpu.nvidia.com"], d.type == "mig")', 'cel.bind(d, device, d.driver != "x")',
    "cel.bind(a, device.attributes, has(a.none))", '"uuid" in device.attributes["gpu.nvidia.com"]', "int('7') == 7",
    'device.attributes["gpu.nvidia.com"] == {}', "[device].all(d, d.driver == device.driver)", "size('é') == 1",
    'dyn(device.capacity["gpu.nvidia.com"].memory) == dyn(b"q42949672960000000000")', '"a\\x62c" == "abc"', "r'\\d' == '\\\\d'",
    'device.capacity["gpu.nvidia.com"].memory.add(quantity("1")).isGreaterThan(quantity("40Gi"))', "'''a''' == 'a'",
    'device.attributes["none.example.com"] == device.attributes["none2.example.com"]', "1 / 0 == 1",
    "9223372036854775807 + 1 > 0",
    'isQuantity("1Gi")', 'semver("v1.2", true).major() == 1', '"ABC".lowerAscii().contains("b")', "ip('10.0.0.1').family() == 4",
    'device.attributes["gpu.nvidia.com"].?profile.orValue("1g.5gb") == "1g.5gb"', "optional.none().orValue(true)", "1 in [1, 2]",
    'device.attributes["none.example.com"].?a.hasValue()', "device.?driver.hasValue()", "duration('1s') < duration('2s')",
)  # fmt: skip
"""Parts on which the two libraries may differ, or which the bound does not evaluate."""


def expression(draw: random.Random, depth: int = 3) -> str:
    """Return a selector, which the API server may refuse."""
    if depth and draw.random() < 0.6:
        left, right = expression(draw, depth - 1), expression(draw, depth - 1)
        form = draw.choice(
            (
                "{} && {}",
                "{} && {}",
                "{} || {}",
                "({}) || ({})",
                "!({})",
                "({}) ? ({}) : true",
                "({}) == ({})",
            )
        )
        return form.format(left, right)
    return draw.choice(
        (_of_string, _of_string, _of_string, _of_amount, _of_version, _of_presence, _of_device, _trick)
    )(draw)


def _read(draw: random.Random, field: str, names: Sequence[str]) -> str:
    domain, name, quote = draw.choice(_DOMAINS), draw.choice(names), draw.choice("\"'")
    path = f".{name}" if draw.random() < 0.8 else f"[{quote}{name}{quote}]"
    return f"device.{field}[{quote}{domain}{quote}]{path}"


def _of_string(draw: random.Random) -> str:
    read, word = _read(draw, "attributes", _STRINGS), draw.choice(_WORDS)
    return draw.choice(
        (
            f'{read} == "{word}"',
            f"{read} != '{word}'",
            f'{read} in ["{word}", "{draw.choice(_WORDS)}"]',
            f'{read}.startsWith("{word}")',
            f'{read}.lowerAscii().contains("{word}")',
            f'{read}.matches("{draw.choice(_PATTERNS)}")',
            f'{read}.lowerAscii().matches("{draw.choice(_PATTERNS)}")',
            f"{read}.size() > {draw.randrange(20)}",
            f'{read} > "{word}"',
            f'["{word}", "{draw.choice(_WORDS)}"].exists(w, {read}.endsWith(w))',
            f'{read} + "x" == "{word}x"',
            f"{read} == {draw.choice(('1', 'true', '80', '0'))}",
        )
    )


def _of_amount(draw: random.Random) -> str:
    read, amount = (
        _read(draw, "capacity", ("memory", "memory", "multiprocessors", "none")),
        draw.choice(_AMOUNTS),
    )
    quantity = f'quantity("{amount}")'
    return draw.choice(
        (
            f"{read}.isGreaterThan({quantity})",
            f"{read}.isLessThan({quantity})",
            f"{read}.compareTo({quantity}) {draw.choice(('>=', '<', '==', '!='))} 0",
            f"{read} == {quantity}",
            f"{read} in [{quantity}]",
            f"{quantity}.isLessThan({read})",
        )
    )


def _of_version(draw: random.Random) -> str:
    read = _read(draw, "attributes", ("driverVersion", "cudaComputeCapability", "name"))
    semver = f'semver("{draw.choice(_VERSIONS)}")'
    return draw.choice(
        (
            f"{read}.isGreaterThan({semver})",
            f"{read}.isLessThan({semver})",
            f"{read}.compareTo({semver}) >= 0",
            f"{read} == {semver}",
            f"{read}.{draw.choice(('major', 'minor', 'patch'))}() {draw.choice(('==', '>', '<'))} {draw.choice((0, 9, 86, 570))}",
        )
    )


def _of_presence(draw: random.Random) -> str:
    field, domain = draw.choice(("attributes", "capacity")), draw.choice(_DOMAINS)
    read = f'device.{field}["{domain}"]'
    name = draw.choice((*_STRINGS, "memory"))
    return draw.choice(
        (
            f"has({read}.{name})",
            f'"{name}" in {read}',
            f'"{domain}" in device.{field}',
            f'"{domain}" in device.{field} && "{name}" in {read} && {read}["{name}"] == "{draw.choice(_WORDS)}"',
            f"{read}.?{name}.hasValue()",
            f"{read}.exists(n, n == '{name}')",
        )
    )


def _of_device(draw: random.Random) -> str:
    driver = draw.choice(_DOMAINS)
    forms = (
        f'device.driver == "{driver}"',
        f"device.driver != '{driver}'",
        "device.allowMultipleAllocations",
        "true",
        "false",
    )
    return draw.choice(forms)


def _trick(draw: random.Random) -> str:
    return draw.choice(_TRICKS)
