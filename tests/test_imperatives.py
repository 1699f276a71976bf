"""Every sentence that tells somebody to write, add, set, remove, request, name, wait or ask has data, or a test that follows it.

All literals are walked. Each such sentence of `why` stands in a table with the data that it has: edits, what is awaited, or what
is asked for. The test fails for another sentence, and for a function that does not make that data. What rules and `scan` say
has its data in the finding: tests/remedies says whether both are true. What doctor says is followed in
tests/webhook/tools/doctor/test_followed.py, but for a table that says why not. Those of other surfaces (the proposal of `scan`,
console, Events, canary, progress, missing rights, versions) stand in a table with the test that does what they say.
tests/test_commands_named.py parses the commands.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.literals import texts
from tests.webhook.tools.doctor.followed_installation import ALL_FOLLOWED

ROOT = Path(__file__).parents[1]
WHY = ROOT / "webhook/tools/why"
TELLS = re.compile(
    r"(?:^|[;:,] (?:or |and )?|\bor |\band )(?:write|add|set|remove|request|name|wait|ask)\b(?=.* | \{)"
)
EDITS, AWAITS, ASKS = "edits", "awaits", "asks"
SAID: dict[str, frozenset[str]] = {
    "ask {} {}": frozenset({ASKS}),
    "wait, or {}": frozenset({AWAITS}),
    "if it stays so, ask {} whether a controller runs": frozenset({AWAITS}),
    "request less, or {}": frozenset({ASKS}),  # only the author knows how much less
    "it starts in the next period of the budget, or ask {} to raise spec.budget": frozenset({ASKS}),
    "ask {}, who set it in GPUQuota {}": frozenset({ASKS}),
    "wait until {} is Ready": frozenset({AWAITS}),
    "ask to uncordon one of them": frozenset({ASKS}),
    "if its pods belong there, add to spec.tolerations: {}": frozenset({EDITS}),
    "wait until there is another node": frozenset({AWAITS}),
    "wait until {} has lost this taint": frozenset({AWAITS}),
    "if the pod may run there, remove nodeSelector {}": frozenset({EDITS}),
    "if the pod may run there, remove its required node affinity": frozenset({EDITS}),
    "request {}": frozenset({EDITS}),
    "wait until {} {} free on one node": frozenset({AWAITS}),
    "wait until {} adds a node": frozenset({AWAITS}),
    "wait until {} adds a node, or see in its log why it does not": frozenset({AWAITS}),
    "ask {} for the rights that are named below": frozenset({ASKS}),
    "wait until then, and set a {} if later updates must be faster": frozenset({AWAITS}),
    "name a class that has nodes ({})": frozenset({EDITS}),
    "wait until Kueue admits it": frozenset({AWAITS}),
    "wait until it is None, or ask {} why it is set": frozenset({AWAITS}),
    "ask {} to set spec.active: true of Workload {}": frozenset({ASKS}),
    "set label {}: {}": frozenset({EDITS}),
    "ask {} for a LocalQueue of the namespace": frozenset({ASKS}),
    "wait until a node with such devices is added": frozenset({AWAITS}),
    "wait until another claim is deleted": frozenset({AWAITS}),
    "request less {}, or wait until it is free": frozenset({AWAITS}),  # only the author knows how much less
    "remove {} from its resources": frozenset({EDITS}),
    "wait until {} has ended": frozenset({AWAITS}),
    "remove {}": frozenset({EDITS}),
    "remove {}, or create those pods again on such a node": frozenset({EDITS}),
    "remove hostPort and hostNetwork": frozenset({EDITS}),
    "select the nodes with GPUs in spec.nodeSelector, or remove {}, or set whenUnsatisfiable: "
    "ScheduleAnyway in it": frozenset({EDITS}),
    "use a PersistentVolumeClaim whose volume is on nodes with free GPUs (in a cloud, in their zone), or ask {contact} for "
    "nodes with GPUs where the volume is": frozenset({ASKS}),
    "request {} or less of {}": frozenset({EDITS}),
    "set {}": frozenset({EDITS}),
    "ask why the device plugin of {} offers none": frozenset({ASKS}),
}


class Sentence(NamedTuple):
    text: str
    data: frozenset[str]
    """What of a Remedy the function, or the statement of the module, makes."""


def sentences(source: str) -> Iterator[Sentence]:
    """Yield the literals that tell somebody to do something, without docstrings."""
    tree = ast.parse(source)
    for scope in tree.body:
        functions: list[ast.AST] = [each for each in ast.walk(scope) if isinstance(each, ast.FunctionDef)]
        parts = functions or [scope]
        for part in parts:
            made = {
                keyword.arg or ""
                for call in ast.walk(part)
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Remedy"
                for keyword in call.keywords
            }
            names = {each.id for each in ast.walk(part) if isinstance(each, ast.Name)}
            made |= {ASKS for each in ("ContactEdit", "remedy_of_change") if each in names}
            for text in texts(part):
                if TELLS.search(text):
                    yield Sentence(text, frozenset(made))


def test_each_sentence_of_why_is_made_beside_its_data() -> None:
    found = [each for path in sorted(WHY.glob("*.py")) for each in sentences(path.read_text())]

    assert {each.text for each in found} == set(SAID)
    assert [each.text for each in found if not SAID[each.text] <= each.data] == []


def test_a_sentence_without_data_is_found() -> None:
    source = (
        'def f(x):\n    """Set x: no sentence."""\n    return Cause(remedy=f"it is full: ask {x} for more")\n'
    )

    assert list(sentences(source)) == [Sentence("it is full: ask {} for more", frozenset())]


MORE = re.compile(
    TELLS.pattern.replace(
        "|ask)",
        "|ask|create|give|label|correct|delete|lower|install|start|run|extend|taint|omit|use|allow|apply)",
    ),
    re.IGNORECASE,
)
"""Also what doctor tells people to do besides."""
BROKEN = re.compile(r'"\s*\n\s*f?"')
"""Where a literal goes on in the next line."""
UNFOLLOWED = {
    "run gpu-admission export --static again for its control plane node; its log says what is wrong": (
        "tests/webhook/tools/doctor/test_exported.py"
    ),
    "run gpu-admission export again, and apply what it writes": "tests/cluster/doctor/test_followed.py",
    "set spec.tolerations: [{}]{}": "tests/webhook/tools/doctor/test_kueue.py",
    "set hard.gpus of the GPUQuota to {} or more, or waitForPodsReady in Kueue's configuration": (
        "tests/webhook/tools/doctor/test_kueue.py"
    ),
    "create patch": "verbs of a right",
    "{}; or apply the {} that it means": "tests/webhook/tools/doctor/test_quotas.py",
    "set measure nothing in deviceClasses of a GPUResourceMapping for drivers whose devices are not GPUs": (
        "tests/webhook/tools/doctor/test_devices.py"
    ),
    "is unknown to version {}: remove it": "tests/cluster/doctor/test_followed.py",
    "correct ca.crt in the ConfigMap or Secret of webhook.clientAuthentication": "tests/cluster/doctor/test_faults.py",
    "pods of {} that request GPUs are reviewed, and start only while the webhook answers: name it in "
    "webhooks.excludedNamespaces of the chart where only administrators create pods in it": (
        "tests/cluster/doctor/test_followed.py"
    ),
    **dict.fromkeys(
        (
            "wait in line for quota ({}), and no controller leads that would start them",
            "wait in line for quota ({}), although the namespace has {}",
            "wait in line for quota ({}), which no new pod does: onExceeded is Deny",
        ),
        "what pods do",
    ),
}
"""Sentences of doctor that test_followed.py does not follow: the test with the objects that have it and have it not, or why."""
ELSEWHERE = {
    "From labels of nodes, and DeviceClasses. memoryGiB of a new class is as reported: write what the vendor sells.": (
        "tests/webhook/tools/scan/test_proposal.py"
    ),
    "name the paths of its pod templates in workloadKinds of a GPUResourceMapping": (
        "tests/webhook/tools/scan/test_scanning.py"
    ),
    "{}: no pod gets a toleration of the taint {}. If all GPU pods may run there, add {} to gpu-toleration.tolerations.": (
        "tests/webhook/tools/scan/test_proposal.py"
    ),
    "has been idle for {}: {}, each under {} % busy; delete the pod, or scale its owner down, if it is no longer needed": (
        "tests/webhook/controller/test_gpu_use.py"
    ),
    "run the controller as ServiceAccount {} of the webhook's namespace, or remove the mutating webhook that adds {}: the API "
    "server called one that put the gate back": "tests/webhook/controller/test_waiting_line.py",
    "write it into resources.limits of the container": "tests/webhook/workloads/test_misplaced.py",
    "write it into {}": "tests/webhook/workloads/test_misplaced.py",
    "remove it": "tests/webhook/workloads/test_misplaced.py",
    "name a DeviceClass in {}.requests[0].exactly of version v1": "tests/webhook/workloads/test_misplaced.py",
    "write them into {}": "tests/webhook/workloads/test_unread_sentences.py",
    "write its fields below {}": "tests/webhook/workloads/test_invalid_requests.py",
    "write the fields of {} into the request": "tests/webhook/workloads/test_invalid_requests.py",
    "apply the {} first, or check both together": "tests/webhook/tools/check/test_train_jobs.py",
    "add it to webhooks.fractionAnnotations of the chart": "tests/webhook/configuration/test_registered_annotations.py",
    "correct the path, or install a CustomResourceDefinition that has it": (
        "tests/webhook/serving/test_review_documents.py"
    ),
    "give {} a spec.priority above {}, or delete it": "tests/webhook/configuration/test_advice.py",
    "valid, but the documents take effect together: correct {}": (
        "tests/webhook/configuration/test_document_status.py"
    ),
    ": write disabled": "tests/webhook/configuration/test_decoding.py",
    "is a link that leads out of the directory: name what it leads to, if that is meant": (
        "tests/webhook/configuration/test_files.py"
    ),
    "set annotation {}: {} (the pods are on {})": "tests/webhook/tools/rightsize/test_sizing.py",
    "set {} instead of {}": "tests/webhook/tools/rightsize/test_sizing.py",
    "run {} of gpu-admission doctor": "tests/webhook/commands/test_status.py",
    "the most lost first; gpu-admission ends none of them: ask who runs them": (
        "tests/webhook/commands/test_status_waste.py"
    ),
    "use the client of the installation's version: checks, fields and words may differ": (
        "tests/webhook/commands/test_version.py"
    ),
    **dict.fromkeys(
        (
            "allow connections from the API server to port 8443 of the webhook (firewall, NetworkPolicy)",
            "allow it to create pods in namespace {namespace}: apply the RBAC of deploy/ again",
            "apply the Service of deploy/ again: kubectl -n gpu-admission get service gpu-admission",
            "remove what rejects the pod in namespace {namespace}, or name another --canary-namespace",
            "start the webhook: kubectl -n gpu-admission get pods",
            "with failurePolicy Ignore, start the webhook (kubectl -n gpu-admission get pods) or correct the caBundle",
        ),
        "tests/webhook/canary/test_probe.py",
    ),
    '"{}" is not a valid duration: write 30m or 1h30m': "tests/webhook/commands/test_usage_errors.py",
    "%s: request %s failed": "a line of the log",
    "request.{} must {}; no API server sends anything else": "an answer to no API server",
}
"""Sentences of other surfaces, and the test that has both what they are about and what they say to do."""
OTHER_SURFACES = (
    *(
        f"webhook/{each}/**/*.py"
        for each in ("canary", "configuration", "controller", "evaluation", "serving", "workloads")
    ),
    *(f"webhook/tools/{each}/**/*.py" for each in ("check", "console", "rightsize", "scan", "status")),
    *(
        f"webhook/commands/{each}.py"
        for each in ("doctor", "output", "quota", "scan_text", "status_text", "version")
    ),
)
"""Among these, commands/output.py has progress and missing rights, commands/version.py the skew of versions."""


def imperatives(*places: str) -> set[str]:
    paths = (path for place in places for path in sorted(ROOT.glob(place)))
    found = (text for path in paths for text in texts(ast.parse(path.read_text())))
    return {text for text in found if MORE.search(text)}


def is_followed(text: str) -> bool:
    """Whether a remedy that is followed has the sentence, with anything for what is filled in."""
    said = re.compile(".+?".join(map(re.escape, text.split("{}"))))
    return any(said.search(row.remedy) for row in ALL_FOLLOWED.values())


def test_each_sentence_of_doctor_is_followed_or_says_why_not() -> None:
    assert {each for each in imperatives("webhook/tools/doctor/**/*.py") if not is_followed(each)} == {
        *UNFOLLOWED
    }


def test_each_sentence_of_other_surfaces_is_followed_somewhere() -> None:
    assert imperatives(*OTHER_SURFACES) == {*ELSEWHERE}


def test_the_tests_that_are_named_have_the_sentences() -> None:
    named = {text: test for text, test in {**UNFOLLOWED, **ELSEWHERE}.items() if test.startswith("tests/")}
    lines = {test: BROKEN.sub("", (ROOT / test).read_text()) for test in named.values()}

    said = {text: max(re.split(r"\{\w*\}", text), key=len) for text in named}
    assert [text for text, test in named.items() if said[text] not in lines[test]] == []
