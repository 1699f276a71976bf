"""Nodes against configuration: taints, tolerations, and the labels by which classes of GPU know their nodes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from policies.gpus.classes import GPUClass
from policies.placement.candidates import classes_of_node
from policies.placement.class_choice import is_covered
from policies.placement.nodes import NodeFacts, NodePool
from policies.placement.pinning import classes_of_label
from policies.pods.annotations import GPU_CLASS
from policies.pods.pod import Container, Metadata, Pod, PodSpec, Resources, Toleration
from policies.pods.tolerations import describe_toleration, tolerates
from policies.policy import BUILT_IN_POLICY
from policies.rule import Context, Phase
from policies.rules import gpu_class, gpu_toleration
from webhook.configuration.documents import CLASS
from webhook.serving.node_watch import node_pools
from webhook.tools.doctor.check import Check, Finding, Severity, Told
from webhook.tools.doctor.cluster import Cluster, Node
from webhook.tools.doctor.rights import Right

READS = (Right("list", "nodes"),)
KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
TEMPORARY = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
)
"""Taints that Kubernetes and autoscalers put on nodes and take away: nobody is to tolerate those."""
PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
SHOWN = 3


def told(names: Iterable[str]) -> str:
    """Return a few of the names, and how many more there are."""
    each = sorted(names)
    more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return ", ".join(each[:SHOWN]) + more


def _untainted(cluster: Cluster) -> Iterator[Told]:
    nodes = [
        node.name for node in cluster.gpu_nodes if not any(t.effect in KEEPS_AWAY for t in _lasting(node))
    ]
    if nodes:
        yield Finding(
            id="untainted-gpu-node",
            severity=Severity.WARNING,
            object=f"Node {told(nodes)}",
            message="has GPUs and no taint: pods that ask for none may take its CPUs, and its GPUs stay idle",
            remedy=f"kubectl taint nodes {nodes[0]} nvidia.com/gpu=present:NoSchedule",
        )


def _lasting(node: Node) -> list[Toleration]:
    return [taint for taint in node.taints if not (taint.key or "").startswith(TEMPORARY)]


class _Tolerations:
    """The tolerations that documents give to GPU pods, and who names each."""

    def __init__(self, cluster: Cluster) -> None:
        configuration = cluster.configuration
        self.by_policy: dict[str, tuple[Toleration, ...]] = {}
        for policy in (*configuration.policies.policies, BUILT_IN_POLICY):
            binding = configuration.policies.binding(gpu_toleration.RULE, policy)
            if isinstance(binding.options, gpu_toleration.GPUTolerationOptions):
                self.by_policy.setdefault(binding.source, binding.options.tolerations)
        self.by_class = {each.name: each.tolerations for each in configuration.classes if each.tolerations}

    def of_node(self, names: frozenset[str]) -> list[Toleration]:
        """Return what a pod of these classes gets from any policy, and from its class."""
        found = [toleration for each in self.by_policy.values() for toleration in each]
        return found + [toleration for name in names for toleration in self.by_class.get(name, ())]


def _taints(cluster: Cluster) -> Iterator[Told]:
    tolerations, classes = _Tolerations(cluster), cluster.configuration.classes
    refused: dict[str, list[str]] = defaultdict(list)
    for node in cluster.gpu_nodes:
        offered = tolerations.of_node(classes_of_node(node.labels, classes))
        for taint in _lasting(node):
            if taint.effect in KEEPS_AWAY and not any(tolerates(each, taint) for each in offered):
                refused[describe_toleration(taint)].append(node.name)
    for taint_text, names in sorted(refused.items()):
        key = taint_text.partition("=")[0].partition(":")[0]
        yield Finding(
            id="taint-not-tolerated",
            severity=Severity.WARNING,
            object=f"Node {told(names)}",
            message=f"has the taint {taint_text}, which no policy and no class of its GPUs tolerates: GPU pods stay away",
            remedy=f"add {{key: {key}, operator: Exists}} to gpu-toleration.tolerations of a policy, or to the class",
        )
    owners = [
        *((f"GPUPolicy/{name}", each) for name, each in tolerations.by_policy.items() if name != "built-in"),
        *((f"GPUClass/{name}", each) for name, each in tolerations.by_class.items()),
    ]
    taints = [taint for node in cluster.nodes for taint in node.taints]
    for owner, each in owners:
        idle = [describe_toleration(t) for t in each if not any(tolerates(t, taint) for taint in taints)]
        if idle and not _is_made_on_demand(cluster, owner):
            yield Finding(
                id="toleration-without-taint",
                severity=Severity.WARNING,
                object=owner,
                message=f"tolerates {', '.join(idle)}, a taint that no node has",
                remedy="correct its spelling, taint the nodes that were meant, or take it out",
            )


def _labels(cluster: Cluster) -> Iterator[Told]:
    configuration = cluster.configuration
    keys = {options.label_key for options in _class_options(cluster)}
    unlabelled: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in cluster.gpu_nodes:
        names = classes_of_node(node.labels, configuration.classes)
        if not names:
            continue
        for key in keys - node.labels.keys():
            unlabelled[key, min(names) if len(names) == 1 else _family(cluster, names)].append(node.name)
    for (key, value), names_of_nodes in sorted(unlabelled.items()):
        yield Finding(
            id="node-without-label",
            severity=Severity.WARNING,
            object=f"Node {told(names_of_nodes)}",
            message=f"is of class {value}, but has no label {key}, by which pods are put on a class: they never come here",
            remedy=f"kubectl label nodes {min(names_of_nodes)} {key}={value}, or set gpu-class.labelKey to a label that "
            "the nodes have",
        )
    yield from _classes_without_nodes(cluster)


def _family(cluster: Cluster, names: frozenset[str]) -> str:
    return next(each.family for each in cluster.configuration.classes if each.name in names)


def _class_options(cluster: Cluster) -> list[gpu_class.GPUClassOptions]:
    policies = cluster.configuration.policies
    found = (policies.binding(gpu_class.RULE, policy).options for policy in policies.policies)
    return [each for each in found if isinstance(each, gpu_class.GPUClassOptions)] or [
        gpu_class.GPUClassOptions()
    ]


def _classes_without_nodes(cluster: Cluster) -> Iterator[Told]:
    """Yield the classes that documents name and for whose pods there is neither a node nor a pool, as admission would say it."""
    configuration = cluster.configuration
    keys = configuration.classes.label_keys
    label_sets = (
        tuple(sorted((key, value) for key, value in node.labels.items() if key in keys))
        for node in cluster.nodes
    )
    context = Context(
        phase=Phase.TEMPLATE,
        namespace="",
        now=datetime.now(UTC),
        classes=configuration.classes,
        resource_mapping=configuration.resource_mapping,
        nodes=NodeFacts(keys=keys, label_sets=frozenset(label_sets), pools=_pools(cluster)),
    )
    for owner, word, options in _named_classes(cluster):
        resource = configuration.classes.resolve(word)[0].resource
        container = Container(name="main", resources=Resources(limits={resource: "1"}))
        pod = Pod(metadata=Metadata(annotations={GPU_CLASS: word}), spec=PodSpec(containers=(container,)))
        for found in gpu_class.without_nodes(pod, options, context):
            yield Finding(
                id="class-without-nodes",
                severity=Severity.WARNING,
                object=owner,
                message=f"names {found.message}",
                remedy="label the nodes that were meant, or, if nodes are made on demand, name the class in "
                "gpu-class.knownPools of the policy",
            )


def _pools(cluster: Cluster) -> tuple[NodePool, ...]:
    return tuple(node_pools(cluster.api, cluster.configuration.classes.label_keys))


def _in_pools(cluster: Cluster) -> set[str]:
    classes = cluster.configuration.classes
    return {
        name
        for pool in _pools(cluster)
        for key, values in pool.labels
        for value in values or ()
        for name in classes_of_label(key, value, classes)
    }


def _named_classes(cluster: Cluster) -> Iterator[tuple[str, str, gpu_class.GPUClassOptions]]:
    """Yield (who names it, class or family, the options by which its pods are pinned)."""
    configuration = cluster.configuration
    for policy in configuration.policies.policies:
        options = policy.spec.rules.get(gpu_class.RULE.id)
        if isinstance(options, gpu_class.GPUClassOptions):
            unrestricted = msgspec.structs.replace(options, allowed=("*",), default=None)
            words = {word for word in (options.default, *options.allowed) if word}
            for word in sorted(word for word in words if configuration.classes.resolve(word)):
                yield f"GPUPolicy/{policy.name}", word, unrestricted
    for document in cluster.documents.own:
        name, each = document.name, configuration.classes.get(document.name)
        if document.kind == CLASS and each is not None and not _is_known(cluster, each):
            yield (
                f"GPUClass/{name}",
                name,
                gpu_class.GPUClassOptions(label_key=_class_options(cluster)[0].label_key),
            )


def _is_known(cluster: Cluster, each: GPUClass) -> bool:
    return any(is_covered(each, options.known_pools) for options in _class_options(cluster))


def _is_made_on_demand(cluster: Cluster, owner: str) -> bool:
    """Whether the nodes that the owner of a toleration means may be there only when they are needed."""
    kind, _, name = owner.partition("/")
    each = cluster.configuration.classes.get(name)
    if kind == "GPUClass" and each is not None:
        return _is_known(cluster, each) or name in _in_pools(cluster)
    return bool(_in_pools(cluster)) or any(options.known_pools for options in _class_options(cluster))


def _unknown(cluster: Cluster) -> Iterator[Told]:
    classes = cluster.configuration.classes
    products: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in cluster.gpu_nodes:
        if not classes_of_node(node.labels, classes):
            key = next((key for key in PRODUCT_LABELS if key in node.labels), "")
            products[key, node.labels.get(key, "")].append(node.name)
    for (key, value), names in sorted(products.items()):
        yield Finding(
            id="unknown-class",
            severity=Severity.WARNING,
            object=f"Node {told(names)}",
            message=f"has GPUs of no class that is known ({key}={value})"
            if key
            else "has GPUs, and no label says of which class",
            remedy=f"write a GPUClass with nodeLabels [{{key: {key}, values: [{value}]}}]"
            if key
            else f"install GPU Feature Discovery, or kubectl label nodes {min(names)} accelerator=CLASS",
        )


CHECKS = (
    Check(id="untainted-nodes", title="GPU nodes are tainted", reads=READS, run=_untainted),
    Check(
        id="taints",
        title="Taints of GPU nodes and tolerations of policies and classes meet",
        reads=READS,
        run=_taints,
    ),
    Check(
        id="class-labels",
        title="Classes that are named have nodes, which have the label",
        reads=READS,
        run=_labels,
    ),
    Check(id="unknown-classes", title="Every GPU node is of a known class", reads=READS, run=_unknown),
)
