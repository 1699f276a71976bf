"""Policies neither wait nor read anything: they import nothing that could.

A rule gets no function but one that looks options up, and calls nothing outside.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from threading import get_ident
from typing import Any

import msgspec
import pytest

from policies.finding import Finding
from policies.gpus.claimed_devices import decode_claim_template
from policies.pods.patch import PodPatch
from policies.quota.quota_request import LedgerError, ReservationOutcome, quota_request_for_pod
from policies.registry import RULES
from policies.rule import Phase, Rule
from policies.rules.gpu_quota import GPUQuotaOptions, check_reservation
from tests.builders import NOW, context, gpu_container, pod, quota_ledger, view, workload
from tests.pages import ROOT

PURE = frozenset({
    "bisect", "cel_expr_python", "collections", "contextlib", "copy", "datetime", "difflib",
    "enum", "fnmatch", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math",
    "msgspec", "operator", "policies", "posixpath", "re", "string", "types", "typing", "weakref",
})  # fmt: skip
"""What policies may import: msgspec, CEL, and modules of the standard library that do no I/O (of posixpath, `normpath`)."""
INTERNED = ("sys", "intern")
"""What they may import of sys."""
IMPURE = frozenset(
    {"open", "print", "input", "exec", "eval", "breakpoint", "__import__", "now", "today", "utcnow"}
)
"""Functions, and methods of datetime, that do I/O or read the clock."""
OUTSIDE = ("open", "socket.", "subprocess.", "os.", "time.sleep", "_thread.start_new_thread")
POD = pod(gpu_container("3"), annotations={"gpu-admission.dev/model-uri": "s3://models/llama"})
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat"},
    "spec": {"replicas": 9, "template": {"spec": POD["spec"]}},
}
DEVICES = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 9}}]}
TEMPLATE = decode_claim_template(msgspec.json.encode({"spec": {"spec": {"devices": DEVICES}}}))
CONTEXT = context(
    Phase.TEMPLATE,
    ledger=quota_ledger(hard={"gpus": Fraction(2)}, used={"gpus": Fraction(1)}),
    options_of={rule.id: rule.options() for rule in RULES}.get,
)

_calls: list[str] | None = None
_caller = 0
"""The thread whose calls count: those that other tests left behind have calls of their own."""


def _listen(event: str, _arguments: object) -> None:
    if _calls is not None and get_ident() == _caller and event.startswith(OUTSIDE):
        _calls.append(event)


sys.addaudithook(_listen)


@contextmanager
def calls_outside() -> Iterator[list[str]]:
    """Yield the calls that reach beyond the process: files, sockets, processes, threads, waits."""
    global _calls, _caller  # noqa: PLW0603 - an audit hook stays for good
    found: list[str] = []
    _calls, _caller = found, get_ident()
    try:
        yield found
    finally:
        _calls = None


def functions(rule: Rule) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return every function of a rule, with what it is called on."""
    options: Any = rule.options()
    found: dict[str, Callable[[], Iterable[Any]]] = {
        "concerns": lambda: [rule.concerns(workload(DEPLOYMENT), CONTEXT.resource_mapping)]
    }
    if mutate := rule.mutate:
        found["mutate"] = lambda: mutate(PodPatch(view(POD)), options, CONTEXT)
    if check := rule.check:
        found["check"] = lambda: check(view(POD), options, CONTEXT)
    if check_claim := rule.check_claim:
        spec = TEMPLATE.spec.spec if TEMPLATE.spec else None
        found["check_claim"] = lambda: check_claim(spec, "spec.spec", options, CONTEXT)
    if check_template := rule.check_claim_template:
        found["check_claim_template"] = lambda: check_template(TEMPLATE, CONTEXT)
    if check_workload := rule.check_workload:
        found["check_workload"] = lambda: check_workload(workload(DEPLOYMENT), options, CONTEXT)
    if rule.check_reservation:
        found["check_reservation"] = reservation(ReservationOutcome())
    return found


def reservation(outcome: ReservationOutcome | LedgerError) -> Callable[[], Iterator[Finding]]:
    request = quota_request_for_pod("review", view(POD), None, CONTEXT)
    return lambda: check_reservation(
        outcome, request, GPUQuotaOptions(required=True), "team", NOW, lambda _: context()
    )


CALLS = [
    *(
        pytest.param(call, id=f"{rule.id}-{name}".replace("_", "-"))
        for rule in RULES
        for name, call in functions(rule).items()
    ),
    pytest.param(reservation(LedgerError("unreachable", transient=True)), id="gpu-quota-that-failed"),
]


def test_every_function_of_a_rule_is_called_here() -> None:
    fields = {each.name for each in msgspec.structs.fields(Rule) if "Callable" in str(each.type)}

    assert fields == {name for rule in RULES for name in functions(rule)}


def test_the_context_holds_values_and_one_table_of_options() -> None:
    held = {name for name, value in msgspec.structs.asdict(CONTEXT).items() if callable(value)}

    assert held == {"options_of"}


@pytest.mark.parametrize("call", CALLS)
def test_a_rule_calls_nothing_outside_and_says_the_same_twice(call: Callable[[], Iterable[Any]]) -> None:
    list(call())
    with calls_outside() as outside:
        first, second = list(call()), list(call())

    assert outside == []
    assert first == second


# ---- what policies import and call


def test_policies_import_and_call_only_what_is_pure() -> None:
    found = {
        f"{path.name}: {name}"
        for path in (ROOT / "policies").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (*imported(node), *called(node))
    }

    assert found == set()


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules that the statement imports and that are not PURE."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and (node.module, *(alias.name for alias in node.names)) != INTERNED:
        names.append(node.module or "")
    yield from (name for name in names if name.partition(".")[0] not in PURE)


def called(node: ast.AST) -> Iterator[str]:
    """Yield the function or method that is called, if it is IMPURE."""
    if isinstance(node, ast.Call):
        # `eval` of a compiled CEL expression is a method.
        method = getattr(node.func, "attr", "")
        name = getattr(node.func, "id", "") or ("" if method == "eval" else method)
        yield from IMPURE & {name}
