"""A configuration to begin with, which all pods pass. Rules that would deny some of them only warn, with a comment.

It is a directory for `serve --config` or `kubectl apply -f`. Where the cluster has policies, the proposal contains no policy.
A GPUClass for nodes of no known class comes from their labels for product and memory, and from their MIG resources; without a
memory label there is none. For a DeviceClass (DRA) whose selector requires a known product, its name is added to the known class.
"""

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from policies.finding import as_plain_data
from policies.gpus.classes import SEVENTHS
from policies.gpus.device_classes import DeviceClass
from policies.gpus.resource_mapping import ResourceMapping
from policies.gpus.vendors import from_all_vendors
from policies.placement.given_tolerations import toleration_for_resource
from policies.pods.names import is_class_name, is_dns_label
from policies.pods.pod import Toleration
from policies.pods.tolerations import tolerated, toleration_for, toleration_text, toleration_yaml
from policies.policy import BUILT_IN_POLICY, DEFAULT, Labels
from policies.printable import printable
from policies.quota.amounts import GPUS, format_amount
from policies.quota.demand import Catalogue
from policies.quota.spec import NAME
from policies.registry import RULES, RULES_BY_ID
from policies.rule import Mode
from policies.rules import gpu_class, gpu_toleration
from webhook.cluster.capacity import GPUNode
from webhook.cluster.nodes import is_permanent_taint
from webhook.configuration.documents import CLASS, CLUSTER_QUOTA, POLICY, QUOTA, Document
from webhook.configuration.loader import Configuration, load_objects
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.doctor.checks.nodes import names_in_words
from webhook.tools.scan.report import Proposal
from webhook.tools.scan.tally import TalliedNamespace, Tally

POLICIES, CLASSES, QUOTAS = "gpupolicy.yaml", "gpuclasses.yaml", "gpuquotas.yaml"
CLUSTER_QUOTAS = "clustergpuquotas.yaml"

