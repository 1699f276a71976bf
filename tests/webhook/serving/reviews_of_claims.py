"""Reviews of ResourceClaims where 40 kinds of devices are known, in a namespace with a quota."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from policies.gpus.device_classes import ClusterDevices, decode_device_class
from policies.gpus.device_pools import DevicePools
from tests.builders import JSON
from tests.cluster.devices import slices
from tests.cluster.devices.cards import A100_40, A100_80, B200, H100, H200
from tests.cluster.devices.meanings import (
    ANY,
    CARDS,
    DEVICE_CLASSES,
    SLICES,
    capable,
    memory_at_least,
    profile,
)
from tests.webhook.app_client import AppClient
from tests.webhook.serving.hostile_bodies import review
from tests.webhook.serving.hostile_program import POLICY, client_with_quotas
from webhook.configuration.loader import load_directory

KINDS = 40
"""Five cards, each with seven profiles."""


def client_with_devices(config: Path) -> AppClient:
    Path(config, "policy.yaml").write_text(POLICY)
    pools = DevicePools()
    for card in (A100_40, A100_80, H100, H200, B200):
        for each in slices.pool(slices.NVIDIA, card.product, slices.partitioned(card, card.product, 8)):
            pools.put(each["metadata"]["name"], None, pools.reader.read(msgspec.json.encode(each)))
    pools.refresh(load_directory(None).resource_mapping)
    stored = (
        {"metadata": {"name": each.name}, "spec": {"selectors": [_cel(each.selector.text)]}}
        for each in DEVICE_CLASSES
    )
    classes = tuple(decode_device_class(msgspec.json.encode(each)) for each in stored)
    kinds = pools.inventory.device_types
    assert len(kinds.types) == KINDS
    return client_with_quotas(config, devices=ClusterDevices(classes, kinds))[0]


def reviews_of_claims(mark: str) -> Iterator[tuple[str, bytes]]:
    """Yield a name and the body of each review. No claim of another mark has the same new selector."""
    small, card = _wanted(SLICES.name, profile("1g.10gb").text), _wanted(CARDS.name)
    claims: dict[str, list[JSON]] = {
        "a card": [{"exactly": card}],
        "a slice": [{"exactly": small}],
        "all slices of a node": [{"exactly": {**small, "allocationMode": "All"}}],
        "a card by two selectors": [
            {"exactly": _wanted(ANY.name, memory_at_least("60Gi").text, capable("9.0.0").text)}
        ],
        "a slice or a card": [{"firstAvailable": [{"name": "a", **small}, {"name": "b", **card}]}],
        "eight slices": [{"exactly": small} for _ in range(8)],
        "a slice by a new selector": [{"exactly": _wanted(SLICES.name, profile(f"1g.{mark}").text)}],
    }
    for name, requests in claims.items():
        named = [{"name": f"r{index}", **each} for index, each in enumerate(requests)]
        document: JSON = {"metadata": {"name": "gpus"}, "spec": {"devices": {"requests": named}}}
        yield name, review("resource.k8s.io", "ResourceClaim", document, namespace="strict")


def _wanted(device_class: str, *expressions: str) -> JSON:
    return {"deviceClassName": device_class, "selectors": [_cel(each) for each in expressions]}


def _cel(expression: str) -> JSON:
    return {"cel": {"expression": expression}}
