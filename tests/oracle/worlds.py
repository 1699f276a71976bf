"""Random worlds as clusters have them: cordons, taints, nodes that share or are cut into slices, LimitRanges, ResourceQuotas.

    draw = Draw(seed)
    world = draw_world(draw)        # tests.oracle.World; the same seed draws the same world
    draw.features                   # what it has, by name; a test adds its own with `draw.has("quota full", 0.3)`

`draw_nodes`, `draw_limit_range`, `draw_resource_quota` and `draw_pod` draw the parts alone. A cluster can be like each world;
pods may be refused. Each feature comes often enough that 5,000 worlds have each pair of them at least 100 times (`scarce`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

from tests.oracle import JSON, World

NAMESPACE = "team"
GPU, SHARED, AMD = "nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"
SLICE, OTHER_SLICE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
PRODUCT = "nvidia.com/gpu.product"
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


class Card(NamedTuple):
    accelerator: str
    product: str
    counts: tuple[int, ...]
    has_slices: bool = False


CARDS = (
    Card("nvidia-t4", "Tesla-T4", (1, 4)),
    Card("nvidia-l4", "NVIDIA-L4", (1, 2, 4, 8)),
    Card("nvidia-a100-80gb", "NVIDIA-A100-SXM4-80GB", (4, 8), has_slices=True),
    Card("nvidia-h100-80gb", "NVIDIA-H100-80GB-HBM3", (8,), has_slices=True),
)
MI300X = Card("amd-mi300x", "AMD_Instinct_MI300X_OAM", (8,))
KEPT = (
    {"key": "dedicated", "value": "research"},
    {"key": "reserved", "value": "true"},
    {"key": GPU, "value": "present"},
    {"key": "team"},
)
"""Taints that stay, and that a pod must tolerate."""
PASSING = (
    {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
    {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"},
    {"key": "node.cilium.io/agent-not-ready", "value": "true", "effect": "NoExecute"},
    {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
    {"key": "nvidia.com/gpu.driver-upgrade", "value": "true", "effect": "NoSchedule"},
    {"key": "ToBeDeletedByClusterAutoscaler", "value": "1764300000", "effect": "NoSchedule"},
)
"""Taints that a controller sets and takes away."""
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
ROOM = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
ITEMS = ("default", "defaultRequest", "max", "min", "maxLimitRequestRatio")
AMOUNTS = {
    GPU: (1, 1, 2, 4, 8),
    SHARED: (1, 2, 4),
    SLICE: (1, 2, 3),
    "cpu": (1, 2, 4, 8, 16),
    "memory": (1, 4, 16, 64),
}
UNITS = {"memory": "Gi"}


class Draw(Random):
    """The source of a world, which notes the features that it drew."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.features: set[str] = set()

    def has(self, feature: str, chance: float) -> bool:
        """Return true by that chance, and note the feature then."""
        drawn = self.random() < chance
        if drawn:
            self.features.add(feature)
        return drawn


def draw_world(draw: Draw) -> World:
    nodes = draw_nodes(draw)
    bound = [pod for node in nodes for pod in draw_bound(draw, node)]
    limit_ranges = []
    if draw.has("LimitRange", 0.55):
        limit_ranges.append(draw_limit_range(draw, "limits"))
        if draw.has("two LimitRanges", 0.4):
            limit_ranges.append(draw_limit_range(draw, "more-limits"))
    quotas = [draw_resource_quota(draw)] if draw.has("ResourceQuota", 0.28) else []
    return World(draw_pod(draw, nodes), NAMESPACE, limit_ranges, quotas, nodes, bound)


# ---- nodes, and who uses them


def draw_nodes(draw: Draw) -> list[JSON]:
    """Return up to six nodes, each of a card of its own kind and count."""
    return [draw_node(draw, f"node-{number}") for number in range(draw.choice((0, *(1, 2, 3, 4, 5, 6) * 4)))]


