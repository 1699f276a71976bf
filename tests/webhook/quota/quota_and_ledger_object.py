"""A GPUQuota and its ledger on an API server in miniature, and the controllers' code that keeps the one behind the other.

What happens between two calls of a controller is put in before one of them: `before("GET", PLURAL)`.
"""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.team_line import TeamTurn
from webhook.cluster import errors
from webhook.cluster.api import JSON, ApiClient, api_path
from webhook.configuration.documents import GROUP
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.teams import DeletedQuotas
from webhook.quota import documents, ledger_objects
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.store import LedgerConflict, VersionedLedger

NAMESPACE, INSTALLATION = "team", "ours"


class QuotaAndLedger:
    """The two calls on each that the protocol needs, with the API server's checks of versions. `broken` is for histories.

    `calls` are all so far, but for those of the namespace, which is there: `GET gpuquotas`.
    """

    def __init__(self, gpus: int | None = None) -> None:
        self.quota: dict[str, Any] | None = None
        self.ledger_object: dict[str, Any] | None = None
        self.broken: list[str] = []
        self.calls: list[str] = []
        self._version = 0
        self._before: deque[tuple[str, str, Callable[[], object]]] = deque()
        if gpus is not None:
            self.grant(gpus)

    # What people do.

    def grant(self, gpus: int) -> None:
        """Create the quota, or change it."""
        if self.quota is None:
            names = {"name": "default", "namespace": NAMESPACE, "resourceVersion": "1"}
            self.quota = {"metadata": {**names, "uid": f"quota-{self._next()}", "generation": 0}}
        self.quota["metadata"]["generation"] += 1
        self.quota["spec"] = {"hard": {"gpus": gpus}}

    def remove(self) -> None:
        self.quota = None

    def write(self, ledger: QuotaLedger) -> None:
        """Write the ledger past every check of versions, as another process."""
        uid = self.ledger_object["metadata"]["uid"] if self.ledger_object else f"ledger-{self._next()}"
        self._store(ledger_objects.encode_ledger_object(NAMESPACE, "", ledger), uid)

    # What controllers do.

    def controller(self, *, read: QuotaLedger | None = None, has_read: bool = False) -> "Keeping":
        """Return a controller; one that `has_read` the GPUQuota before does not read it after the ledger."""
        return Keeping(self, read, has_read=has_read)

    def before(self, method: str, plural: str, happens: Callable[[], object]) -> None:
        """Have something happen before the next such call."""
        self._before.append((method, plural, happens))

    @property
    def ledger(self) -> QuotaLedger | None:
        if self.ledger_object is None:
            return None
        return ledger_objects.decode_ledger_object(msgspec.json.encode(self.ledger_object)).ledger

    # The API server.

    def get(self, path: str, *, timeout: float | None = None) -> bytes:
        assert timeout
        if path == api_path("/api/v1", "namespaces", NAMESPACE):
            return b"{}"
        is_ledger = ledger_objects.PLURAL in path
        plural = ledger_objects.PLURAL if is_ledger else documents.PLURAL
        self._happen("GET", plural)
        return msgspec.json.encode(self._there(self.ledger_object if is_ledger else self.quota, plural))

    def post(self, path: str, body: bytes, *, timeout: float | None = None) -> bytes:
        assert timeout
        assert path == ledger_objects.ledger_objects_path(INSTALLATION)
        self._happen("POST", ledger_objects.PLURAL)
        if self.ledger_object is not None:
            raise errors.AlreadyExists("it exists")
        return self._store(body, f"ledger-{self._next()}")

    def put(self, path: str, body: bytes, *, timeout: float | None = None, accept: str = JSON) -> bytes:
        assert timeout
        assert accept
        assert path == ledger_objects.ledger_objects_path(INSTALLATION, NAMESPACE)
        self._happen("PUT", ledger_objects.PLURAL)
        self._check(msgspec.json.decode(body)["metadata"]["resourceVersion"])
        return self._store(body, self._there(self.ledger_object, ledger_objects.PLURAL)["metadata"]["uid"])

    def delete(self, path: str, *, version: str, timeout: float | None = None) -> bytes:
        assert timeout
        assert path == ledger_objects.ledger_objects_path(INSTALLATION, NAMESPACE)
        self._happen("DELETE", ledger_objects.PLURAL)
        self._check(version)
        if self.quota and (gone := self.ledger) and gone.quota_uid == self.quota["metadata"]["uid"]:
            self.broken.append("the ledger of a quota that is there was deleted")
        self.ledger_object = None
        return b"{}"

    def _happen(self, method: str, plural: str) -> None:
        self.calls.append(f"{method} {plural}")
        if self._before and self._before[0][:2] == (method, plural):
            self._before.popleft()[2]()

    def _there(self, found: dict[str, Any] | None, plural: str) -> dict[str, Any]:
        if found is None:
            raise errors.NotFound(f'{plural}.{GROUP} "{NAMESPACE}" not found')
        return found

    def _check(self, version: str) -> None:
        if self._there(self.ledger_object, ledger_objects.PLURAL)["metadata"]["resourceVersion"] != version:
            raise errors.Conflict("it has changed")

    def _store(self, body: bytes, uid: str) -> bytes:
        before, written = self.ledger, msgspec.json.decode(body)
        metadata = {"name": NAMESPACE, "uid": uid, "resourceVersion": str(self._next())}
        self.ledger_object = {**written, "metadata": metadata}
        after = self.ledger
        if before and after and before.quota_uid == after.quota_uid and after.generation < before.generation:
            self.broken.append(f"S1: {after.hard} is older than {before.hard}, which was in force")
        return msgspec.json.encode(self.ledger_object)

    def _next(self) -> int:
        self._version += 1
        return self._version


