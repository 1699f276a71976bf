"""What the controller publishes of nodes."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction

import msgspec

from tests.builders import JSON
from webhook.cluster.capacity import counted_node_reader
from webhook.cluster.published_capacity import PublishedCapacity, encode, published_classes
from webhook.configuration.loader import load_directory

CONFIG_MAP = "/api/v1/namespaces/gpu-admission/configmaps/gpu-admission-capacity"
GPU = "nvidia.com/gpu"


def published(at: datetime, nodes: Sequence[JSON], used_on: Mapping[str, int]) -> JSON:
    """Return the ConfigMap that the controller wrote then; `used_on`: whole GPUs by node."""
    configuration = load_directory(None)
    read = counted_node_reader(configuration)
    found = []
    for each in nodes:
        counted = read(msgspec.Raw(msgspec.json.encode(each)))
        assert counted.gpus is not None
        used = {GPU: Fraction(used_on.get(counted.name, 0))}
        found.append(msgspec.structs.replace(counted.gpus, used=used))
    classes = published_classes(found, {}, configuration.classes)
    return {"metadata": {"name": "x"}, **json.loads(encode(PublishedCapacity(at, classes)))}
