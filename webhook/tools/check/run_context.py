"""What one run of `check` knows from its other manifests and from a cluster: labels, devices of DRA, LimitRanges, and GPUQuotas.

What the other manifests have requested so far counts as used. Without a cluster nobody knows what runs there. So a pod that does
not fit may still be admitted, and gets a warning.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, cached_property, partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from policies.finding import INVALID_DOCUMENT, Finding, Severity
from policies.gpus.claimed_devices import ClaimName, DeviceClassNames, claim_record
from policies.gpus.device_classes import DeviceClass, decode_device_class
from policies.gpus.refused_limit_ranges import refused_amounts
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.named_nodes import NodeIndex
from policies.placement.nodes import NodeFacts
from policies.pods.field_paths import path_parts, value_at
from policies.pods.label_selector import LabelSelector
from policies.pods.limit_ranges import LimitRange, NamespaceLimits, decode_limit_range, namespace_limits
from policies.policy import Labels
from policies.quota.amounts import Vector, positive_difference, total
from policies.quota.fit import TemplateDemand, able_to_start, starting
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.team import team_title
from policies.quota.quota_request import QuotaRequest, ReservationOutcome, decide_by_own_catalogue
from policies.quota.spec import INEFFECTIVE_QUOTA, LimitsSpec, QuotaSpec
from policies.quota.team_spec import TeamMatch, limits_warnings
from policies.registry import QUOTA_RULE
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.disruption_budgets import read_budgets
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.cluster.objects import decode_config_map
from webhook.configuration.cluster_source import read_schemas
from webhook.configuration.documents import (
    CONFIGURATION,
    GROUP,
    QUOTA,
    RESOURCE_MAPPING,
    TEAM,
    DocumentLocation,
    DocumentSet,
    LocatedProblem,
    read_document,
)
from webhook.configuration.dynamic_resources import CLAIM_PLURALS, DRA_GROUP, read_claims, served_resource
from webhook.configuration.loader import Configuration
from webhook.configuration.references import quota_problems
from webhook.configuration.schema_paths import CUSTOM_RESOURCE, Schemas, kind_problems, schemas_of
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.evaluation.kinds import DISRUPTION_BUDGET, LIMIT_RANGE
from webhook.tools.check.manifests import Manifest, whole_definition
from webhook.tools.check.placeholders import is_placeholder
from webhook.tools.check.run_teams import RunTeam, run_teams
from webhook.tools.status.permitted import Permitted
from webhook.tools.status.quotas import limits_state, quota_ledger_from_status
from webhook.tools.status.teams import read_teams
from webhook.tools.why.discovery import ServedKinds

NAME_LABEL = "kubernetes.io/metadata.name"
"""The API server gives it to every namespace."""

DEVICE_CLASS = (DRA_GROUP, "DeviceClass")

T = TypeVar("T")


def manifest_context(
    manifests: Sequence[Manifest],
) -> tuple[dict[str, Labels], dict[ClaimName, DeviceClassNames | None]]:
    """Return the labels of namespaces, and the DeviceClasses of claims and their templates; what cannot be read is left out."""
    labels = {each.name: _labels(each) for each in manifests if each.group_kind == ("", "Namespace")}
    claims = {
        ClaimName(kind, claim.namespace, claim.name): record.device_classes
        for kind in CLAIM_PLURALS
        for claim, record in _decoded(manifests, (DRA_GROUP, kind), partial(claim_record, kind))
    }
    return labels, claims


def _decoded(
    manifests: Iterable[Manifest], kind: tuple[str, str], decode: Callable[[bytes], T]
) -> Iterator[tuple[Manifest, T]]:
    """Yield the objects of a kind (API group, kind) that can be read."""
    for manifest in manifests:
        if manifest.group_kind == kind:
            with suppress(msgspec.ValidationError):
                yield manifest, decode(msgspec.json.encode(manifest.data))


def budgets_of(
    manifests: Iterable[Manifest], cluster: "CheckedCluster | None"
) -> Callable[[str], tuple[LabelSelector, ...] | None]:
    """Return a function: of a namespace, the selectors of its PodDisruptionBudgets, of the manifests, and of the cluster."""
    written: dict[str, list[LabelSelector]] = {}
    for manifest in manifests:
        if manifest.group_kind == DISRUPTION_BUDGET:
            with suppress(msgspec.ValidationError):
                selector = msgspec.convert(value_at(manifest.data, ("spec", "selector")), LabelSelector)
                written.setdefault(manifest.namespace, []).append(selector)

    def budgets(namespace: str) -> tuple[LabelSelector, ...] | None:
        stored = cluster.budgets(namespace) if cluster else ()
        return None if stored is None else (*written.get(namespace, ()), *stored)

    return budgets


def config_maps(manifests: Iterable[Manifest]) -> Callable[[str], dict[str, dict[str, str]]]:
    """Return a function: of a namespace, the data of the ConfigMaps among the manifests, by name, if without placeholders."""
    known: dict[str, dict[str, dict[str, str]]] = {}
    for manifest, config_map in _decoded(manifests, ("", "ConfigMap"), decode_config_map):
        data = config_map.data or {}
        if not any(map(is_placeholder, data.values())):
            known.setdefault(manifest.namespace, {})[manifest.name] = data
    return lambda namespace: known.get(namespace, {})


def applied_labels(stored: Labels, written: Labels) -> Labels:
    """Return the labels of a namespace once the manifests are applied."""
    return tuple(sorted({**dict(stored), **dict(written)}.items()))


def default_labels(namespace: str) -> Labels:
    """Return the labels of a namespace that neither manifests nor a cluster describe."""
    return ((NAME_LABEL, namespace),)


def device_classes(manifests: Iterable[Manifest]) -> tuple[DeviceClass, ...]:
    """Return the DeviceClasses among the manifests: the configuration needs them to know which devices are GPUs."""
    return tuple(read for _, read in _decoded(manifests, DEVICE_CLASS, decode_device_class))


def limits_in(
    manifests: Iterable[Manifest], mapping: ResourceMapping, cluster: "CheckedCluster | None"
) -> Callable[[str], NamespaceLimits | None]:
    """Return a function: of a namespace, what LimitRanges of manifests and cluster say of it; None where they may not be read."""
    written: dict[str, list[LimitRange]] = {}
    for manifest, limit_range in _decoded(manifests, LIMIT_RANGE, decode_limit_range):
        if not any(refused_amounts(limit_range, mapping)):
            written.setdefault(manifest.namespace, []).append(limit_range)

    @cache
    def limits_of(namespace: str) -> NamespaceLimits | None:
        stored = cluster.limit_ranges(namespace) if cluster else ()
        if stored is None:
            return None
        both = (*stored, *written.get(namespace, ()))
        return namespace_limits({each.name: each for each in both}.values())

    return limits_of


def _labels(manifest: Manifest) -> Labels:
    labels = (manifest.data.get("metadata") or {}).get("labels")
    written = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    return tuple(sorted({**written, NAME_LABEL: manifest.name}.items()))


Key = tuple[str, str, str]
"""API group, kind and name: of two documents of one object the later one holds."""


class RunQuota(msgspec.Struct, frozen=True):
    """A `NamespaceQuota` for the object `key`: what the other objects request counts as used.

    `stored.used` is what the cluster holds already, None if unknown.
    """

    namespace: str
    stored: QuotaLedger
    configuration: Configuration
    requested: dict[Key, Vector]
    team: RunTeam | None = None
    key: Key = ("", "", "")
    has_controller: bool = True

    def reserve(self, quota_request: QuotaRequest) -> ReservationOutcome:
        """Decide as serve does; what is allowed counts from now on."""
        ledger = self.ledger()
        outcome = decide_by_own_catalogue(
            ledger,
            quota_request,
            self.configuration,
            waiting=ledger.waiting,
            is_served=self.has_controller,
        )
        if outcome.request and outcome.verdict and outcome.verdict.allowed:
            self.count(outcome.request.demand)
        return outcome

    def growth(self, requested: Sequence[TemplateDemand], held: Vector) -> Vector:
        """Return what the pods of a workload will hold beyond what it `held` already; what does not fit holds nothing."""
        ledger = self.ledger()
        left = ledger.using(positive_difference(ledger.held, held)).left
        return positive_difference(starting(able_to_start(requested, ledger.maximum_hard), left), held)

    def ledger(self) -> QuotaLedger:
        by_others = (demand for other, demand in self.requested.items() if other != self.key)
        stored, team_state = self.stored, self.stored.team_state
        if self.team is not None and team_state is not None:
            stored = replace(stored, team_state=self.team.team_state(self.namespace, team_state))
        return stored.using(total((stored.used or {}, *by_others)))

    def count(self, demand: Vector) -> None:
        self.requested[self.key] = demand
        if self.team is not None:
            self.team.count(self.namespace, total(self.requested.values()))


def is_quota(manifest: Manifest) -> bool:
    return manifest.group_kind in {(GROUP, QUOTA), (GROUP, TEAM)}


def run_quotas(
    manifests: Sequence[Manifest],
    configuration: Configuration,
    cluster: "CheckedCluster | None",
    labels_of: Callable[[str], Labels],
) -> Callable[[str], RunQuota | None]:
    """Return a function: of a namespace, its quota, of the manifests, else of the cluster, else of the configuration.

    A document that is not valid grants nothing; `quota_findings` says so.
    """
    documents = map(_read, filter(is_quota, manifests))
    read = [document for document in documents if not document.problems]
    written = never_counted(reduce(operator.or_, (each.quotas for each in read), {}))
    written_teams = {name: spec for each in read for name, spec in each.teams.items()}
    configured = never_counted(configuration.quotas)
    stored = cluster.teams if cluster else tuple
    team_of = run_teams(stored, written_teams, labels_of)
    is_alone = len({manifest.namespace for manifest in manifests}) == 1

    @cache
    def quota_of(namespace: str) -> RunQuota | None:
        in_force = cluster.quota(namespace) if cluster else None
        ledger = written.get(namespace) or in_force or configured.get(namespace)
        if ledger and in_force:
            ledger = replace(
                ledger, used=in_force.used, waiting=in_force.waiting, team_state=in_force.team_state
            )
        # The status of a GPUQuota says all about a team that the objects of one namespace need.
        is_said = ledger is not None and (is_alone or ledger.team_state is None) and not written_teams
        team = None if is_said else team_of(namespace)
        if team is not None:
            if ledger is None and cluster and team.record.status.used is None:
                cluster.note_uncounted(namespace, team.record.name)
            ledger = team.ledger(namespace, ledger)
        if ledger is None:
            return None
        is_led = cluster is None or cluster.has_controller
        return RunQuota(namespace, ledger, configuration, {}, team, has_controller=is_led)

    return quota_of


def never_counted(specs: Mapping[str, QuotaSpec]) -> dict[str, QuotaLedger]:
    """Return the ledgers of GPUQuotas by namespace. Their use is unknown."""
    return {name: spec.ledger() for name, spec in specs.items()}


def teams_in(manifests: Iterable[Manifest]) -> tuple[TeamMatch, ...]:
    """Return the valid ClusterGPUQuotas of the manifests."""
    read = (_read(manifest) for manifest in manifests if manifest.group_kind == (GROUP, TEAM))
    return tuple(
        TeamMatch(name, spec.namespaces)
        for each in read
        if not each.problems
        for name, spec in each.teams.items()
    )


def quota_findings(
    manifest: Manifest, configuration: Configuration, teams: Iterable[TeamMatch], kinds: Collection[str]
) -> Iterator[Finding]:
    """Yield what the webhook would say of a GPUQuota or ClusterGPUQuota: a denial for each problem, else its warnings.

    A problem is only a warning where a placeholder stands for the value, and where a document of the run may define the name.
    teams: the ClusterGPUQuotas of the run. kinds: of its documents.
    """
    read = _read(manifest)
    specs: list[LimitsSpec] = [*read.quotas.values(), *read.teams.values()]
    checked = (quota_problems(spec, configuration.classes, configuration.resource_mapping) for spec in specs)
    problems = [(problem.path, problem.message, "") for problem in read.problems]
    problems += [(each.path, each.message, kind) for each, kind in chain.from_iterable(checked)]
    warning = partial(Finding, rule=QUOTA_RULE.id, reason=INEFFECTIVE_QUOTA, severity=Severity.WARNING)
    denial = partial(Finding, rule=CONFIGURATION, reason=INVALID_DOCUMENT)
    for path, message, kind in problems:
        parts = path_parts(path)
        is_known_later = kind in kinds or any(map(is_placeholder, (value_at(manifest.data, parts), *parts)))
        yield (warning if is_known_later else denial)(path=path, message=message)
    for spec in () if problems else specs:
        for path, message in limits_warnings(manifest.name, spec, teams):
            yield warning(path=f"spec.{path}", message=message)


def wrong_paths(
    manifests: Sequence[Manifest], configuration: Configuration, cluster: "CheckedCluster | None"
) -> Iterator[LocatedProblem]:
    """Yield the paths that no CustomResourceDefinition has: of the manifests, or if they have none of the kind, of the cluster.

    Checked are the workload kinds of the configuration, and those of GPUResourceMappings among the manifests.
    """
    crds = (manifest for manifest in manifests if (manifest.api_version, manifest.kind) == CUSTOM_RESOURCE)
    definitions = {manifest.name: manifest for manifest in crds}

    def schemas(row: WorkloadKind) -> Schemas:
        if definition := definitions.get(row.definition):
            return schemas_of(whole_definition(definition))
        return cluster.schemas([row]) if cluster else {}

    def problems(kinds: Sequence[WorkloadKind]) -> Iterator[tuple[str, str]]:
        return kind_problems(kinds, dict(chain.from_iterable(schemas(row).items() for row in kinds)))

    for name, kinds in configuration.own_workload_kinds.items():
        for path, message in problems(kinds):
            yield LocatedProblem(configuration.places[RESOURCE_MAPPING, name], 0, "", path, message)
    for manifest in manifests:
        if manifest.group_kind == (GROUP, RESOURCE_MAPPING):
            for path, message in problems(_read(manifest).workload_kinds.get(manifest.name, ())):
                line, column = manifest.position_of(path_parts(path))
                yield LocatedProblem(manifest.file, line, "", path, message, column)


def _read(manifest: Manifest) -> DocumentSet:
    documents = DocumentSet()
    metadata = {"name": manifest.name}
    if manifest.kind == QUOTA:
        metadata["namespace"] = manifest.namespace
    document = {key: manifest.data.get(key) for key in ("apiVersion", "kind", "spec")}
    read_document(DocumentLocation(manifest.file, {**document, "metadata": metadata}), documents)
    return documents


class CheckedCluster:
    """The facts by which the webhook of a cluster would evaluate manifests. What the caller may not read is not known.

    The use of a quota comes from its status, since tenants read no ledger. Each fact is read when an object first needs it.
    Raises `errors.ApiError` for everything but a lack of rights.
    """

    def __init__(self, api: ApiClient, config: Path | None) -> None:
        """`config`: documents in place of the cluster's."""
        self._api, self._config = api, config
        self._reader = Permitted(api)
        self._notes: list[str] = []
        self.limit_ranges = self._reader.limit_ranges
        self.schemas = partial(read_schemas, api)
        self.unread_documents: Sequence[str] = ()
        """The missing rights, once the configuration was read."""
        self.configuration = cache(self._configuration)
        self.labels_of = cache(self._labels_of)
        self.quota = cache(self._quota)
        self.teams = cache(lambda: read_teams(self._reader) or ())
        self.note_uncounted = cache(self._note_uncounted)
        self.budgets = cache(self._budgets)
        self.stored = cache(self._stored)
        self._claims = cache(self._read_claims)

    @property
    def missing_rights(self) -> Sequence[str]:
        return self._reader.omitted

    def notes(self) -> Iterator[str]:
        """Yield sentences about what the results lack, for other reasons than missing rights."""
        if not self._reader.is_installed:
            yield "gpu-admission is not installed in this cluster: evaluated by the built-in defaults"
        if self._reader.nodes_from:
            yield self._reader.nodes_from
        yield from self._notes

    def _configuration(self, *, device_classes: tuple[DeviceClass, ...] = ()) -> Configuration:
        """Return the documents in force, with DeviceClasses that the manifests add. Raises ConfigurationError."""
        before = len(self._reader.omitted)
        configuration = self._reader.configuration(self._config, device_classes)
        self.unread_documents = self._reader.omitted[before:]
        return configuration

    @cached_property
    def nodes(self) -> tuple[NodeFacts | None, NodeIndex]:
        return self._reader.nodes(self.configuration(), datetime.now(UTC))

    def _labels_of(self, namespace: str) -> Labels:
        """Return the labels of a namespace, none if it does not exist yet. Raises NamespaceUnknown without the right."""
        try:
            labels = self._reader.namespace_labels(namespace)
        except errors.NotFound:
            note = f"namespace {namespace} does not exist yet: its labels are those of the manifests"
            self._notes.append(note)
            return ()
        if labels is None:
            why = f"depends on its labels: you may not get namespaces/{namespace}"
            raise NamespaceUnknown(f"the policy of namespace {namespace} {why}")
        return labels

    def claim(self, name: ClaimName) -> DeviceClassNames | None:
        return self._claims(name.namespace).get(name)

    def _read_claims(self, namespace: str) -> dict[ClaimName, DeviceClassNames | None]:
        resource = served_resource(self._api, "deviceclasses")
        if resource is not None:
            read = partial(self._api.list, resource.path(), decode_device_class)
            self._reader.attempt(f"list deviceclasses.{DRA_GROUP}", read)
        return read_claims(self._api, namespace, self._reader.omitted)

    def _quota(self, namespace: str) -> QuotaLedger | None:
        """Return what the GPUQuota grants, and what its status says is held."""
        record = self._reader.quota(namespace)
        ledger = quota_ledger_from_status(record, datetime.now(UTC)) if record else None
        if record is None or ledger is None:
            return None
        if limits_state(record)[0].denies:
            note = f"GPU pods of namespace {namespace} are denied until its GPUQuota is counted"
            self._notes.append(f"{note}: gpu-admission quota -n {namespace} says why it is not")
        return ledger

    @cached_property
    def has_controller(self) -> bool:
        # Only with a cluster: they load what checks certificates.
        from webhook.tools.doctor.cluster import Names  # noqa: PLC0415
        from webhook.tools.status.freshness import figures_until  # noqa: PLC0415

        # Few tenants may read the Lease, and the notes are about what is not evaluated.
        return figures_until(Permitted(self._api), Names(), datetime.now(UTC)) is None

    def _note_uncounted(self, namespace: str, team: str) -> None:
        note = f"GPU pods of namespace {namespace} are denied until {team_title(team)} is counted"
        self._notes.append(f"{note}: kubectl get cgpuq {team} says whether it is")

    def _budgets(self, namespace: str) -> tuple[LabelSelector, ...] | None:
        right = f"list poddisruptionbudgets.policy -n {namespace}"
        return self._reader.attempt(right, partial(read_budgets, self._api, namespace))

    @cached_property
    def _kinds(self) -> ServedKinds:
        return ServedKinds(self._api)

    def _stored(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object as the cluster has it; None where there is none, or it may not be read."""
        served = self._kinds.of_reference(f"{group}/v1" if group else "v1", kind)
        if served is None or not name:
            return None
        right = f"get {f'{served.plural}.{group}'.rstrip('.')} -n {namespace}"
        stored = self._reader.get(right, served.resource.path(namespace, name))
        return None if stored is None else msgspec.json.decode(stored, type=dict[str, Any])
