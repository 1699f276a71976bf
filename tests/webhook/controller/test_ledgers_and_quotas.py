"""A ledger follows its GPUQuota while others write both. A spec that was read before the ledger is never written."""

from fractions import Fraction
from typing import cast

import msgspec
import pytest

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from tests.builders import quota_ledger
from tests.cases import cases
from tests.webhook.quota.quota_and_ledger_object import INSTALLATION, QuotaAndLedger, keeper
from webhook.cluster.api import ApiClient
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import QuotaReconciler
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.ledger_objects import PLURAL, decode_ledger_object
from webhook.quota.store import LedgerConflict

TEAM = "team"


def spec(hard: int, generation: int, *, uid: str = "quota", used: int | None = None) -> QuotaLedger:
    """Return the ledger that a GPUQuota calls for, with `used` a counted one."""
    counted = None if used is None else {"gpus": Fraction(used)}
    return quota_ledger(quota_uid=uid, generation=generation, hard={"gpus": Fraction(hard)}, used=counted)


def stored(quota: QuotaLedger | None, ledger: QuotaLedger | None = None) -> QuotaAndLedger:
    """Return the GPUQuota that calls for `quota`, and the ledger."""
    around = QuotaAndLedger()
    if quota is not None:
        identity = {"uid": quota.quota_uid, "generation": quota.generation, "resourceVersion": "1"}
        metadata = {"name": "default", "namespace": TEAM, **identity}
        around.quota = {"metadata": metadata, "spec": {"hard": {"gpus": int(quota.hard["gpus"])}}}
    if ledger is not None:
        around.write(ledger)
    return around


def keeping(around: QuotaAndLedger, watched: QuotaLedger | None) -> QuotaReconciler:
    """Return a reconciler that has observed the stored ledger, and whose watch showed the quota as `watched`."""
    observed = ObservedLedgers()
    if around.ledger_object is not None:
        observed.observe(TEAM, decode_ledger_object(msgspec.json.encode(around.ledger_object)))
    return keeper(ClusterStore(cast(ApiClient, around), INSTALLATION), observed, watched)


def shown(ledger: QuotaLedger | None) -> tuple[int, int | None] | None:
    if ledger is None:
        return None
    return int(ledger.hard["gpus"]), None if ledger.used is None else int(ledger.used["gpus"])


READ, QUOTA = f"GET {PLURAL}", "GET gpuquotas"
CREATE, WRITE, DELETE = (f"{method} {PLURAL}" for method in ("POST", "PUT", "DELETE"))


@cases(
    ("quota", "before", "watched", "want", "calls"),
    unchanged=(spec(4, 1), spec(4, 1, used=2), spec(4, 1), (4, 2), []),
    changed=(spec(8, 2), spec(4, 1, used=2), spec(8, 2), (8, 2), [QUOTA, WRITE]),
    somebody_raised_the_ledger=(spec(4, 1), spec(1000, 1, used=2), spec(4, 1), (4, 2), [QUOTA, WRITE]),
    somebody_emptied_the_ledger=(
        spec(4, 1),
        msgspec.structs.replace(spec(4, 1, used=2), hard={}),
        spec(4, 1),
        (4, 2),
        [QUOTA, WRITE],
    ),
    the_watch_lags_behind=(spec(8, 2), spec(8, 2, used=2), spec(4, 1), (8, 2), [QUOTA]),
    a_new_quota=(spec(4, 1), None, spec(4, 1), (4, None), [CREATE, QUOTA]),
    another_quota_in_its_place=(
        spec(6, 1, uid="another"),
        spec(4, 1, used=2),
        spec(6, 1, uid="another"),
        (6, 2),
        [QUOTA, WRITE],
    ),
    a_new_quota_gone_meanwhile=(None, None, spec(4, 1), None, [CREATE, QUOTA, DELETE]),
    a_deleted_quota=(None, spec(4, 1, used=2), None, None, [QUOTA, DELETE]),
    neither_ledger_nor_quota=(None, None, None, None, [READ, QUOTA]),
)
def test_the_ledger_follows_its_quota(
    quota: QuotaLedger | None,
    before: QuotaLedger | None,
    watched: QuotaLedger | None,
    want: tuple[int, int | None] | None,
    calls: list[str],
) -> None:
    """`want` is hard and used of the ledger."""
    around = stored(quota, before)

    found = keeping(around, watched).current(TEAM, fresh=False)

    assert shown(found.ledger if found else None) == shown(around.ledger) == want
    assert found is None or found.ledger.quota_uid == (quota.quota_uid if quota else "")
    assert around.calls == calls


@cases(
    ("quota", "method", "written"),
    a_newer_spec=(spec(8, 2), "PUT", spec(1, 3, used=2)),
    a_quota_that_is_there_again=(None, "DELETE", spec(6, 1, uid="another", used=2)),
)
def test_a_write_of_another_controller_after_the_quota_was_read_stays(
    quota: QuotaLedger | None, method: str, written: QuotaLedger
) -> None:
    around = stored(quota, spec(4, 1, used=2))
    paused = keeping(around, watched=quota)
    around.before(method, PLURAL, lambda: around.write(written))

    with pytest.raises(LedgerConflict):
        paused.current(TEAM, fresh=False)
    assert shown(around.ledger) == shown(written)


def test_a_new_quota_that_has_a_ledger_already_finds_it() -> None:
    around = stored(spec(4, 1))
    late = keeping(around, watched=spec(4, 1))
    around.write(spec(4, 1, used=2))

    with pytest.raises(LedgerConflict):
        late.current(TEAM, fresh=False)
    found = late.current(TEAM, fresh=True)
    assert found is not None
    assert shown(found.ledger) == (4, 2)


def damaged() -> QuotaAndLedger:
    around = QuotaAndLedger(4)
    around.controller().keep()
    assert around.ledger_object is not None
    around.ledger_object["ledger"] = "{"
    return around


def test_a_ledger_that_cannot_be_read_goes_with_its_quota_too() -> None:
    around = damaged()
    around.remove()

    assert around.controller().keep() is None
    assert around.ledger_object is None


def test_a_ledger_that_cannot_be_read_stays_with_its_quota() -> None:
    around = damaged()
    ledger_object = around.ledger_object

    with pytest.raises(LedgerError, match="cannot be read"):
        around.controller().keep()
    assert around.ledger_object is ledger_object


def test_a_ledger_that_is_corrected_meanwhile_stays() -> None:
    around = damaged()
    around.remove()
    around.before(
        "DELETE",
        PLURAL,
        lambda: around.ledger_object and around.ledger_object["metadata"].update(resourceVersion="99"),
    )

    assert around.controller().keep() is None
    assert around.ledger_object is not None
