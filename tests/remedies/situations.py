"""Random situations: a world of nodes and LimitRanges, a policy, a quota, and an object that somebody applies."""

from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache

import jsonpatch
import msgspec
from msgspec.structs import replace

from policies.placement.nodes import NO_NODES, NodeGroup, NodeIndex, node_facts
from policies.pods.limit_ranges import decode_limit_range, namespace_limits
from policies.pods.pod import Toleration
from policies.quota.amounts import CLASSES, GPUS
from policies.quota.budget import GPU_HOUR, Budget, Period, Spending
from policies.quota.catalogue import CatalogueVersion, catalogue_digest
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder, QuotaLedger, Revisions
from policies.quota.ledger.team import Team, TeamState
from tests.builders import quota_ledger
from tests.oracle import JSON, Answer, World, oracle
from tests.oracle.worlds import (
    GPU,
    NAMESPACE,
    PASSING,
    PRODUCT,
    Draw,
    draw_limit_range,
    draw_nodes,
    draw_pod,
)
from tests.remedies.workloads import KINDS, draw_workload, pod_of
from webhook.cluster.nodes import OPEN_LABELS, state_reader
from webhook.configuration.documents import Document
from webhook.configuration.loader import Configuration, keys_to_know, load_objects
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Evaluator
from webhook.evaluation.facts import Facts
from webhook.quota.enforcer import ReadOnlyQuota
from webhook.tools.stored_objects import Evaluation, evaluate

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLASS = "gpu-admission.dev/gpu-class"
OWNER = "Job/train"
H100, ANY_POOL, TAINTED_POOL = (
    NodeGroup({"accelerator": frozenset({"nvidia-h100-80gb"})}, OPEN_LABELS, "h100"),
    NodeGroup({}, OPEN_LABELS, "any"),
    NodeGroup(
        {"accelerator": frozenset({"nvidia-l4"})},
        OPEN_LABELS,
        "l4",
        startup_taints=(Toleration(key="example.com/starting", effect="NoSchedule"),),
        taints=(Toleration(key="dedicated", value="research", effect="NoSchedule"),),
    ),
)
NAMED = (
    "nvidia-l4",
    "nvidia-a100",
    "nvidia-a100-80gb",
    "nvidia-a10O",
    "nvidia-h100-80gb",
    "nvidia-t4",
    "gpu",
    "amd-mi300x",
)
NOTES: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    (CLASS, 0.3, NAMED),
    ("gpu-admission.dev/gpu-clas", 0.03, NAMED),
    ("gpu-admission.dev/model-params", 0.12, ("7b", "70b", "400b", "seven")),
    ("gpu-admission.dev/max-runtime", 0.08, ("2h", "100h", "long")),
    ("gpu-admission.dev/spot", 0.03, ("true", "maybe")),
    ("gpu-admission.dev/model-load-seconds", 0.05, ("90", "soon")),
    ("gpu-admission.dev/cuda", 0.04, ("12.4", "new")),
    ("gpu-fraction", 0.04, ("0.5", "0.001", "2")),
)
SPOT = {
    "mode": "enforce",
    "nodeSelector": {"pool": "spot"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
}
OPTIONS: tuple[tuple[str, str, float, JSON], ...] = (
    ("gpu-class", "disallowed classes", 0.25, {"allowed": ["nvidia-l4", "nvidia-t4"]}),
    ("gpu-class", "one allowed family", 0.1, {"allowed": ["nvidia-a100"]}),
    ("gpu-class", "a default class", 0.15, {"default": "nvidia-l4"}),
    ("gpu-class", "an autoscaled class", 0.12, {"autoscaledClasses": ["nvidia-h100*"]}),
    ("gpu-requests", "at most 2 per container", 0.12, {"maxPerContainer": 2}),
    ("gpu-requests", "at most 4 per pod", 0.12, {"maxPerPod": 4}),
    ("gpu-requests", "limits are completed", 0.1, {"completeLimits": True}),
    ("gpu-requests", "known profiles only", 0.1, {"knownProfilesOnly": True}),
    ("gpu-isolation", "isolation", 0.3, {"mode": "enforce"}),
    ("max-runtime", "a longest runtime", 0.2, {"mode": "enforce", "max": "8h"}),
    ("host-resources", "shares of hosts", 0.15, {"mode": "enforce"}),
    ("spot", "a spot pool", 0.12, SPOT),
    ("shared-memory", "shared memory", 0.1, {"mode": "enforce"}),
    ("gpu-class", "products as labels", 0.08, {"labelKey": PRODUCT}),
    ("gpu-class", "classes only warn", 0.06, {"mode": "warn"}),
    ("gpu-requests", "requests only warn", 0.06, {"mode": "warn"}),
    ("gpu-requests", "four to a node", 0.06, {"gpusPerNode": 4}),
    ("gpu-toleration", "own tolerations", 0.1, {"tolerations": [{"key": "dedicated", "value": "research"}]}),
)
ALONE = (
    ("disallowed classes", "one allowed family"),
    ("full by oneself", "full by others", "partly used"),
    ("a gate", "nodeName"),
    ("a pod of a controller", "another owner"),
    ("a pod of a controller", *KINDS),
)
"""Features of which a situation has one."""
SHARES = {
    "memoryGiB": 24,
    "nodeLabels": [
        {"key": "accelerator", "values": ["nvidia-l4"]},
        {"key": "nvidia.com/gpu.product", "values": ["NVIDIA-L4"]},
    ],
    "gpusPerNode": 8,
    "perGPU": {"cpu": 4, "memory": "30Gi"},
}


@cache
def _configuration(documents: bytes) -> Configuration:
    rules, classes = msgspec.json.decode(documents)
    own = [Document("GPUClass", name, spec) for name, spec in classes.items()]
    return load_objects([Document("GPUPolicy", "cluster-default", {"rules": rules}), *own])


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A GPUQuota: what it grants, what pods of the same controller and of others hold of it, how many pods wait."""

    hard: Mapping[str, Fraction]
    own: Fraction = Fraction(0)
    others: Fraction = Fraction(0)
    waiting: int = 0
    counts_as: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY
    spent: float = 0.0
    """Part of its budget; 0 without a budget."""
    team: Fraction | None = None
    """What the team grants; None without a team."""
    of_team: Fraction = Fraction(0)
    """What other namespaces of the team hold."""

    def ledger(self, configuration: Configuration) -> QuotaLedger:
        held = self.own + self.others
        holders = [Holder(OWNER, str(self.own))] if self.own else []
        holders += [Holder("Job/other", str(self.others))] if self.others else []
        end = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)
        budget = Budget(Period.MONTH, {GPUS: 100 * GPU_HOUR}, 0.8) if self.spent else None
        spending = (
            Spending(
                start=0,
                end=end,
                until=int(NOW.timestamp() * 1000),
                spent={GPUS: int(100 * GPU_HOUR * self.spent)},
            )
            if budget
            else None
        )
        state = None
        if self.team is not None:
            team = Team(name="team-x", uid="t", generation=1, hard={GPUS: self.team}, contact="#leads")
            by_others = {GPUS: self.of_team}
            taken = {NAMESPACE: {GPUS: held}, "elsewhere": by_others}
            state = TeamState(
                team=team, taken_by_others=by_others, guaranteed_to_others={GPUS: Fraction(0)}, taken=taken
            )
        return quota_ledger(
            hard=dict(self.hard),
            unclassified_pods=self.counts_as,
            used={key: held if key == GPUS else Fraction(0) for key in {GPUS, *self.hard}},
            holders={GPUS: tuple(holders)},
            waiting=self.waiting,
            scarce={GPUS: False} if self.waiting else {},
            budget=budget,
            spending=spending,
            team_state=state,
            revisions=Revisions(pods=1),
            class_catalogue=str(CatalogueVersion(catalogue_digest(configuration), self.counts_as)),
        )


class Situation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What decides about an object besides the object."""

    rules: JSON
    classes: Mapping[str, JSON]
    """The GPUClass documents, by name."""
    nodes: tuple[JSON, ...] | None
    """None: serve does not know them."""
    pools: tuple[NodeGroup, ...]
    limit_ranges: tuple[JSON, ...]
    quota: Quota | None
    is_unused: bool = False
    features: frozenset[str] = frozenset()

    @property
    def configuration(self) -> Configuration:
        return _configuration(msgspec.json.encode((self.rules, self.classes)))

    def evaluator(self) -> Evaluator:
        if "_made" not in self.__dict__:
            self.__dict__["_made"] = self._evaluator()
        made: Evaluator = self.__dict__["_made"]
        return made

    def _evaluator(self) -> Evaluator:
        in_force = self.configuration
        facts, index = None, NO_NODES
        if self.nodes is not None:
            keys = keys_to_know(in_force)
            read = state_reader(keys)
            named = [read(msgspec.Raw(msgspec.json.encode(node))) for node in self.nodes]
            facts = node_facts(keys, ((each.labels, each.state) for each in named), self.pools)
            index = NodeIndex(in_force.classes.label_keys, named)
        ledger = self.quota.ledger(in_force) if self.quota else None
        if ledger and self.is_unused:
            ledger = replace(
                ledger, used=None, class_catalogue=None, revisions=Revisions()
            )  # a scan counts none
        limits = namespace_limits(decode_limit_range(msgspec.json.encode(each)) for each in self.limit_ranges)
        return Evaluator(
            cache=DecisionCache(in_force),
            now=NOW,
            facts=Facts(nodes=lambda: facts, named_nodes=lambda: index, limits_of=lambda _: limits),
            quota_of=lambda _: ReadOnlyQuota(ledger, in_force, is_unused=self.is_unused),
        )

    def evaluated(self, document: JSON, *, tries_choices: bool = True) -> Evaluation:
        """Return the evaluation of the object as webhooks see it: a pod after LimitRanger, if the API server can decode it."""
        document = self.reviewed(document)
        group = document["apiVersion"].rpartition("/")[0] if "/" in document["apiVersion"] else ""
        return evaluate(
            group,
            document["kind"],
            NAMESPACE,
            msgspec.json.encode(document),
            replace(self.evaluator(), tries_choices=tries_choices),
        )

    def reviewed(self, document: JSON) -> JSON:
        if document["kind"] != "Pod" or not self.limit_ranges:
            return document
        return self.answer(document).reviewed or document

    def answer(self, document: JSON, evaluation: Evaluation | None = None) -> Answer:
        """Return what Kubernetes says of the pod, or of the pods of the object, with what we add; all nodes are empty."""
        pod = pod_of(document) if evaluation is None else admitted(self, document, evaluation)
        nodes = [_settled(node) for node in self.nodes or ()]
        return oracle().ask(World(pod, NAMESPACE, limit_ranges=list(self.limit_ranges), nodes=nodes))


def admitted(situation: Situation, document: JSON, evaluation: Evaluation) -> JSON:
    """Return the pod, or that of the object, with what we add to it."""
    pod = pod_of(document)
    if not evaluation.pods:
        return pod
    pod = situation.reviewed(pod)
    if document["kind"] not in {"Pod", "DaemonSet"}:
        evaluation = situation.evaluated(pod, tries_choices=False)
    encoded = msgspec.json.encode(evaluation.pods[0].decisions[0].operations)
    pod = {**pod, "metadata": {"annotations": {}, **pod["metadata"]}}
    patched: JSON = jsonpatch.apply_patch(pod, msgspec.json.decode(encoded))
    return patched


def _settled(node: JSON) -> JSON:
    """Return the node after the taints that go by themselves have gone."""
    passing = {each["key"] for each in PASSING}
    taints = [each for each in node["spec"].get("taints", ()) if each["key"] not in passing]
    return {**node, "spec": {**node["spec"], "taints": taints}}


def draw_situation(seed: int) -> tuple[Situation, JSON]:
    """Return a situation, and the object that is applied in it."""
    draw = Draw(seed)
    nodes = draw_nodes(draw)
    pools = tuple(
        pool
        for pool, name in (
            (H100, "a pool at zero"),
            (ANY_POOL, "a pool of any node"),
            (TAINTED_POOL, "a pool with taints"),
        )
        if draw.has(name, 0.1)
    )
    limit_ranges: tuple[JSON, ...] = ()
    if draw.has("LimitRange", 0.3):
        limit_ranges = (draw_limit_range(draw, "limits"),)
    if limit_ranges and draw.has("two LimitRanges", 0.2):
        limit_ranges = (*limit_ranges, draw_limit_range(draw, "more-limits"))
    rules: JSON = {}
    for rule, feature, chance, options in OPTIONS:
        if feature == "one allowed family" and "disallowed classes" in draw.features:
            continue
        if draw.has(feature, chance):
            rules[rule] = {**rules.get(rule, {}), **options}
    if "host-resources" in rules:
        rules["gpu-class"] = {"default": "nvidia-l4", **rules.get("gpu-class", {})}
    of_classes = rules.get("gpu-class", {})
    if "default" in of_classes and "nvidia-l4" not in of_classes.get("allowed", ("nvidia-l4",)):
        of_classes["default"] = of_classes["allowed"][0]
    quota = _quota(draw) if draw.has("a GPUQuota", 0.6) else None
    document = _document(draw, nodes)
    knows_nodes = not draw.has("unknown nodes", 0.15)
    situation = Situation(
        rules=rules,
        classes={"nvidia-l4": SHARES} if "host-resources" in rules else {},
        nodes=tuple(nodes) if knows_nodes else None,
        pools=pools if knows_nodes else (),
        limit_ranges=limit_ranges,
        quota=quota,
        features=frozenset(draw.features),
    )
    return situation, document


def _quota(draw: Draw) -> Quota:
    hard = {GPUS: Fraction(draw.choice((1, 2, 4, 8, 8, 16)))}
    for name in ("nvidia-a100", "nvidia-a100-80gb", "nvidia-l4"):
        if draw.has("a quota by class", 0.15):
            hard[CLASSES + name] = Fraction(draw.choice((0, 2, 4)))
    own = others = Fraction(0)
    if draw.has("full by oneself", 0.2):
        own = hard[GPUS]
    elif draw.has("full by others", 0.25):
        others = hard[GPUS] - (1 if hard[GPUS] > 1 and draw.random() < 0.5 else 0)
    elif draw.has("partly used", 0.4):
        others, own = hard[GPUS] / 2, hard[GPUS] / 4
    team, of_team = None, Fraction(0)
    if draw.has("a team", 0.3):
        team = Fraction(draw.choice((4, 8, 32)))
        of_team = max(team - own - others - draw.choice((0, 0, 1, 4)), Fraction(0))
    return Quota(
        hard=hard,
        own=own,
        others=others,
        waiting=draw.choice((1, 5)) if draw.has("a line", 0.15) else 0,
        counts_as=draw.choice(tuple(UnclassifiedPods)),
        spent=draw.choice((0.9, 1.0, 1.0)) if draw.has("a budget", 0.25) else 0.0,
        team=team,
        of_team=of_team,
    )


def _document(draw: Draw, nodes: list[JSON]) -> JSON:
    pod = draw_pod(draw, nodes)
    if draw.has("a plain request", 0.4):
        asked = {GPU: str(draw.choice((1, 1, 2, 4, 4, 8)))}
        pod["spec"] = {"containers": [{"name": "main", "image": "trainer", "resources": {"limits": asked}}]}
    notes = {key: draw.choice(values) for key, chance, values in NOTES if draw.has(key, chance)}
    if notes:
        pod["metadata"]["annotations"] = notes
    _fill(draw, pod["spec"]["containers"][0])
    _place(draw, pod["spec"], nodes)
    if draw.has("runs to completion", 0.3):
        pod["spec"]["restartPolicy"] = "Never"
        if draw.has("a deadline", 0.5):
            pod["spec"]["activeDeadlineSeconds"] = draw.choice((60, 40_000))
    if draw.has("another owner", 0.5):
        return draw_workload(draw, pod)
    if draw.has("a pod of a controller", 0.3):
        kind, name = OWNER.split("/")
        owner = {"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": "u", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
    return pod


def _place(draw: Draw, spec: JSON, nodes: list[JSON]) -> None:
    """Give a pod what decides about its node besides selectors and tolerations."""
    if nodes and draw.has("nodeName", 0.04):
        spec["nodeName"] = draw.choice(nodes)["metadata"]["name"]
    elif draw.has("a gate", 0.04):
        spec["schedulingGates"] = [{"name": "example.com/gate"}]
    if draw.has("another scheduler", 0.04):
        spec["schedulerName"] = "kai-scheduler"
    if draw.has("amounts of the pod", 0.04):
        spec["resources"] = {"limits": {"cpu": "16", "memory": "64Gi"}}


def _fill(draw: Draw, main: JSON) -> None:
    """Give a container what findings are about besides its GPUs."""
    if draw.has("processes", 0.12):
        flag = draw.choice(("--tensor-parallel-size", "--nproc_per_node"))
        main["command"] = ["torchrun", f"{flag}={draw.choice((1, 2, 4, 8))}"]
    if draw.has("variables", 0.1):
        main["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": draw.choice(("all", "0", "void"))}]
    if draw.has("privileged", 0.05):
        main["securityContext"] = {"privileged": True}
    if draw.has("a misspelt resource", 0.05):
        limits = main.setdefault("resources", {}).setdefault("limits", {})
        limits[draw.choice(("nvidia.com/gpus", "nvidia/gpu", "gpu"))] = "1"


def released(situation: Situation, amounts: Mapping[str, Fraction], *, by_own: bool) -> Situation:
    """Return the situation after others have released these amounts of the quota; `by_own`: or pods of the same controller."""
    quota = situation.quota
    if quota is None:
        return situation
    amount, none = amounts.get(GPUS, Fraction(0)), Fraction(0)
    by_others = min(amount, quota.others)
    own = quota.own - min(amount - by_others, quota.own) if by_own else quota.own
    of_team = max(quota.of_team - amount, none)
    return replace(situation, quota=replace(quota, others=quota.others - by_others, own=own, of_team=of_team))