STACK_REASON = "GPU stack: device plugins, exporters and other pods of DaemonSets"
PRODUCT_LABELS = (
    *from_all_vendors(lambda vendor: vendor.product_labels),
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
"""Labels with the product of the card. Their writers also label the memory of the card."""
MEMORY_MIB_LABELS = (
    *from_all_vendors(lambda vendor: vendor.memory_mib_labels),
    "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
)
"""Labels with the memory of one card in MiB (GPU Feature Discovery; Karpenter and EKS Auto Mode)."""
MEMORY_GB_LABELS = from_all_vendors(lambda vendor: vendor.memory_gb_labels)
"""Labels with the memory of one card as `192G`."""
SHARED_SUFFIX = "-SHARED"
"""GPU Feature Discovery appends this to the product under time-slicing and MPS."""
SLICED_SUFFIX = "-MIG-"
"""GPU Feature Discovery appends this and a profile under MIG strategy `single`. Each `nvidia.com/gpu` is a slice then; an
administrator must write such a class, with the share that a slice has of the card."""
_PROFILE = re.compile(
    r"nvidia\.com/mig-(?P<name>(?P<gpu>[1-7])g\.(?P<memory>[1-9][0-9]{0,3})gb)(?P<media>\.me)?"
)
_PRODUCT_NAME = re.compile(r"\.productName\s*==\s*(\"[^\"\\]{1,63}\"|'[^'\\]{1,63}')")
"""A comparison in a selector with an attribute of NVIDIA's DRA driver, such as `NVIDIA A100-SXM4-80GB`."""
_LONGEST_NAME = 63


class Draft:
    """The proposal while it is made: `relax` makes it milder where it would deny pods."""

    def __init__(
        self,
        configuration: Configuration,
        tally: Tally,
        nodes: Sequence[GPUNode],
        quotas: Container[str],
        labels: Mapping[str, Labels] | None = None,
        team_limits: Mapping[str, Fraction] | None = None,
    ) -> None:
        """`quotas` are the namespaces that have a quota. `labels`: of all namespaces; None: propose no team.

        team_limits: the GPUs that a ClusterGPUQuota lets each of its namespaces have.
        """
        self._base = configuration
        named = named_classes(configuration.devices.device_classes, configuration)
        self._classes = (*new_classes(nodes, configuration), *named)
        self._label_key = _label_key(nodes, configuration, self._classes)
        untolerated = _untolerated(nodes, configuration)
        self._tolerated_by_default = [
            taint for taint, names in untolerated.items() if len(names) == len(nodes)
        ]
        """Taints of every GPU node: without a toleration no GPU pod could run."""
        self._untolerated_by_some = {
            taint: names for taint, names in untolerated.items() if len(names) < len(nodes)
        }
        self._relaxed: dict[str, set[str]] = defaultdict(set)
        """By rule, the namespaces where it would deny pods."""
        self._exemptions: dict[str, set[str]] = defaultdict(set)
        held = {use.namespace: tally.namespaces[use.namespace] for use in tally.uses() if use.gpus}
        needed = {
            name: Fraction(ceil(namespace.gpus + namespace.largest))
            for name, namespace in held.items()
            if name not in quotas and name not in configuration.quotas
        }
        team_limits = team_limits or {}
        self._quotas = {name: min(gpus, team_limits.get(name, gpus)) for name, gpus in needed.items()}
        self._limited_by_team = sorted(name for name, gpus in needed.items() if self._quotas[name] < gpus)
        self._teams = tuple(proposed_teams(held, labels or {}))
        self.relax(tally)

    def relax(self, tally: Tally) -> bool:
        """Exempt the GPU stack from rules that deny it; rules that deny other pods only warn. Return whether anything changed."""
        before = copy.deepcopy((self._exemptions, self._relaxed))
        for namespace, rule in tally.stack_denials - tally.other_denials:
            if rule in RULES_BY_ID:
                self._exemptions[namespace].add(rule)
        for namespace, rule in tally.other_denials:
            if rule in RULES_BY_ID and RULES_BY_ID[rule].options().mode is Mode.ENFORCE:
                self._relaxed[rule].add(namespace)
        return before != (self._exemptions, self._relaxed)

    def configuration(self) -> Configuration:
        """Return the configuration of the documents in force and the proposed documents."""
        return load_objects((*self._base.documents, *self._documents()), self._base.devices)

    def proposal(self, denied: int | None) -> Proposal:
        documents = [*self._documents(), *self._teams]
        files = {
            name: self._file_text(kind, [document for document in documents if document.kind == kind])
            for name, kind in (
                (POLICIES, POLICY),
                (CLASSES, CLASS),
                (QUOTAS, QUOTA),
                (CLUSTER_QUOTAS, CLUSTER_QUOTA),
            )
        }
        return Proposal(
            classes=tuple(document.name for document in self._classes),
            quotas=self._quotas,
            teams={team.name: Fraction(team.spec["hard"][GPUS]) for team in self._teams},
            exemptions={name: tuple(sorted(rules)) for name, rules in sorted(self._exemptions.items())},
            relaxed=tuple(sorted(self._relaxed)),
            files={name: text for name, text in files.items() if text},
            denied=denied,
        )

    def _documents(self) -> Iterator[Document]:
        if not self._base.policies.policies:
            yield Document(POLICY, DEFAULT, self._policy())
        yield from self._classes
        for namespace, gpus in sorted(self._quotas.items()):
            yield Document(QUOTA, NAME, {"hard": {GPUS: format_amount(gpus)}}, namespace)

    def _policy(self) -> dict[str, Any]:
        # Every rule has its mode: `kubectl apply` keeps the modes of a stored policy, such as that of the first installation.
        rules: dict[str, dict[str, Any]] = {
            rule.id: {"mode": (Mode.WARN if rule.id in self._relaxed else rule.options().mode).value}
            for rule in RULES
        }
        if self._label_key != gpu_class.GPUClassOptions().label_key:
            rules[gpu_class.RULE.id]["labelKey"] = self._label_key
        if self._tolerated_by_default:
            rules[gpu_toleration.RULE.id]["tolerations"] = [
                as_plain_data(toleration_for(toleration)) for toleration in self._tolerated_by_default
            ]
        built_in = (
            {"namespaces": list(exemption.namespaces), "reason": exemption.reason}
            for exemption in BUILT_IN_POLICY.spec.exemptions
        )
        stack = (
            {"namespaces": [namespace], "rules": sorted(exempted), "reason": STACK_REASON}
            for namespace, exempted in sorted(self._exemptions.items())
        )
        return {"exemptions": [*built_in, *stack], "rules": rules}

    def _file_text(self, kind: str, documents: Sequence[Document]) -> str:
        """Return one file, "" without documents."""
        comments = "".join(f"# {printable(line)}\n" for line in self._comments(kind)) if documents else ""
        return comments + "---\n".join(dump_document(document.data) for document in documents)

    def _comments(self, kind: str) -> Iterator[str]:
        if kind == QUOTA:
            yield "The GPUs that are held now, rounded up, and the largest pod once more, so that an update can begin."
            if self._limited_by_team:
                yield f"Less in {names_in_words(self._limited_by_team)}: no more than their ClusterGPUQuota leaves them."
        elif kind == CLUSTER_QUOTA:
            yield "What the namespaces with this label hold, rounded up, and the largest pod once more. Does it name teams?"
        elif kind == CLASS:
            yield "From labels of nodes, and DeviceClasses. memoryGiB of a new class is as reported: write what the vendor sells."
        else:
            for rule, namespaces in sorted(self._relaxed.items()):
                where = names_in_words(namespaces)
                yield f"{rule} warns: it would deny what runs in {where}. Set mode: enforce once that is corrected."
            for taint, names in self._untolerated_by_some.items():
                where = names_in_words(names)
                yield (
                    f"{where}: no pod gets a toleration of the taint {toleration_text(taint)}. If all GPU pods may run "
                    f"there, add {toleration_yaml(taint)} to gpu-toleration.tolerations."
                )


def write(proposal: Proposal, directory: Path) -> None:
    """Write the files, if there are any, into a directory that is empty or does not exist. Raises OSError."""
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} must be empty: what is in it would be read with the proposal")
    for name, text in proposal.files.items():
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("x", encoding="utf-8") as file:
            file.write(text)


