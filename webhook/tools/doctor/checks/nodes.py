"""Nodes and DRA devices against configuration: taints, labels of GPU classes, and what quotas cannot count or tell apart."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from policies.finding import inline_yaml
from policies.gpus.classes import GPUClass
from policies.gpus.mapping_spec import NVIDIA_GPU
from policies.gpus.vendors import from_all_vendors
from policies.placement.class_options import class_matches
from policies.placement.given_tolerations import toleration_for_resource
from policies.placement.nodes import NodeFacts, node_facts
from policies.placement.pinning import classes_of_label, classes_of_node
from policies.pods.annotations import GPU_CLASS
from policies.pods.pod import Container, Metadata, Pod, PodSpec, Resources, Toleration
from policies.pods.tolerations import tolerated, tolerates, toleration_text, toleration_yaml
from policies.policy import BUILT_IN_POLICY
from policies.printable import first_names
from policies.rule import Context, Mode, Phase
from policies.rules import gpu_class, gpu_toleration, spot
from policies.rules.gpu_class import GPUClassOptions
from webhook.cluster import errors
from webhook.cluster.nodes import is_permanent_taint, node_pools
from webhook.cluster.objects import DEVICES
from webhook.configuration.documents import CLASS
from webhook.configuration.dynamic_resources import decode_devices, devices_path, unmapped_resources
from webhook.tools.doctor.check import Observation, doctor_check, warning
from webhook.tools.installed_cluster import InstalledCluster, Permission

LIST_NODES = Permission("list", "nodes")
PRODUCT_LABELS = (*from_all_vendors(lambda vendor: vendor.product_labels), "cloud.google.com/gke-accelerator")
LABEL_KEY = GPUClassOptions().label_key
MAX_NAMES = 3
"""Names that a sentence lists."""
MAX_NODES = 20
"""Nodes in one kubectl command: a shell takes more, but nobody reads them."""


def names_in_words(names: Iterable[str]) -> str:
    """Return the first names in the alphabet, and how many more there are."""
    return first_names(sorted(names), MAX_NAMES)


def _subject(names: Collection[str]) -> str:
    return f"{'Node' if len(names) == 1 else 'Nodes'} {names_in_words(names)}"


def _command(verb: str, names: Iterable[str], what: str) -> str:
    """Return the command for all nodes of a finding."""
    ordered = sorted(names)
    more = f" (and so on for {len(ordered) - MAX_NODES} more)" if len(ordered) > MAX_NODES else ""
    return f"kubectl {verb} nodes {' '.join(ordered[:MAX_NODES])} {what}{more}"


@doctor_check("untainted-nodes", "GPU nodes are tainted", LIST_NODES)
def _check_untainted_nodes(cluster: InstalledCluster) -> Iterator[Observation]:
    nodes = [node.name for node in cluster.gpu_nodes if not any(map(is_permanent_taint, node.spec.taints))]
    if nodes:
        message = "must have a taint: pods without GPUs may fill its CPUs, and its GPUs stay idle"
        remedy = _command("taint", nodes, f"{NVIDIA_GPU}=present:NoSchedule")
        yield warning("untainted-gpu-node", _subject(nodes), message, remedy)


@doctor_check(
    "deleted-pods",
    "No GPU node that is not Ready has pods that were deleted",
    LIST_NODES,
    Permission("list", "pods"),
)
def _check_deleted_pods(cluster: InstalledCluster) -> Iterator[Observation]:
    """Warn of pods with a deletionTimestamp on nodes that are not Ready: no kubelet confirms that their containers ended.

    Pods that were deleted by force are no longer in the API server.
    """
    for node in cluster.gpu_nodes:
        if node.is_ready:
            continue
        gpu_pods = cluster.gpu_pods("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}")
        if pods := [f"{pod.namespace}/{pod.name}" for pod in gpu_pods if pod.deletion_timestamp]:
            listed = f"{len(pods)} ({names_in_words(pods)})"
            message = (
                f"is not Ready; GPU pods with a deletionTimestamp: {listed}; their containers may still run"
            )
            remedy = (
                "do not force-delete them: the quota would be freed while their containers may run; if the node is off: "
                f"kubectl taint nodes {node.name} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            )
            yield warning("deleted-pods-on-lost-node", f"Node {node.name}", message, remedy)


def tolerations_by_document(cluster: InstalledCluster) -> dict[str, tuple[Toleration, ...]]:
    """Return the tolerations that GPU pods get from each policy and class, keyed by document, such as `GPUPolicy/default`."""
    configuration = cluster.configuration
    cards = sorted(configuration.resource_mapping.whole_card_resources)
    tolerations = {"GPUPolicy/built-in": tuple(map(toleration_for_resource, cards))}
    for policy in (*configuration.policies.policies, BUILT_IN_POLICY):
        bound = configuration.policies.bound(gpu_toleration.RULE, policy)
        if isinstance(bound.options, gpu_toleration.GPUTolerationOptions):
            tolerations.setdefault(f"GPUPolicy/{bound.source}", tuple(bound.options.listed))
    return tolerations | {f"GPUClass/{each.name}": each.tolerations for each in configuration.classes}


@doctor_check("taints", "Policies and classes tolerate the taints of GPU nodes, and no others", LIST_NODES)
def _check_taints(cluster: InstalledCluster) -> Iterator[Observation]:
    tolerations = tolerations_by_document(cluster)
    yield from _untolerated_taints(cluster, tolerations)
    taints = [taint for node in cluster.nodes for taint in node.spec.taints]
    for document, given in tolerations.items():
        idle = [toleration_text(t) for t in given if not any(tolerates(t, taint) for taint in taints)]
        if idle and document != "GPUPolicy/built-in" and not _is_created_on_demand(cluster, document):
            message = f"tolerates {', '.join(idle)}, and no node has the taint"
            remedy = "correct its spelling, taint the intended nodes, or remove it"
            yield warning("toleration-without-taint", document, message, remedy)


def _untolerated_taints(
    cluster: InstalledCluster, tolerations: Mapping[str, Iterable[Toleration]]
) -> Iterator[Observation]:
    untolerated: dict[Toleration, list[str]] = defaultdict(list)
    for node in cluster.gpu_nodes:
        names = classes_of_node(node.labels, cluster.configuration.classes)
        given = [
            toleration
            for document, of_document in tolerations.items()
            if document.startswith("GPUPolicy/") or document.removeprefix("GPUClass/") in names
            for toleration in of_document
        ]
        for taint in filter(is_permanent_taint, node.spec.taints):
            if not tolerated(taint, given):
                untolerated[taint].append(node.name)
    for taint, nodes in sorted(untolerated.items(), key=lambda each: toleration_text(each[0])):
        has, its = ("has", "its") if len(nodes) == 1 else ("have", "their")
        text = toleration_text(taint)
        message = f"{has} the taint {text}, which no policy and no class of {its} GPUs tolerates: GPU pods cannot run there"
        remedy = f"add {toleration_yaml(taint)} to gpu-toleration.tolerations of a policy, or to the class"
        yield warning("taint-not-tolerated", _subject(nodes), message, remedy)


@doctor_check("class-labels", "Every class in a GPUPolicy or GPUClass has nodes with its label", LIST_NODES)
def _check_class_labels(cluster: InstalledCluster) -> Iterator[Observation]:
    classes = cluster.configuration.classes
    keys = {options.label_key for options in _class_options(cluster)}
    unlabelled: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in cluster.gpu_nodes:
        names = classes_of_node(node.labels, classes)
        if not names:
            continue
        value = min(names) if len(names) == 1 else next(each.family for each in classes if each.name in names)
        for key in keys - node.labels.keys():
            unlabelled[key, value].append(node.name)
    for (key, value), nodes in sorted(unlabelled.items()):
        verb = "is" if len(nodes) == 1 else "are"
        message = (
            f"{verb} of class {value} and must have the label {key}, by which pods are pinned to a class"
        )
        label = _command("label", nodes, f"{key}={value}")
        remedy = f"{label}, or set gpu-class.labelKey to a label that the nodes have"
        yield warning("node-without-label", _subject(nodes), message, remedy)
    yield from _findings_without_nodes(cluster)


def _class_options(cluster: InstalledCluster) -> list[GPUClassOptions]:
    policies = cluster.configuration.policies
    all_options = (policies.bound(gpu_class.RULE, policy).options for policy in policies.policies)
    return [option for option in all_options if isinstance(option, GPUClassOptions)] or [GPUClassOptions()]


def _findings_without_nodes(cluster: InstalledCluster) -> Iterator[Observation]:
    """Yield classes that no node or NodePool has; the message is that of rule gpu-class."""
    configuration = cluster.configuration
    context = Context(
        phase=Phase.TEMPLATE,
        namespace="",
        now=cluster.now,
        classes=configuration.classes,
        resource_mapping=configuration.resource_mapping,
        nodes=_node_facts(cluster, configuration.classes.label_keys),
    )
    remedy = (
        "label the intended nodes, or, if nodes are created on demand, name the class in "
        "gpu-class.autoscaledClasses of the policy"
    )
    for document, choice, options in _named_classes(cluster):
        resource = configuration.classes.resolve(choice)[0].resource
        container = Container(name="main", resources=Resources(limits={resource: "1"}))
        spec = PodSpec(containers=(container,))
        pod = Pod(metadata=Metadata(annotations={GPU_CLASS: choice}), given_spec=spec)
        for finding in gpu_class.warn_without_nodes(pod, options, context):
            yield warning("class-without-nodes", document, f"names {finding.message}", remedy)


def _node_facts(cluster: InstalledCluster, keys: frozenset[str]) -> NodeFacts:
    labelled = (
        tuple(sorted((key, value) for key, value in node.labels.items() if key in keys))
        for node in cluster.nodes
    )
    return node_facts(keys, ((labels, None) for labels in labelled), tuple(node_pools(cluster.api)))


def _classes_of_node_pools(cluster: InstalledCluster) -> set[str]:
    classes = cluster.configuration.classes
    return {
        name
        for pool in node_pools(cluster.api)
        for key, values in pool.labels.items()
        for value in values or ()
        for name in classes_of_label(key, value, classes)
    }


def _named_classes(cluster: InstalledCluster) -> Iterator[tuple[str, str, GPUClassOptions]]:
    """Yield (document that names it, class or family, options for pinning its pods)."""
    configuration = cluster.configuration
    for policy in configuration.policies.policies:
        options = policy.spec.rules.get(gpu_class.RULE.id)
        if isinstance(options, GPUClassOptions):
            # Without `allowed` and `default`, the rule speaks of nodes only.
            unrestricted = msgspec.structs.replace(options, allowed=("*",), default=None)
            choices = {choice for choice in (options.default, *options.allowed) if choice}
            for choice in sorted(choice for choice in choices if configuration.classes.resolve(choice)):
                yield f"GPUPolicy/{policy.name}", choice, unrestricted
    for document in configuration.documents:
        name, known = document.name, configuration.classes.get(document.name)
        if document.kind == CLASS and known is not None and not _is_autoscaled(cluster, known):
            options = GPUClassOptions(label_key=_class_options(cluster)[0].label_key)
            yield f"GPUClass/{name}", name, options


def _is_autoscaled(cluster: InstalledCluster, of_class: GPUClass) -> bool:
    return any(class_matches(of_class, options.autoscaled_classes) for options in _class_options(cluster))


def _is_created_on_demand(cluster: InstalledCluster, document: str) -> bool:
    """Whether an autoscaler may create the nodes for the document with the toleration."""
    kind, _, name = document.partition("/")
    found = cluster.configuration.classes.get(name)
    if kind == "GPUClass" and found is not None:
        return _is_autoscaled(cluster, found) or name in _classes_of_node_pools(cluster)
    return bool(_classes_of_node_pools(cluster)) or any(
        options.autoscaled_classes for options in _class_options(cluster)
    )


@doctor_check("unknown-classes", "Every GPU node is of a known class", LIST_NODES)
def _check_unknown_classes(cluster: InstalledCluster) -> Iterator[Observation]:
    classes = cluster.configuration.classes
    products: dict[tuple[str, str], list[str]] = defaultdict(list)
    several: dict[str, list[str]] = defaultdict(list)
    for node in cluster.gpu_nodes:
        class_names = classes_of_node(node.labels, classes)
        if len({each.family for each in classes if each.name in class_names}) > 1:
            several[", ".join(sorted(class_names))].append(node.name)
        elif not class_names:
            key = next((key for key in PRODUCT_LABELS if key in node.labels), "")
            products[key, node.labels.get(key, "")].append(node.name)
    for (key, value), names in sorted(products.items()):
        has = "has" if len(names) == 1 else "have"
        message = f"{has} GPUs, and no label names their class"
        remedy = "install GPU Feature Discovery"
        if LABEL_KEY in {options.label_key for options in _class_options(cluster)}:
            remedy += f", or {_command('label', names, f'{LABEL_KEY}=CLASS')}"
        if key:
            message = f"{has} GPUs of an unknown class ({key}={value})"
            remedy = f"write a GPUClass with nodeLabels {inline_yaml([{'key': key, 'values': [value]}])}"
        yield warning("unknown-class", _subject(names), message, remedy)
    for each, names in sorted(several.items()):
        has = "has" if len(names) == 1 else "have"
        message = f"{has} labels of several classes: {each}"
        remedy = "name a label in nodeLabels of one class only; a GPUClass with the name of a built-in class replaces it"
        yield warning("node-of-several-classes", _subject(names), message, remedy)


@doctor_check("device-plugins", "Nodes with the labels of GPUs have some", LIST_NODES)
def _check_device_plugins(cluster: InstalledCluster) -> Iterator[Observation]:
    configuration, with_gpus = cluster.configuration, {node.name for node in cluster.gpu_nodes}
    if configuration.resource_mapping.device_types.types:
        return  # they may have their GPUs in ResourceSlices
    nodes = [
        node.name
        for node in cluster.nodes
        if node.name not in with_gpus
        and node.is_ready
        and classes_of_node(node.labels, configuration.classes)
    ]
    if nodes:
        message = "must have the GPUs that its labels name: pods that request them stay pending"
        remedy = (
            f"see the device plugin there: kubectl get pods -A --field-selector spec.nodeName={min(nodes)}"
        )
        yield warning("labelled-node-without-gpus", _subject(nodes), message, remedy)


@doctor_check("spot-pools", "The spot pool of every policy has nodes", LIST_NODES)
def _check_spot_pools(cluster: InstalledCluster) -> Iterator[Observation]:
    policies = cluster.configuration.policies
    for source, options in {
        bound.source: bound.options
        for bound in (policies.bound(spot.RULE, policy) for policy in policies.policies)
        if bound.options.mode is not Mode.DISABLED
    }.items():
        pool_labels = options.node_selector if isinstance(options, spot.SpotOptions) else {}
        selecting = Pod(given_spec=PodSpec(node_selector=pool_labels))
        if not _node_facts(cluster, frozenset(pool_labels)).labels_match(selecting, "", ()):
            labels = ", ".join(f"{key}={value}" for key, value in pool_labels.items())
            message = f"names a spot pool, and no node has its labels ({labels}): no new pod is placed on it"
            remedy = "set rules.spot.nodeSelector to the labels of your spot nodes, or disable the rule"
            yield warning("spot-pool-without-nodes", f"GPUPolicy/{source}", message, remedy)


@doctor_check(
    "unmapped",
    "Quotas count every device",
    LIST_NODES,
    Permission("list", "deviceclasses", "resource.k8s.io"),
)
def _check_unmapped(cluster: InstalledCluster) -> Iterator[Observation]:
    mapping = cluster.usable_configuration.resource_mapping
    nodes: dict[str, list[str]] = defaultdict(list)
    for node in cluster.nodes:
        names = (name for name, amount in node.resources.items() if amount != "0")
        for name in unmapped_resources(names, mapping):
            nodes[name].append(node.name)
    remedy = "name it in a GPUResourceMapping: measure devices if these are GPUs, nothing if not"
    for name, having in sorted(nodes.items()):
        message = f"is not counted: no GPUResourceMapping names this resource of {_subject(having)}"
        yield warning("unmapped-resource", f"Resource {name}", message, remedy)
    # Raises NoResult without valid documents; what is yielded above is reported all the same.
    for name in cluster.configuration.unmapped_device_classes:
        message = (
            "is not counted: its selectors name no known driver of GPUs, and no GPUResourceMapping names it"
        )
        yield warning("unmapped-device-class", f"DeviceClass/{name}", message, remedy)


@doctor_check("device-kinds", "Kinds of DRA devices have all attributes that selectors may read")
def _check_device_kinds(cluster: InstalledCluster) -> Iterator[Observation]:
    namespace = cluster.names.namespace
    try:
        left_out = decode_devices(cluster.api.get(devices_path(namespace))).published.left_out
    except errors.NotFound:  # nothing is published, and the check of configurations names the object
        return
    if left_out:
        message = (
            f"lacks {first_names(left_out, MAX_NAMES)}, because there are too many kinds of devices: a claim whose selector "
            "reads one of them counts as the largest device of its DeviceClass"
        )
        remedy = "set measure nothing in deviceClasses of a GPUResourceMapping for drivers whose devices are not GPUs"
        yield warning("device-kinds-left-out", f"ConfigMap/{DEVICES} in {namespace}", message, remedy)


CHECKS = (
    *(
        _check_untainted_nodes,
        _check_deleted_pods,
        _check_taints,
        _check_class_labels,
        _check_unknown_classes,
        _check_device_plugins,
        _check_spot_pools,
        _check_unmapped,
    ),
    _check_device_kinds,
)