def draw_node(draw: Draw, name: str) -> JSON:
    card = MI300X if draw.has("AMD node", 0.07) else draw.choice(CARDS)
    labels, offered = _offered(draw, card, draw.choice(card.counts))
    taints = [{**each, "effect": draw.choice(EFFECTS)} for each in KEPT if draw.random() < 0.06]
    draw.features.update(f"taint {each['effect']}" for each in taints)
    if draw.has("passing taint", 0.08):
        taints.append(draw.choice(PASSING))
    spec: JSON = {}
    if draw.has("cordon", 0.08):
        spec["unschedulable"] = True
        taints.append(CORDON)
    if taints:
        spec["taints"] = taints
    known = {
        HOSTNAME: name,
        ZONE: draw.choice("ab"),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    amounts = {**ROOM, **{resource: str(amount) for resource, amount in offered.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, **labels}},
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _offered(draw: Draw, card: Card, count: int) -> tuple[dict[str, str], dict[str, int]]:
    """Return the labels of a node with so many cards, and what its device plugin offers."""
    if card is MI300X:
        return {"accelerator": card.accelerator, "amd.com/gpu.product-name": card.product}, {AMD: count}
    if draw.has("node without GPUs", 0.06):
        return {}, {}
    labels, product = {"nvidia.com/gpu.count": str(count)}, card.product
    resources = {GPU: count}
    if draw.has("node without its devices", 0.08):
        resources = draw.choice(({}, {GPU: 0}))  # kubelet keeps the name while the device plugin is away
    elif card.has_slices and draw.has("node of slices", 0.2):
        labels |= {"nvidia.com/mig.strategy": "mixed", f"{SLICE}.count": str(4 * count)}
        whole = draw.choice((0, 0, 2))
        resources = {SLICE: 4 * count, OTHER_SLICE: count, **({GPU: whole} if whole else {})}
    elif draw.has("node of shares", 0.12):
        labels["nvidia.com/gpu.replicas"] = "4"
        product += "-SHARED"
        resources = {SHARED if draw.random() < 0.7 else GPU: 4 * count}
    named = draw.choice(("accelerator", "product", *("both",) * 5, "neither"))
    if named in {"accelerator", "both"}:
        labels["accelerator"] = card.accelerator
    if named in {"product", "both"}:
        labels[PRODUCT] = product
    return labels, resources


def draw_bound(draw: Draw, node: JSON) -> list[JSON]:
    """Return the pods that use a node: none, some, or as many as it has devices for."""
    offered = {key: int(amount) for key, amount in node["status"]["allocatable"].items() if key not in ROOM}
    most = sum(offered.values())
    used = 0 if not most or draw.random() < 0.7 else draw.randint(1, most)
    if most and draw.has("full node", 0.08):
        used = most
    if used:
        draw.features.add("node in use")
    pods: list[JSON] = []
    for resource, amount in offered.items():
        taken = min(amount, used)
        used -= taken
        if taken:
            named = f"{node['metadata']['name']}-{len(pods)}"
            spec = {
                "nodeName": node["metadata"]["name"],
                "containers": [_container("main", {resource: taken})],
            }
            namespace = draw.choice((NAMESPACE, "others"))
            pods.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": named, "namespace": namespace},
                    "spec": spec,
                }
            )
    return pods


# ---- LimitRanges


def draw_limit_range(draw: Draw, name: str) -> JSON:
    """Return a LimitRange of containers, of pods, or of both, with any combination of its amounts."""
    types = draw.choice((("Container",), ("Container",), ("Pod",), ("Container", "Pod")))
    limits = [_limits(draw, each) for each in types]
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}


def _limits(draw: Draw, kind: str) -> JSON:
    item: JSON = {"type": kind}
    resources = [each for each in AMOUNTS if draw.random() < (0.55 if each == GPU else 0.2)]
    for resource in resources or [GPU]:
        fields = ITEMS if kind == "Container" else ITEMS[2:]
        chosen = [each for each in fields if draw.random() < 0.4] or [draw.choice(fields)]
        for field, amount in _amounts(draw, resource, chosen).items():
            item.setdefault(field, {})[resource] = amount
            draw.features.add(f"{kind} {field}")
        draw.features.add("LimitRange of GPUs" if "/" in resource else "LimitRange of CPU or memory")
    return item