def _untolerated(nodes: Iterable[GPUNode], configuration: Configuration) -> dict[Toleration, list[str]]:
    """Return the taints that neither the rule by itself nor a class of the node tolerates, with the nodes that have them."""
    cards = [toleration_for_resource(card) for card in configuration.resource_mapping.whole_card_resources]
    untolerated: dict[Toleration, list[str]] = {}
    for node in nodes:
        classes = configuration.classes.named(node.classes)
        given = [*cards, *chain.from_iterable(each.tolerations for each in classes)]
        for taint in filter(is_permanent_taint, node.taints):
            if not tolerated(taint, given):
                untolerated.setdefault(taint, []).append(node.name)
    return untolerated


def _label_key(nodes: Iterable[GPUNode], configuration: Configuration, classes: Iterable[Document]) -> str:
    """Return the label by which most GPU nodes can be pinned to a class; the rule's default if no other has more nodes."""
    default = gpu_class.GPUClassOptions().label_key
    proposed = {str(label["key"]) for document in classes for label in document.spec["nodeLabels"]}
    counts = Counter(key for node in nodes for key in node.labels)
    keys = sorted({default, *configuration.classes.label_keys, *proposed})
    return max(keys, key=lambda key: (counts[key], key == default))


def new_classes(nodes: Iterable[GPUNode], known: Catalogue) -> Iterator[Document]:
    products: dict[tuple[str, str], list[GPUNode]] = defaultdict(list)
    for node in nodes:
        key = next((key for key in PRODUCT_LABELS if node.labels.get(key)), None)
        if key is not None and not node.classes and SLICED_SUFFIX not in node.labels[key]:
            products[key, node.labels[key].removesuffix(SHARED_SUFFIX)].append(node)
    for (key, product), members in sorted(products.items()):
        name, memory = _class_name(product), _memory_gib(members)
        resource = _whole_card(members, known.resource_mapping)
        if name is None or known.classes.resolve(name) or memory is None or resource is None:
            continue
        spec: dict[str, Any] = {"memoryGiB": memory, "resource": resource}
        spec["nodeLabels"] = [{"key": key, "values": sorted({node.labels[key] for node in members})}]
        if profiles := _mig_profiles(members, memory):
            spec["migProfiles"] = profiles
        yield Document(CLASS, name, spec)