NO_LINE: Any = SimpleNamespace(
    take_turn=lambda *_: None,
    credited=lambda _namespace, _former, counted: counted,
    take_team_turn=lambda team_ledgers, _: TeamTurn(team_ledgers, {}),
    has_waiting=lambda _: False,
    start=lambda *_: None,
    start_all=lambda *_: None,
)
"""A line in which nobody waits."""

NO_TEAMS: Any = SimpleNamespace(
    team_of=lambda _: "", team_object_of=lambda _: "", exceeds_max_namespaces=lambda _: False
)
"""A cluster without ClusterGPUQuotas."""


def unwatched(observed: ObservedLedgers, watched_quota: Any = None, usage_cache: Any = None) -> Any:
    """Return informers without a cluster."""
    return SimpleNamespace(
        usage=usage_cache, observed=observed, membership=NO_TEAMS, watched_quota=watched_quota
    )


def keeper(
    store: ClusterStore, observed: ObservedLedgers, watched: QuotaLedger | None = None
) -> QuotaReconciler:
    """Return a reconciler that counts nothing, and whose informer has the quota as `watched`."""
    nothing: Any = None
    return QuotaReconciler(
        store,
        unwatched(observed, lambda _namespace: watched),
        *[*[nothing] * 6, NO_TEAMS, DeletedQuotas(0.0)],
    )


class Keeping:
    """A controller as far as it keeps the ledger."""

    def __init__(self, quota_and_ledger: QuotaAndLedger, read: QuotaLedger | None, *, has_read: bool) -> None:
        api = cast(ApiClient, quota_and_ledger)
        self.observed = ObservedLedgers()
        self.store = _Read(api, read) if has_read else ClusterStore(api, INSTALLATION)
        self._keeper = keeper(self.store, self.observed)

    def keep(self) -> VersionedLedger | None:
        """Read ledger and quota, and bring the one behind the other; None also where somebody else came first."""
        try:
            found = self._keeper.current(NAMESPACE, fresh=True)
        except LedgerConflict:
            return None
        assert not isinstance(found, float)
        return found

    def desired(self) -> QuotaLedger | None:
        return self.store.read_desired(NAMESPACE, 1.0)

    def count(self, **changes: Any) -> None:
        """Swap something into the ledger."""
        ledger_object = self.store.read(NAMESPACE, 1.0)
        assert ledger_object is not None
        self._keeper.swap(NAMESPACE, ledger_object, msgspec.structs.replace(ledger_object.ledger, **changes))


class _Read(ClusterStore):
    """What breaks the rule: the GPUQuota was read before the ledger."""

    def __init__(self, api: ApiClient, read: QuotaLedger | None) -> None:
        super().__init__(api, INSTALLATION)
        self._read = read

    def read_desired(self, namespace: str, seconds: float) -> QuotaLedger | None:  # noqa: ARG002 - that of the store
        return self._read