def _amounts(draw: Draw, resource: str, fields: Collection[str]) -> JSON:
    """Return amounts of the fields by which the API server takes the LimitRange."""
    least, request, limit, most = sorted(draw.choices(AMOUNTS[resource], k=4))
    if "/" in resource:  # what cannot be overcommitted has one default, and `max` is it if there is no other
        request = limit = most if "default" not in fields and "max" in fields else limit
    amounts = {"min": least, "defaultRequest": request, "default": limit, "max": most}
    unit = UNITS.get(resource, "")
    found: JSON = {field: f"{amounts[field]}{unit}" for field in fields if field in amounts}
    if "maxLimitRequestRatio" in fields:
        bounded = {"min", "max"} <= set(fields)
        found["maxLimitRequestRatio"] = str(min(draw.choice((1, 2, 4)), most // least if bounded else 4))
    return found


# ---- ResourceQuotas


HARD = (
    ("requests.nvidia.com/gpu", 0.7, (1, 2, 4, 8)),
    ("requests.nvidia.com/mig-1g.10gb", 0.2, (1, 4)),
    ("requests.cpu", 0.2, (4, 16, 64)),
    ("limits.memory", 0.1, (64, 256)),
    ("pods", 0.2, (1, 10)),
)


def draw_resource_quota(draw: Draw) -> JSON:
    """Return a ResourceQuota with what others use of it: nothing, some, or all."""
    chosen = [each for each in HARD if draw.random() < each[1]] or [HARD[0]]
    units = {"limits.memory": "Gi"}
    hard = {name: draw.choice(amounts) for name, _, amounts in chosen}
    is_full = draw.has("full ResourceQuota", 0.7)
    used = {name: amount if is_full else draw.randint(0, amount - 1) for name, amount in hard.items()}
    written = {name: f"{amount}{units.get(name, '')}" for name, amount in hard.items()}
    status = {
        "hard": written,
        "used": {name: f"{amount}{units.get(name, '')}" for name, amount in used.items()},
    }
    metadata = {"name": "native", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": written},
        "status": status,
    }


# ---- pods


def draw_pod(draw: Draw, nodes: Sequence[JSON] = ()) -> JSON:
    """Return a pod, some of whose selectors, affinities and tolerations are of these nodes."""
    containers = [_asking(draw, "main")]
    if draw.has("several containers", 0.25):
        containers.append(_asking(draw, "second"))
    spec: JSON = {"containers": containers}
    if draw.has("init container", 0.22):
        sidecar = {"restartPolicy": "Always"} if draw.has("sidecar", 0.75) else {}
        spec["initContainers"] = [{**_asking(draw, "init"), **sidecar}]
    labels = [each["metadata"]["labels"] for each in nodes] or [{}]
    if draw.has("nodeSelector", 0.22):
        spec["nodeSelector"] = dict([_label(draw, draw.choice(labels))])
    if draw.has("node affinity", 0.2):
        terms: list[JSON] = [
            {"matchExpressions": _requirements(draw, labels)} for _ in range(draw.choice((1, 1, 2)))
        ]
        if nodes and draw.random() < 0.2:
            only, operator = draw.choice(nodes)["metadata"]["name"], draw.choice(("In", "In", "NotIn"))
            terms[0]["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [only]}]
        if draw.random() < 0.05:
            terms[0] = {}  # matches no node
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if draw.random() < 0.1:
        wished = [{"weight": 1, "preference": {"matchExpressions": _requirements(draw, labels)}}]
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = wished
    if draw.has("tolerations", 0.4):
        spec["tolerations"] = [_toleration(draw, nodes) for _ in range(draw.choice((1, 1, 2)))]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": NAMESPACE},
        "spec": spec,
    }


ASKED = (
    ("requests nothing", 0.3, None, ()),
    ("requests GPUs", 0.4, GPU, (1, 1, 1, 1, 2, 2, 4, 8, 16)),
    ("requests shares", 0.15, SHARED, (1, 1, 2, 5)),
    ("requests slices", 0.15, SLICE, (1, 1, 2)),
    ("requests AMD GPUs", 0.15, AMD, (1, 8)),
    ("requests what is no amount of GPUs", 0.12, GPU, (0, "500m", "1500m", "-1", "many")),
)


def _asking(draw: Draw, name: str) -> JSON:
    feature, _, resource, amounts = draw.choices(ASKED, [each[1] for each in ASKED])[0]
    draw.features.add(feature)
    asked: JSON = {resource: draw.choice(amounts)} if resource else {}
    if draw.random() < 0.35:
        draw.features.add("requests CPU or memory")
        asked |= {"cpu": draw.choice((1, 4, 16)), "memory": draw.choice(("1Gi", "8Gi", "64Gi"))}
    made = _container(name, asked)
    if resource and draw.has("requests and limits", 0.3):
        requests = dict(made["resources"]["limits"])
        if draw.has("requests unlike limits", 0.5):
            requests[resource] = draw.choice(("1", "2", "3"))
        made["resources"]["requests"] = requests
        if draw.random() < 0.2:
            del made["resources"]["limits"]
    return made


def _container(name: str, limits: JSON) -> JSON:
    resources = (
        {"resources": {"limits": {key: str(amount) for key, amount in limits.items()}}} if limits else {}
    )
    return {"name": name, "image": "registry.example/trainer:1", **resources}


def _label(draw: Draw, labels: dict[str, str]) -> tuple[str, str]:
    """Return a label of a node, or one that none may have."""
    if labels and draw.random() < 0.1:
        key = draw.choice((HOSTNAME, ZONE))
        return key, labels[key]
    there = [(key, value) for key, value in labels.items() if key in {"accelerator", PRODUCT}]
    elsewhere = [("accelerator", each.accelerator) for each in CARDS] + [
        ("accelerator", "nvidia-l5"),
        ("zone", "a"),
    ]
    return draw.choice(there if there and draw.random() < 0.6 else elsewhere)


def _requirements(draw: Draw, labels: Sequence[dict[str, str]]) -> list[JSON]:
    made: list[JSON] = []
    for _ in range(draw.choice((1, 1, 2))):
        key, value = _label(draw, draw.choice(labels))
        operator = draw.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        if operator in {"Gt", "Lt"}:
            made.append(
                {"key": "nvidia.com/gpu.count", "operator": operator, "values": [draw.choice(("1", "4"))]}
            )
        elif operator in {"In", "NotIn"}:
            made.append(
                {
                    "key": key,
                    "operator": operator,
                    "values": sorted({value, draw.choice((value, "nvidia-l4"))}),
                }
            )
        else:
            made.append({"key": key, "operator": operator})
    return made


def _toleration(draw: Draw, nodes: Sequence[JSON]) -> JSON:
    """Return a toleration of a taint that is there, or nearly, or of anything."""
    taints = [each for node in nodes for each in node["spec"].get("taints", ())] or list(KEPT)
    taint = draw.choice(taints if draw.random() < 0.7 else KEPT)
    effect = (
        {"effect": draw.choice((taint.get("effect", "NoSchedule"), "NoExecute"))}
        if draw.random() < 0.6
        else {}
    )
    if effect.get("effect") == "NoExecute" and draw.random() < 0.3:
        effect["tolerationSeconds"] = 60
    how = draw.choice(("Equal", "Exists", "Exists", "any"))
    if how == "any":
        return {"operator": "Exists"}
    if how == "Exists":
        return {"key": taint["key"], "operator": "Exists", **effect}
    return {"key": taint["key"], "operator": "Equal", "value": taint.get("value", ""), **effect}


# ---- how often features come


def scarce(
    worlds: Iterable[Collection[str]], least: int, alone: Collection[Collection[str]] = ()
) -> list[tuple[str, ...]]:
    """Return the features, and pairs of them, that fewer than `least` worlds have; `alone`: sets of which a world has one."""
    found: Counter[tuple[str, ...]] = Counter()
    for features in worlds:
        ordered = sorted(features)
        found.update((each,) for each in ordered)
        found.update(combinations(ordered, 2))
    names = sorted(name for (name, *more) in found if not more)
    wanted = [(name,) for name in names] + list(combinations(names, 2))
    excluded = {tuple(sorted(pair)) for each in alone for pair in combinations(each, 2)}
    return [each for each in wanted if found[each] < least and each not in excluded]