def named_classes(device_classes: Iterable[DeviceClass], known: Catalogue) -> Iterator[Document]:
    """Yield the known classes that lack a DeviceClass of their product, with the DeviceClass added."""
    names: dict[str, list[str]] = defaultdict(list)
    for device_class in device_classes:
        if known.resource_mapping.device_class_pattern(
            device_class.name
        ) and not known.classes.of_device_class(device_class.name):
            products = {
                product for text in device_class.expressions for product in _PRODUCT_NAME.findall(text)
            }
            # GPU Feature Discovery writes the product name with "-" for spaces.
            values = {product.strip("\"'").replace(" ", "-") for product in products}
            class_names = {
                c.name for value in values for c in known.classes.matching_label(PRODUCT_LABELS[0], value)
            }
            if len(values) == len(class_names) == 1:
                names[class_names.pop()].append(device_class.name)
    for name, devices in sorted(names.items()):
        gpu_class = known.classes.get(name)
        spec = msgspec.json.decode(msgspec.json.encode(gpu_class))
        del spec["name"]
        spec["deviceClasses"] = sorted({*spec.get("deviceClasses", ()), *devices})
        yield Document(CLASS, name, spec)


def _class_name(product: str) -> str | None:
    name = re.sub(r"[^a-z0-9.]+", "-", product.lower())[:_LONGEST_NAME].strip("-.")
    return name if is_class_name(name) else None


def _memory_gib(nodes: Iterable[GPUNode]) -> int | None:
    """Return the smallest memory of the nodes' cards in GiB, rounded because drivers report a little less; None if unknown."""
    sizes = []
    for labels in (node.labels for node in nodes):
        mib = next((labels[key] for key in MEMORY_MIB_LABELS if labels.get(key, "").isdecimal()), None)
        gigabytes = next((labels[key] for key in MEMORY_GB_LABELS if key in labels), "")
        if mib is not None:
            sizes.append(round(Fraction(int(mib), 1024)))
        elif gigabytes.removesuffix("G").isdecimal():
            sizes.append(int(gigabytes.removesuffix("G")))
    return min(sizes, default=0) or None


def _whole_card(nodes: Iterable[GPUNode], mapping: ResourceMapping) -> str | None:
    """Return the resource name of whole cards on the nodes; None unless there is exactly one."""
    names = {
        card for node in nodes for name in node.allocatable if (card := mapping.whole_card_resource(name))
    }
    return names.pop() if len(names) == 1 else None


def _mig_profiles(nodes: Iterable[GPUNode], memory: int) -> dict[str, dict[str, int]]:
    """Return the MIG profiles of the nodes. `perGPU` is how many fit on a card by compute and memory."""
    profiles = {}
    for resource in sorted({name for node in nodes for name in node.allocatable}):
        match = _PROFILE.fullmatch(resource)
        if match is not None and int(match["memory"]) <= memory:
            sevenths, gib = int(match["gpu"]), int(match["memory"])
            # Only one slice of a card has the media engines (+me).
            per_gpu = 1 if match["media"] else min(SEVENTHS // sevenths, memory // gib)
            name = match["name"] + ("+me" if match["media"] else "")
            profiles[name] = {"sevenths": sevenths, "memoryGiB": gib, "perGPU": per_gpu}
    return profiles


TEAM_LABELS = frozenset(
    {
        "business-unit",
        "cost-center",
        "cost-centre",
        "costcenter",
        "department",
        "group",
        "owner",
        "projectid",  # field.cattle.io/projectId of Rancher
        "squad",
        "team",
        "tenant",  # capsule.clastix.io/tenant
    }
)
"""Last parts of keys, in lower case. A label of another name may be anything."""


def proposed_teams(
    holders: Mapping[str, TalliedNamespace], labels: Mapping[str, Labels]
) -> Iterator[Document]:
    """Yield a ClusterGPUQuota for each value of the label that most of the holders share, if two of them have it.

    It grants what they hold, rounded up, and the largest pod once more. A namespace belongs to one team, so one label decides.
    """
    by_label: dict[str, dict[str, list[TalliedNamespace]]] = defaultdict(lambda: defaultdict(list))
    for namespace, holder in holders.items():
        for key, value in labels.get(namespace, ()):
            if key.rpartition("/")[2].lower() in TEAM_LABELS:
                by_label[key][value].append(holder)
    shared = {
        key: {value: members for value, members in values.items() if len(members) > 1 and is_dns_label(value)}
        for key, values in by_label.items()
    }
    key = max(sorted(shared), key=lambda key: sum(map(len, shared[key].values())), default="")
    for value, members in sorted(shared.get(key, {}).items()):
        gpus = ceil(sum(member.gpus for member in members)) + ceil(max(member.largest for member in members))
        spec = {
            "namespaces": {"selector": {"matchLabels": {key: value}}},
            "hard": {GPUS: format_amount(Fraction(gpus))},
        }
        yield Document(CLUSTER_QUOTA, value, spec)
