"""What the objects of one namespace request leaves less of its team for the others, as far as a status says what it holds."""

from policies.quota.amounts import Hard
from policies.quota.team_spec import TeamNamespaces, TeamSpec
from tests.cases import cases
from tests.policies.quota.ledger.creations import amounts
from webhook.quota.team_documents import Member, Members, TeamRecord, TeamStatus
from webhook.tools.check.run_teams import run_teams

SPEC = TeamSpec(
    namespaces=TeamNamespaces(names=("lab-*",)), hard=Hard(gpus=40), guaranteed={"lab-prod": Hard(gpus=2)}
)


@cases(
    ("used", "idle", "requested", "free"),
    nothing=(32, 0, 0, 8),
    beyond_a_guarantee_that_is_in_use=(32, 0, 5, 3),
    beyond_a_guarantee_that_is_idle=(30, 2, 5, 5),
    within_a_guarantee_that_is_idle=(30, 2, 2, 8),
)
def test_a_namespace_that_the_status_does_not_name(used: int, idle: int, requested: int, free: int) -> None:
    """Ten others hold 3 GPUs each, and the namespace with a guarantee of 2 the rest."""
    status = TeamStatus(
        used=amounts(gpus=used),
        guaranteed_idle=amounts(gpus=idle),
        namespaces=Members(
            count=11, largest=tuple(Member(name=f"lab-{each}", used=amounts(gpus=3)) for each in range(10))
        ),
    )
    record = TeamRecord(
        name="lab", uid="u", version="1", spec=SPEC, namespaces=SPEC.namespaces, status=status
    )
    team = run_teams(lambda: [record], {}, lambda _namespace: ())("lab-prod")
    assert team is not None
    other = team.ledger("lab-0", None)
    assert other is not None
    assert other.team_state is not None
    if requested:
        team.count("lab-prod", amounts(gpus=requested))
    assert team.team_state("lab-0", other.team_state).free("gpus", amounts(gpus=3)["gpus"]) == free
