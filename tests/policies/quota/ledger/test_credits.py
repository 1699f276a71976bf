"""Credits of a ledger: what is added, and how many stay."""

from fractions import Fraction

import msgspec

from policies.quota.ledger.credits import MAX_CHARACTERS, Credit, credited, owner_key
from policies.quota.ledger.reservations import LIMIT as RESERVATIONS
from policies.quota.ledger.reservations import Reservation, Reservations
from policies.quota.ledger.team import Team
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.builders import quota_ledger
from tests.cases import cases

NOW = 1_790_000_000_000
DEMAND = {key: Fraction(1) for key in ("gpus", "classes/nvidia-a100", "resources/nvidia.com/gpu")}


def ends(*numbers: int, of: str = "web") -> Credit:
    return Credit(owner_key(f"Deployment/{of}", of), DEMAND, tuple(NOW + each for each in numbers))


def size(found: tuple[Credit, ...]) -> int:
    return len(msgspec.json.encode(found, enc_hook=str))


@cases(
    ("before", "added", "want"),
    a_new_owner=([ends(1)], [ends(2, of="api")], [ends(1), ends(2, of="api")]),
    one_owner=([ends(1, 5)], [ends(3), ends(5)], [ends(1, 3, 5, 5)]),
    of_another_demand=(
        [ends(1)],
        [msgspec.structs.replace(ends(1), demand={})],
        [ends(1), msgspec.structs.replace(ends(1), demand={})],
    ),
)
def test_ends_of_an_owner_and_demand_are_together(
    before: list[Credit], added: list[Credit], want: list[Credit]
) -> None:
    assert list(credited(tuple(before), added, 1)) == want


@cases(
    ("ledgers", "of_one", "of_others"),
    alone=(1, 285, 35),
    in_a_team_of_16=(16, 285, 35),
    in_a_team_of_500=(500, 2, 1),
)
def test_the_newest_ends_stay_within_the_room(ledgers: int, of_one: int, of_others: int) -> None:
    room = MAX_CHARACTERS // max(16, ledgers)

    (found,) = credited((ends(*range(500)),), [ends(*range(500, 1000))], ledgers)
    assert found == ends(*range(1000 - len(found.ended), 1000))
    assert len(found.ended) == of_one
    others = credited((), [ends(each, of=str(each)) for each in range(1000)], ledgers)
    assert {each.ended[0] - NOW for each in others} == set(range(1000 - len(others), 1000))
    assert len(others) == of_others
    for each in ((found,), others):
        assert size(each) <= sum(one.size for one in each) <= room


def test_each_namespace_of_a_full_team_can_reserve_beside_its_credits() -> None:
    full = credited((), [ends(*range(100))], 500)
    team = Team(name="t", uid="t", generation=1, hard={"gpus": Fraction(1)})
    ledgers = TeamLedgers(team, {str(number): quota_ledger(credits=full) for number in range(500)})

    left = ledgers.reservation_limit("0", RESERVATIONS) - ledgers.ledgers["0"].size
    name = f"pods/{'n' * 63}"
    creation = Reservation("5f0c7a3e-1111-2222-3333-444455556666", DEMAND, name=name)
    assert Reservations.of(creation).size <= left
