"""Objects of Kueue proposed from GPUClasses and GPUQuotas: a flavor for each class, and queues for each GPUQuota.

A flavor has the label by which pods of the class are pinned, and the tolerations that they get: Kueue compares templates with
nodes, and templates have neither. A ClusterQueue grants of each class what the GPUQuota grants of it, of its family, or in total.
Its cpu and memory are as good as unlimited, because Kueue refuses what requests a resource that no queue has.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import cast

from msgspec import to_builtins

from policies.gpus.cards import vendor_domain
from policies.gpus.classes import GPUClass, GPUClasses
from policies.placement.given_tolerations import TolerationOptions, given_tolerations
from policies.pods.pod import Container, Pod, PodSpec, Resources
from policies.policy import BUILT_IN_POLICY
from policies.quota.amounts import CLASSES, GPUS, Amounts
from policies.rules import gpu_class, gpu_toleration
from webhook.cluster.kueue import GROUP, VERSIONS
from webhook.configuration.loader import Configuration
from webhook.tools.export.admission_policies import Object

HEADER = """\
# Flavors and queues of Kueue from GPUClasses and GPUQuotas, by `gpu-admission export --kueue`: a proposal to edit.
# Each flavor grants what the GPUQuota grants of its class, of its family, or in total. Together they may grant more than
# the GPUQuota: Kueue then shows workloads as admitted whose pods are denied. Lower nominalQuota, or set waitForPodsReady
# in Kueue's configuration.
"""
OTHER_RESOURCES = ("cpu", "memory")
UNLIMITED = "1P"
"""More cpu and memory than a cluster has."""
LOCAL_QUEUE = "default"
"""The LocalQueue of Jobs without the label, with Kueue's LocalQueueDefaulting."""


def kueue_objects(
    configuration: Configuration, quotas: Mapping[str, Amounts], classes_with_nodes: Collection[str]
) -> list[Object]:
    """Return ResourceFlavors, then the ClusterQueue and the LocalQueue of each namespace.

    quotas: `hard` by namespace. classes_with_nodes: names of the classes that nodes have. Others are there if a quota names them.
    """
    granted = {
        namespace: _granted_classes(hard, configuration.classes, classes_with_nodes)
        for namespace, hard in quotas.items()
    }
    used = {each.name: each for of_namespace in granted.values() for each, _ in of_namespace}
    flavors = [_flavor(each, configuration) for _, each in sorted(used.items())]
    queues = (
        queue
        for namespace, of in sorted(granted.items())
        if of
        for queue in _queues_of_namespace(namespace, of)
    )
    return [*flavors, *queues]


def _granted_classes(
    hard: Amounts, classes: GPUClasses, classes_with_nodes: Collection[str]
) -> list[tuple[GPUClass, int]]:
    """Return the classes of a quota with the whole GPUs that it grants of each: by class, by family, or in total."""
    found = []
    for each in classes:
        limits = [hard[key] for key in (CLASSES + each.name, CLASSES + each.family, GPUS) if key in hard]
        is_named = CLASSES + each.name in hard or CLASSES + each.family in hard
        if limits and (is_named or each.name in classes_with_nodes):
            found.append((each, int(min(limits))))
    return found


def _flavor(of_class: GPUClass, configuration: Configuration) -> Object:
    """Return the flavor of a class, with what the default policy gives its pods."""
    bound = partial(configuration.policies.bound, policy=BUILT_IN_POLICY)
    lists = cast(TolerationOptions, bound(gpu_toleration.RULE).options)
    label_key = cast(gpu_class.GPUClassOptions, bound(gpu_class.RULE).options).label_key
    one = Container(name="main", resources=Resources(limits={of_class.resource: "1"}))
    pod = Pod(given_spec=PodSpec(containers=(one,)))
    tolerations = given_tolerations(pod, lists, [of_class], configuration.resource_mapping)
    value = next((label.values[0] for label in of_class.node_labels if label.key == label_key), of_class.name)
    spec = {"nodeLabels": {label_key: value}, "tolerations": to_builtins(tolerations)}
    return _object("ResourceFlavor", {"name": of_class.name}, spec)


def _queues_of_namespace(namespace: str, granted: list[tuple[GPUClass, int]]) -> Iterator[Object]:
    """Yield a ClusterQueue and a LocalQueue for each resource: labels of flavors of two resources would contradict each other."""
    resources = list(dict.fromkeys(each.resource for each, _ in granted))
    for resource in resources:
        vendor = vendor_domain(resource).partition(".")[0]
        name, local = (namespace, LOCAL_QUEUE) if len(resources) == 1 else (f"{namespace}-{vendor}", vendor)
        flavors = [
            {
                "name": each.name,
                "resources": [
                    *({"name": other, "nominalQuota": UNLIMITED} for other in OTHER_RESOURCES),
                    {"name": resource, "nominalQuota": number},
                ],
            }
            for each, number in granted
            if each.resource == resource
        ]
        spec = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceGroups": [{"coveredResources": [*OTHER_RESOURCES, resource], "flavors": flavors}],
        }
        yield _object("ClusterQueue", {"name": name}, spec)
        yield _object("LocalQueue", {"name": local, "namespace": namespace}, {"clusterQueue": name})


def _object(kind: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": f"{GROUP}/{VERSIONS[0]}", "kind": kind, "metadata": metadata, "spec": spec}
