"""ClusterGPUQuota objects: the spec, and the status that the controller writes for people.

No decision reads the status. Decisions read the ledgers of the team.
"""

from contextlib import suppress

import msgspec

from policies.quota.amounts import Amounts
from policies.quota.ledger.team import Team
from policies.quota.team_spec import TeamMatch, TeamNamespaces, TeamSpec
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.collection import CLUSTER
from webhook.cluster.events import Regarding
from webhook.cluster.objects import fields_of
from webhook.configuration.documents import API_VERSION, CLUSTER_QUOTA
from webhook.quota.documents import STORED_OBJECT, LimitsRecord, LimitsStatus, status_decoder

TEAM_PLURAL = "clustergpuquotas"


def team_path(*rest: str) -> str:
    """Return the API path of all ClusterGPUQuotas, of one, or of its subresource."""
    return api_path(f"/apis/{API_VERSION}", TEAM_PLURAL, *rest)


def team_reference(name: str, uid: str) -> Regarding:
    """Return what an Event on the ClusterGPUQuota is about."""
    return Regarding(API_VERSION, CLUSTER_QUOTA, name, uid)


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A namespace of a team. `used` includes what is reserved; None before the first count."""

    name: str
    used: Amounts | None = None
    guaranteed: Amounts = {}


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The namespaces of a team: how many, and those that use the most. No default is left out: kubectl shows 0."""

    count: int = 0
    largest: tuple[Member, ...] = ()


class TeamStatus(LimitsStatus, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The status of a ClusterGPUQuota.

    granted: sum of `hard` of the GPUQuotas of its namespaces. guaranteed_idle: what is guaranteed and not used, so that it is
    kept free.
    """

    granted: Amounts = msgspec.field(default_factory=dict)
    guaranteed_idle: Amounts = msgspec.field(default_factory=dict)
    namespaces: Members = Members()


class TeamRecord(LimitsRecord, frozen=True, kw_only=True):
    """A decoded ClusterGPUQuota.

    `namespaces` is read even if the rest of the spec is invalid, so that each namespace stays in its team.
    """

    name: str
    namespaces: TeamNamespaces | None = None
    spec: TeamSpec | None = None
    status: TeamStatus = TeamStatus()

    @property
    def match(self) -> TeamMatch | None:
        """Which namespaces it matches. None if `spec.namespaces` is invalid."""
        return TeamMatch(self.name, self.namespaces) if self.namespaces else None

    @property
    def namespace(self) -> str:
        """Where informers keep it: it is cluster-scoped."""
        return CLUSTER

    @property
    def team(self) -> Team | None:
        """The team as its ledgers must have it. None if the spec is invalid."""
        if self.spec is None:
            return None
        return Team(
            name=self.name,
            uid=self.uid,
            generation=self.generation,
            hard=self.spec.amounts,
            guaranteed=self.spec.guarantees,
            unclassified_pods=self.spec.unclassified_pods,
            contact=self.spec.contact,
        )


class _Namespaces(TeamNamespaces, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`spec.namespaces`, without its unknown fields."""


_SPEC = msgspec.json.Decoder(TeamSpec)
_NAMESPACES = msgspec.json.Decoder(_Namespaces)
_STATUS = status_decoder(TeamStatus)


def decode_team(document: bytes | msgspec.Raw) -> TeamRecord:
    """Return the decoded ClusterGPUQuota. Raises msgspec.ValidationError if it is not an object."""
    stored, namespaces = STORED_OBJECT.decode(document), None
    with suppress(msgspec.ValidationError):
        namespaces = _NAMESPACES.decode(fields_of(stored.spec).get("namespaces", b"null"))
    fields = stored.fields(CLUSTER_QUOTA, _SPEC, _STATUS)
    return TeamRecord(name=stored.metadata.name, namespaces=namespaces, **fields)


def read_teams(api: ApiClient) -> tuple[TeamMatch, ...]:
    """Return the ClusterGPUQuotas of the cluster that can be read, none if that fails."""
    try:
        listed = api.list(team_path(), decode_team)
    except (errors.ApiError, msgspec.MsgspecError):
        return ()
    return tuple(team for record in listed.items if (team := record.match) is not None)
