"""The bound of each claim of 200 random worlds, by the product and by the judge, which share no code. No cluster is needed."""

from collections.abc import Iterator
from fractions import Fraction

import msgspec
import pytest

from policies.gpus.claimed_devices import decode_claim
from policies.gpus.device_classes import ClusterDevices, decode_device_class
from policies.gpus.device_pools import DevicePools
from policies.quota.amounts import GPUS
from policies.quota.claim_demand import claim_demand
from policies.quota.demand import UnclassifiedPods
from tests.builders import JSON
from tests.cluster.devices import slices
from tests.cluster.devices.charges import Devices
from tests.cluster.devices.facts import devices_of
from tests.cluster.devices.meanings import DEVICE_CLASSES
from tests.cluster.devices.worlds import CLASSES, World, world
from tests.seed import SAID, SEED
from webhook.configuration.loader import Configuration, load_directory, load_objects

WORLDS = 200


def configured(parts: list[JSON]) -> Configuration:
    """Return the configuration of a cluster without documents, by its ResourceSlices and DeviceClasses."""
    pools = DevicePools()
    for number, each in enumerate(parts):
        pools.put(str(number), None, pools.reader.read(msgspec.json.encode(each)))
    pools.refresh(load_directory(None).resource_mapping)
    stored = (
        {
            "metadata": {"name": each.name},
            "spec": {"selectors": [{"cel": {"expression": each.selector.text}}]},
        }
        for each in DEVICE_CLASSES
    )
    classes = tuple(decode_device_class(msgspec.json.encode(each)) for each in stored)
    return load_objects([], ClusterDevices(classes, pools.inventory.device_types))


def differences(drawn: World) -> Iterator[str]:
    parts = [each for node in drawn.nodes for each in slices.pool(node.driver, node.name, node.slices)]
    known = Devices(CLASSES, drawn.meanings)
    known.add(devices_of(each["spec"] for each in parts))
    configuration = configured(parts)
    for wanted in drawn.wanted:
        claim = decode_claim(msgspec.json.encode({"spec": wanted.spec}))
        demand = claim_demand(claim, configuration, UnclassifiedPods.TOTAL_ONLY)
        charged, bound = demand.vector.get(GPUS, Fraction(0)), known.bound(wanted.spec)
        if demand.denials or not bound.allows(charged):
            text = msgspec.json.encode(wanted.spec).decode()
            yield f"world {drawn.seed}: {charged}, not {bound.least} to {bound.most}: {text}"


@pytest.mark.parametrize("number", range(WORLDS))
def test_each_claim_has_the_same_bound(number: int) -> None:
    assert list(differences(world(SEED % 10**6 + number))) == [], SAID
