"""Whoever waits for the team starts at some time, however many come after it in other namespaces, if all that runs ends."""

from policies.quota.queue_entries import InLine
from policies.quota.team_line import next_to_start_in_team
from policies.quota.waiting import QueueSpec, Waiter
from tests.cases import cases
from tests.policies.quota.team_lines import BEST_EFFORT, Amounts, ledger, of_team
from tests.policies.quota.waiters import waiter

HARD, STRICT = 8, QueueSpec()
COMES, STARVES_AFTER, ROUNDS = 20, 15, 80
STREAM = 3
"""Pods that wait in each of the other namespaces at any time."""


@cases(
    ("pod", "queue", "guaranteed", "others"),
    one_pod_beside_many=(1, STRICT, {}, {"b": 1, "c": 1}),
    a_pod_that_needs_the_whole_team=(8, STRICT, {}, {"b": 1, "c": 2}),
    another_namespace_does_so_again_and_again=(8, STRICT, {}, {"b": 8}),
    where_the_other_namespace_has_a_guarantee=(1, STRICT, {"b": 4}, {"b": 8}),
    where_the_others_use_their_guarantee=(4, STRICT, {"b": 4}, {"b": 1, "c": 1}),
    where_others_may_pass_at_first=(8, BEST_EFFORT, {}, {"b": 1, "c": 1}),
)
def test_a_pod_starts_at_some_time(pod: int, queue: QueueSpec, guaranteed: Amounts, others: Amounts) -> None:
    team = of_team(HARD, guaranteed, z=ledger(), **dict.fromkeys(others, ledger()))
    waiting: dict[str, list[Waiter]] = {name: [] for name in ("z", *others)}
    running: list[tuple[int, str, int]] = []
    """Until which round, in which namespace, and how many GPUs."""
    for number in range(ROUNDS):
        for name, size in others.items():
            come = range(len(waiting[name]), STREAM)
            waiting[name] += [waiter(f"{name}-{number:02}-{at}", size, f"{number:02}") for at in come]
        if number == COMES:
            waiting["z"] = [waiter("pod", pod, f"{number:02}")]
        running = [each for each in running if each[0] > number]
        for name in waiting:
            used = sum(size for _, of, size in running if of == name)
            team = team.with_ledger(name, ledger(used))
        in_line = {name: InLine(each, {}, queue if name == "z" else STRICT) for name, each in waiting.items()}
        for name, turn in next_to_start_in_team(team, in_line, f"{number - STARVES_AFTER:02}").turns.items():
            started = [each for each in waiting[name] if each.uid in turn.ungate_uids]
            # They end one after the other, so that never much is free at one time.
            running += [(number + 3 + len(running) % 5, name, int(each.demand["gpus"])) for each in started]
            waiting[name] = [each for each in waiting[name] if each not in started]
        assert sum(size for *_, size in running) <= HARD
        if number >= COMES and not waiting["z"]:
            return
    raise AssertionError("it starves")
