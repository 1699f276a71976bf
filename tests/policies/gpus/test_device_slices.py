"""Which slices count, and of which kinds their devices are."""

import msgspec

from policies.gpus import vendors
from policies.gpus.device_kinds import PARTS
from policies.gpus.device_pools import DevicePools
from policies.gpus.device_slices import decode_slice
from policies.gpus.resource_mapping import ResourceMapping

MAPPING = ResourceMapping((vendors.RESOURCE_MAPPING,))


def test_a_card_and_its_partition() -> None:
    counters = {"memory": {"value": "80Gi"}, "decoders": {"value": "1"}}
    part = {"memory": {"value": "10Gi"}, "decoders": {"value": "1"}}
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "a",
        "pool": {"name": "a", "generation": 1, "resourceSliceCount": 2},
    }
    devices = [
        {
            "name": "gpu-0",
            "attributes": {"uuid": {"string": "x"}},
            "consumesCounters": [{"counterSet": "c", "counters": counters}],
        },
        {"name": "part", "consumesCounters": [{"counterSet": "c", "counters": part}]},
    ]
    pools = DevicePools()
    for uid, more in (
        ("1", {"devices": devices}),
        ("2", {"sharedCounters": [{"name": "c", "counters": counters}]}),
    ):
        pools.put(uid, None, pools.reader.read(decode_slice(msgspec.json.encode({"spec": {**spec, **more}}))))
    pools.count(MAPPING)
    assert {kind.parts for kind in pools.inventory.device_kinds.kinds} == {PARTS, PARTS // 8}
