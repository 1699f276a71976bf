"""Our verdict on what a container asks for, against the API server's own validation of the very same bytes.

Quantities and pairs of request and limit, generated over the whole grammar (and past its edges), go to the API server by
server-side dry-run, without our webhook, and to the rule gpu-requests the way `gpu-admission check` reads a manifest: raw, with
the limits copied into the requests. Where the two differ on purpose, DIFFERENCES says which inputs and why; they must differ on
exactly those.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

import msgspec
import pytest

from policies.pods.pod import decode_pod
from policies.rule import Phase
from tests.builders import JSON, container
from tests.controlplane import Client, ControlPlane, accepted
from tests.seed import SAID, SEED
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision import Outcome
from webhook.evaluation.decision_cache import DecisionCache
from webhook.evaluation.evaluator import Creation, Evaluator
from webhook.tools.check.manifests import with_requests, without_nulls

THREADS = 8
NAMESPACE = "differential"
PLACES = ["container", "container", "init", "sidecar"]
RESOURCE = "nvidia.com/gpu"
LARGEST = 2**63 - 1

SIGNS = ["", "", "", "", "", "+", "-"]
WHOLES = ["", "0", "00", "1", "1", "01", "2", "3", "8", "10", "16", "999", "1000", "1024", "1500", "2000"]
WHOLES += ["1000000000", "9007199254740993", str(LARGEST), str(LARGEST + 1), "9" * 18, "9" * 19, "9" * 25]
FRACTIONS = ["", "", "", "", "", ".", ".0", ".5", ".25", ".000", ".001", ".0001", ".9999", ".99999", ".00001"]
FRACTIONS += [".000000001", ".0000000001", ".0009999999999", ".1234567891234", ".5000000000000000000001"]
DECIMALS = ["", "", "", "", "", "n", "u", "m", "m", "k", "M", "G", "T", "P", "E"]
BINARIES = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
EXPONENTS = "e0 E0 e3 E3 e+2 e-3 E-3 e-9 e-10 e18 e19 e30 e-300 e0003".split()  # noqa: SIM905
WRONG = [*"K e e- E+ i mi ki Eii kk mm e1.5 % gpu e3m mk Zi _0 x".split(), " Gi"]  # noqa: SIM905
SPACES = [" ", "  ", "\t", "\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff", "\x1f"]
ALPHABET = "0123456789+-.eEinumkKMGTPxX_, ٣½∞"
LITERALS = """
0 1 2 8 -1 -0 1.0 0.5 1.5 0.9999 0.0001 1e0 1e3 1E+2 5e-1 1e-9
9223372036854775807 9223372036854775808 1e19 1e300 2.0000000000000000000001 1e-12 true false null {} [] [1]
""".split()  # noqa: SIM905
SAME = [
    ["1", "1", "1000m", "1.0", "1e0", "0.9999", "01", "+1", " 1", "0.99999999999", "1000000u", "1."],
    ["2", "2000m", "2.0", "20e-1", "1.9999999", "0002", "0.002k"],
    ["0", "-0", "0m", "+", ".", "k", "0.0", "0e5", "-"],
    ["1024", "1Ki", "1024000m", "1.024k", "1024e0"],
    ["0.5", "500m", ".5", "5e-1", "500000000n", "0.4999999"],
]
"""What counts as the same number once it is rounded up to thousandths."""


class Case(NamedTuple):
    """Which kind of container asks, and the JSON literals of its limit and request, where it has them."""

    place: str
    literals: dict[str, str]


def quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def quantities(choose: random.Random) -> str:
    """Return a JSON literal: mostly a quantity of the grammar, often at one of its edges, sometimes past it."""
    kind = choose.random()
    if kind < 0.12:
        return choose.choice(LITERALS)
    if kind < 0.14:
        return quoted("1." + "0" * choose.choice([200, 250, 253, 254, 255, 256, 300]))
    suffixes = choose.choices([DECIMALS, BINARIES, EXPONENTS, WRONG], [10, 2, 4, 2])[0]
    text = "".join(choose.choice(part) for part in (SIGNS, WHOLES, FRACTIONS, suffixes))
    if kind > 0.95:
        place = choose.randrange(len(text) + 1)
        text = text[:place] + choose.choice(ALPHABET) + text[place + choose.randrange(2) :]
    elif kind > 0.9:
        text = choose.choice([choose.choice(SPACES), ""]) + text + choose.choice([choose.choice(SPACES), ""])
    # The Go parser takes very long over exponents of many digits, so mutation must not make one.
    return quoted(re.sub(r"([eE][+-]?[0-9]{4})[0-9]+", r"\1", text))


def pairs(choose: random.Random) -> tuple[str, str]:
    if choose.random() < 0.5:
        group = choose.choice(SAME)
        return quoted(choose.choice(group)), quoted(choose.choice(group))
    return quantities(choose), choose.choice([quantities(choose), quoted(choose.choice(choose.choice(SAME)))])


def cases(number: int) -> Iterator[Case]:
    choose = random.Random(SEED)  # noqa: S311  cases, no secret
    for _ in range(number // 2):
        side = choose.choice(["limits", "limits", "requests"])
        yield Case(choose.choice(PLACES), {side: quantities(choose)})
    for _ in range(number // 2):
        limit, request = pairs(choose)
        yield Case(choose.choice(PLACES), {"limits": limit, "requests": request})


def pod_of(case: Case) -> JSON:
    resources = {side: {RESOURCE: msgspec.Raw(literal.encode())} for side, literal in case.literals.items()}
    asking = container("asks", resources=resources)
    spec: JSON = {"containers": [container()]}
    if case.place == "container":
        spec["containers"].append(asking)
    else:
        sidecar = {"restartPolicy": "Always"} if case.place == "sidecar" else {}
        spec["initContainers"] = [{**asking, **sidecar}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks"}, "spec": spec}


# ---- the two verdicts


def theirs(client: Client, pod: JSON) -> tuple[bool, str]:
    """Return whether the API server accepts the pod, and what it says."""
    status, answer = client.post(f"/api/v1/namespaces/{NAMESPACE}/pods", pod, {"dryRun": "All"})
    assert status in {201, 400, 422}, answer
    return status == 201, "" if status == 201 else answer["message"]


def ours(cache: DecisionCache, pod: JSON) -> tuple[bool, str]:
    """Return whether gpu-requests lets the pod pass as `gpu-admission check` reads it, and what it says."""
    try:
        read = with_requests(without_nulls(msgspec.json.decode(msgspec.json.encode(pod))))
        view = decode_pod(msgspec.json.encode(read))
    except msgspec.ValidationError as error:
        return False, str(error)
    policy = cache.configuration.policies.for_namespace(NAMESPACE)
    decision = Evaluator(cache=cache, now=datetime.now(UTC)).evaluate(Creation(Phase.MUTATE, policy), view)
    findings = [finding for finding in decision.findings(Outcome.DENIED) if finding.rule == "gpu-requests"]
    return not findings, " ".join(finding.sentence() for finding in findings)


# ---- where they differ on purpose


def above_the_largest(literal: str) -> bool:
    """Whether it is more than 2^63-1 thousandths."""
    text = literal.strip('"').strip()
    match = re.fullmatch(r"\+?([0-9]*\.?[0-9]*)(?:[eE]([+-]?[0-9]+)|([numkMGTPE]?)|([KMGTPE])i)", text)
    if match is None or match[1] in {"", "."}:
        return False
    factor = Fraction(10) ** int(match[2] or 0)
    if match[3]:
        factor = Fraction(10) ** (3 * ("numkMGTPE".index(match[3]) - 3 + (match[3] in "kMGTPE")))
    if match[4]:
        factor = Fraction(1024) ** (1 + "KMGTPE".index(match[4]))
    return Fraction(match[1]) * factor * 1000 > LARGEST


REFUSED: dict[str, Callable[[str], bool]] = {
    # facts §4, MilliValue() and Value(): such a number overflows 64 bits, which validation takes for whole or not whole as it
    # happens, and what is counted then is 0 or negative.
    "above 2^63-1 thousandths": above_the_largest,
    # Every digit costs; nobody writes so many. The API server reads up to its 3 MiB.
    "longer than 256 characters": lambda literal: len(literal.strip('"')) > 256,
}
"""What we refuse although the API server may accept it."""

LOST_DIGITS = "JSON number with more digits than a float holds"
"""Here we answer as the API server does for the number that is left: policies/pods/quantity.py says so. It matters to `check`
alone, since the API server itself writes every quantity as a text before the webhook sees it (facts §4)."""


def as_read(literal: str) -> str:
    """Return the literal with what is left of it in Python, where it is a fraction."""
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", literal) or literal.lstrip("-").isdigit():
        return literal
    return literal if Fraction(repr(float(literal))) == Fraction(literal) else repr(float(literal))


def expectation(client: Client, case: Case) -> tuple[str, bool | None]:
    """Return why we may differ, and our verdict then; None: that of the API server."""
    for reason, holds in REFUSED.items():
        if any(holds(literal) for literal in case.literals.values()):
            return reason, False
    read = {side: as_read(literal) for side, literal in case.literals.items()}
    if read != case.literals:
        return LOST_DIGITS, theirs(client, pod_of(case._replace(literals=read)))[0]
    return "", None


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> Iterator[Client]:
    client = plane.client()
    accepted(client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}))
    yield client
    client.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.mark.parametrize("number", [600, pytest.param(3600, marks=pytest.mark.slow)])
def test_our_verdict_is_the_api_servers(client: Client, number: int) -> None:
    cache = DecisionCache(load_directory(None))
    generated = list(cases(number))
    with ThreadPoolExecutor(THREADS) as threads:
        verdicts = list(threads.map(lambda case: theirs(client, pod_of(case)), generated))
        expected = list(threads.map(lambda case: expectation(client, case), generated))

    counts: Counter[str] = Counter()
    unexplained = []
    for case, (is_accepted, said), (reason, want) in zip(generated, verdicts, expected, strict=True):
        passes, reported = ours(cache, pod_of(case))
        if passes != (is_accepted if want is None else want):
            unexplained.append(
                f"{case}\n  API server: {said or 'accepted'}\n  ours: {reported or 'accepted'}"
            )
        elif passes != is_accepted:
            counts[f"differ: {reason}"] += 1
        else:
            counts["both accept" if is_accepted else "both refuse"] += 1

    print(f"{SAID}, {len(generated)} pods:", dict(sorted(counts.items())))  # noqa: T201  the figures, shown by -rA
    assert not unexplained, f"{SAID}, {len(unexplained)}:\n" + "\n".join(unexplained[:40])
    assert len(generated) == number
    kinds = {"both accept", "both refuse", *(f"differ: {name}" for name in (*REFUSED, LOST_DIGITS))}
    assert set(counts) <= kinds
    # Numbers that lose digits are one in 700; of other kinds 3,600 pods never lack one.
    assert number < 3600 or set(counts) >= kinds - {f"differ: {LOST_DIGITS}"}, SAID
    assert min(counts["both accept"], counts["both refuse"]) >= number / 7
