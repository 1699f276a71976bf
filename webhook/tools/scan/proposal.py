"""A configuration to begin with, which all pods pass. Rules that would refuse some of them only warn, with a comment.

It is a directory for `serve --config` or `kubectl apply -f`. Where the cluster has policies, the proposal contains no policy.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from policies.gpus.device_classes import DeviceClass
from policies.pods.pod import Toleration
from policies.pods.tolerations import describe_toleration, tolerates
from policies.policy import BUILT_IN_POLICY, DEFAULT
from policies.printable import printable
from policies.quota.amounts import GPUS, format_amount
from policies.quota.spec import NAME
from policies.registry import RULES, RULES_BY_ID
from policies.rule import Mode
from policies.rules import gpu_class, gpu_toleration
from webhook.configuration.documents import CLASS, POLICY, QUOTA, Document
from webhook.configuration.loader import Configuration, load_objects
from webhook.configuration.yaml_documents import dump_document
from webhook.tools.doctor.checks.nodes import few, keeping_away, toleration_of, written_toleration
from webhook.tools.scan.new_classes import named_classes, new_classes
from webhook.tools.scan.report import Proposal
from webhook.tools.scan.tally import Tally
from webhook.tools.status.capacity import GPUNode

POLICIES, CLASSES, QUOTAS = "gpupolicy.yaml", "gpuclasses.yaml", "gpuquotas.yaml"

STACK = "GPU stack: device plugins, exporters and other pods of DaemonSets"


class Draft:
    """The proposal while it is made: `relax` makes it milder where it would refuse pods."""

    def __init__(
        self,
        configuration: Configuration,
        tally: Tally,
        nodes: Sequence[GPUNode],
        quotas: Container[str],
        device_classes: Sequence[DeviceClass] = (),
    ) -> None:
        """`quotas` are the namespaces that have a quota."""
        self._base, self._device_classes = configuration, device_classes
        self._classes = (*new_classes(nodes, configuration), *named_classes(device_classes, configuration))
        self._label_key = _label_key(nodes, configuration, self._classes)
        untolerated = _untolerated(nodes, configuration)
        self._tolerated = [taint for taint, names in untolerated.items() if len(names) == len(nodes)]
        """Taints of every GPU node: without a toleration no GPU pod could run."""
        self._others = {taint: names for taint, names in untolerated.items() if len(names) < len(nodes)}
        self._relaxed: dict[str, set[str]] = defaultdict(set)
        """By rule, the namespaces where it would refuse pods."""
        self._exemptions: dict[str, set[str]] = defaultdict(set)
        self._quotas = {
            use.namespace: Fraction(ceil(use.gpus + tally.namespaces[use.namespace].largest))
            for use in tally.uses()
            if use.gpus and use.namespace not in quotas and use.namespace not in configuration.quotas
        }
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

    @property
    def has_policy(self) -> bool:
        return not self._base.policies.policies

    def configuration(self) -> Configuration:
        """Return the configuration of the documents in force and the proposed documents."""
        return load_objects((*self._base.documents, *self._documents()), self._device_classes)

    def proposal(self, refused: int | None) -> Proposal:
        documents = list(self._documents())
        files = {
            name: self._text(kind, [each for each in documents if each.kind == kind])
            for name, kind in ((POLICIES, POLICY), (CLASSES, CLASS), (QUOTAS, QUOTA))
        }
        return Proposal(
            classes=tuple(each.name for each in self._classes),
            quotas=self._quotas,
            exemptions={name: tuple(sorted(rules)) for name, rules in sorted(self._exemptions.items())},
            relaxed=tuple(sorted(self._relaxed)),
            files={name: text for name, text in files.items() if text},
            refused=refused,
        )

    def _documents(self) -> Iterator[Document]:
        if self.has_policy:
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
        if self._tolerated:
            rules[gpu_toleration.RULE.id]["tolerations"] = list(map(toleration_of, self._tolerated))
        built_in = (
            {"namespaces": list(each.namespaces), "reason": each.reason}
            for each in BUILT_IN_POLICY.spec.exemptions
        )
        stack = (
            {"namespaces": [namespace], "rules": sorted(exempted), "reason": STACK}
            for namespace, exempted in sorted(self._exemptions.items())
        )
        return {"exemptions": [*built_in, *stack], "rules": rules}

    def _text(self, kind: str, documents: Sequence[Document]) -> str:
        """Return one file, "" without documents."""
        comments = "".join(f"# {printable(line)}\n" for line in self._comments(kind)) if documents else ""
        return comments + "---\n".join(dump_document(each.data) for each in documents)

    def _comments(self, kind: str) -> Iterator[str]:
        if kind == QUOTA:
            yield "The GPUs that are held now, rounded up, and the largest pod once more, so that an update can begin."
        elif kind == CLASS:
            yield "From labels of nodes, and DeviceClasses. memoryGiB of a new class is as reported: write what the vendor sells."
        else:
            for rule, namespaces in sorted(self._relaxed.items()):
                yield f"{rule} warns: it would refuse what runs in {few(namespaces)}. Set mode: enforce once that is corrected."
            for taint, names in self._others.items():
                yield (
                    f"{few(names)}: no pod gets a toleration of the taint {describe_toleration(taint)}. If all GPU pods may run "
                    f"there, add {written_toleration(taint)} to gpu-toleration.tolerations."
                )


def write(proposal: Proposal, directory: Path) -> None:
    """Write the files, if there are any, into a directory that is empty or does not exist. Raises OSError."""
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} must be empty: what is in it would be read with the proposal")
    for name, text in proposal.files.items():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")


def _untolerated(nodes: Iterable[GPUNode], configuration: Configuration) -> dict[Toleration, list[str]]:
    """Return the taints that neither the rule by itself nor a class of the node tolerates, with the nodes that have them."""
    cards = [gpu_toleration.resource_taint(each) for each in configuration.resource_mapping.whole_cards]
    found: dict[Toleration, list[str]] = {}
    for node in nodes:
        classes = configuration.classes.named(node.classes)
        offered = [*cards, *chain.from_iterable(each.tolerations for each in classes)]
        for taint in keeping_away(node.taints):
            if not any(tolerates(each, taint) for each in offered):
                found.setdefault(taint, []).append(node.name)
    return found


def _label_key(nodes: Iterable[GPUNode], configuration: Configuration, classes: Iterable[Document]) -> str:
    """Return the label by which most GPU nodes can be pinned to a class; the rule's default if no other has more nodes."""
    default = gpu_class.GPUClassOptions().label_key
    proposed = {str(label["key"]) for each in classes for label in each.spec["nodeLabels"]}
    counts = Counter(key for node in nodes for key in node.labels)
    keys = sorted({default, *configuration.classes.label_keys, *proposed})
    return max(keys, key=lambda key: (counts[key], key == default))
