"""Whether the ledger of a namespace says what its stored pods hold."""

from fractions import Fraction

from policies.quota.amounts import GPUS
from tests.cluster.quota.referee import cost, total
from tests.controlplane.gpuquota import Namespace


def live(team: Namespace) -> Fraction:
    """Count afresh, by other arithmetic than the controller's."""
    pods = team.client.get(team.path("pods"))[1]["items"]
    asking = [pod for pod in pods if "limits" in pod["spec"]["containers"][0]["resources"]]
    return total(cost(pod) for pod in asking).get("gpus", Fraction(0))


def is_settled(team: Namespace) -> bool:
    ledger_object = team.ledger_object()
    return not ledger_object.reservations and (ledger_object.used or {}).get(GPUS) == live(team)
