"""CEL selectors of devices, each with what it means in Python: so whoever judges needs no CEL, and trusts no library of it."""

import random
from collections.abc import Callable
from typing import NamedTuple

from tests.cluster.devices.facts import NVIDIA, Device, quantity

AMD, TPU = "gpu.amd.com", "tpu.google.com"
Holds = Callable[[Device], bool]


class Selector(NamedTuple):
    """`names_one`: it reads what tells devices of a kind apart, so any of them may be meant, and the least bound is not known."""

    text: str
    holds: Holds
    names_one: bool = False


class DeviceClass(NamedTuple):
    name: str
    selector: Selector


def _of(driver: str, more: str = "", holds: Holds = lambda _: True) -> Selector:
    text = f"device.driver == '{driver}'" + (f" && {more}" if more else "")
    return Selector(text, lambda device: device.driver == driver and holds(device))


def _type(name: str) -> Selector:
    return _of(
        NVIDIA, f"device.attributes['{NVIDIA}'].type == '{name}'", lambda device: device.get("type") == name
    )


CARDS = DeviceClass(NVIDIA, _type("gpu"))
SLICES = DeviceClass("mig.nvidia.com", _type("mig"))
ANY = DeviceClass("any.gpu.nvidia.com", _of(NVIDIA))
HOPPER = DeviceClass(
    "hopper.example.com",
    _of(
        NVIDIA,
        f"device.attributes['{NVIDIA}'].architecture == 'Hopper'",
        lambda device: device.get("architecture") == "Hopper",
    ),
)
AMD_CARDS = DeviceClass(AMD, _of(AMD))
TPUS = DeviceClass(TPU, _of(TPU))
DEVICE_CLASSES = (CARDS, SLICES, ANY, HOPPER, AMD_CARDS, TPUS)

_ATTRIBUTES, _CAPACITY = f"device.attributes['{NVIDIA}']", f"device.capacity['{NVIDIA}']"


def product(name: str) -> Selector:
    return Selector(
        f"{_ATTRIBUTES}.productName == '{name}'", lambda device: device.get("productName") == name
    )


def product_like(part: str) -> Selector:
    text = f"{_ATTRIBUTES}.productName.lowerAscii().contains('{part}')"
    return Selector(text, lambda device: part in str(device.get("productName")).lower())


def profile(name: str) -> Selector:
    """Of MIG devices. A card has no profile, and `[…].profile` of it would be an error of the scheduler."""
    return Selector(
        f"{_ATTRIBUTES}.?profile.orValue('') == '{name}'", lambda device: device.get("profile") == name
    )


def profile_like(start: str) -> Selector:
    text = f"'profile' in {_ATTRIBUTES} && {_ATTRIBUTES}.profile.startsWith('{start}')"
    return Selector(text, lambda device: str(device.get("profile") or "").startswith(start))


def memory_at_least(amount: str) -> Selector:
    text = f"{_CAPACITY}.memory.compareTo(quantity('{amount}')) >= 0"
    return Selector(text, lambda device: device.amount("memory") >= quantity(amount))


def memory_below(amount: str) -> Selector:
    text = f"{_CAPACITY}.memory.isLessThan(quantity('{amount}'))"
    return Selector(text, lambda device: device.amount("memory") < quantity(amount))


def capable(version: str) -> Selector:
    wanted = tuple(map(int, version.split(".")))
    text = f"{_ATTRIBUTES}.cudaComputeCapability.compareTo(semver('{version}')) >= 0"
    return Selector(
        text,
        lambda device: tuple(map(int, str(device.get("cudaComputeCapability")).split("."))) >= wanted,
    )


def no_slice() -> Selector:
    return Selector(f"{_ATTRIBUTES}.type != 'mig'", lambda device: device.get("type") != "mig")


def at_address(address: str) -> Selector:
    text = f"device.attributes['resource.kubernetes.io'].pciBusID == '{address}'"
    return Selector(
        text, lambda device: device.attributes.get("resource.kubernetes.io/pciBusID") == address, True
    )


def drawn(pick: random.Random, products: list[str], profiles: list[str]) -> list[Selector]:
    """Return none to two selectors for devices of NVIDIA, most of which some of these products and profiles fit."""
    made: list[Callable[[], Selector]] = [
        lambda: product(pick.choice(products)),
        lambda: product_like(pick.choice(["a100", "h100", "nvidia", "b200"])),
        lambda: memory_at_least(pick.choice(["4Gi", "9Gi", "19Gi", "30Gi", "60Gi"])),
        lambda: memory_below(pick.choice(["10Gi", "25Gi", "50Gi", "100Gi"])),
        lambda: capable(pick.choice(["8.0.0", "8.9.0", "9.0.0"])),
        no_slice,
        lambda: at_address(pick.choice(["0000:10:00.0", "0000:11:00.0"])),
    ]
    if profiles:
        made += [lambda: profile(pick.choice(profiles))] * 3
        made += [lambda: profile_like(f"{pick.choice('1237')}g.")] * 2
    return [pick.choice(made)() for _ in range(pick.choice([0, 1, 1, 1, 2]))]
