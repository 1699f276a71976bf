"""CEL that several exported rules share, as the API server of Kubernetes 1.35 and later reads it.

Safe under failurePolicy Fail, because no expression can err: `object` is read as `dyn`, every optional field through `.?` or
`[?…]`, and `quantity()` gets only what the API server's decoder has read before, or digits.
"""

import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from policies.finding import VALUE_LENGTH
from policies.gpus.fraction_annotations import FRACTION_CONTAINER
from policies.gpus.resource_mapping import Measure, ResourceMapping, ResourcePattern
from policies.pods.tolerations import DECIMAL_INTEGER, EQUAL
from webhook.workloads.creators import MIRROR_ANNOTATION

Named = tuple[str, str]
"""Name and CEL expression: of a variable, of a match condition."""

POD = "dyn(object)"
LIST_WIDTH = 110
MAX_ALTERNATIVES = 20
"""Globs in one regular expression."""
NAME_CHARACTERS = f"{string.ascii_letters}{string.digits}./_-"
"""Those of namespaces and resources. The - is last, where `[…]` takes it for itself."""
_META = re.compile(r"[*?\[]")
_SPECIAL = str.maketrans({c: f"\\{c}" for c in r"\.^$*+?()[]{}|"} | {"'": r"\x27", "\n": r"\n", "\r": r"\r"})
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(value: str) -> str:
    """Return the string as a CEL literal."""
    characters = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return f"'{''.join(characters)}'"


def texts(values: Iterable[str]) -> str:
    """Return the strings as a CEL list, a long one on several lines."""
    lines = [""]
    for literal in map(text, values):
        if lines[-1] and len(lines[-1]) + len(literal) > LIST_WIDTH:
            lines.append("")
        lines[-1] += f", {literal}" if lines[-1] else literal
    joined = ",\n  ".join(lines)
    return f"[{joined}]"


def indented(expression: str, spaces: int) -> str:
    """Return the expression with every line but the first indented by `spaces`."""
    return expression.replace("\n", "\n" + " " * spaces)


def escaped(literal: str) -> str:
    """Return the text as part of a regular expression (RE2) in `r'…'`, which can hold neither a quote nor a line end."""
    return literal.translate(_SPECIAL)


def glob_regex(glob: str) -> str:
    """Return a shell glob (`fnmatch`: `*`, `?`, `[a-z]`, `[!a-z]`) as an RE2 expression without anchors."""
    regex, at = "", 0
    while at < len(glob):
        character, at = glob[at], at + 1
        end = glob.find("]", at + 1 + glob.startswith("!", at)) if character == "[" else -1
        if character == "*":
            regex += ".*"
        elif character == "?":
            regex += "."
        elif end > 0:
            # RE2 refuses some ranges that fnmatch accepts, such as z-a, so list the characters.
            fitting = "".join(c for c in NAME_CHARACTERS if fnmatchcase(c, glob[at - 1 : end + 1]))
            regex, at = f"{regex}[{fitting or f'^{NAME_CHARACTERS}'}]", end + 1
        else:
            regex += escaped(character)
    return regex


def fits(subject: str, globs: Iterable[str]) -> str:
    """Return the condition that one of the globs fits the text `subject`; `true` where `*` is among them."""
    globs = list(dict.fromkeys(globs))
    if "*" in globs:
        return "true"
    plain = [glob for glob in globs if not _META.search(glob)]
    regexes = [glob_regex(glob) for glob in globs if _META.search(glob)]
    return " || ".join(_fitting(subject, plain, regexes)) or "false"


def _fitting(subject: str, plain: Sequence[str], regexes: Sequence[str]) -> Iterator[str]:
    """Yield the conditions that `subject` is one of the texts, and that one of the regular expressions fits the whole of it."""
    if plain:
        yield f"{subject} in {texts(plain)}"
    # A literal cannot be folded: a long one becomes several.
    for at in range(0, len(regexes), MAX_ALTERNATIVES):
        yield f"{subject}.matches(r'^({'|'.join(regexes[at : at + MAX_ALTERNATIVES])})$')"


# ---- which pods and containers request GPUs


def is_gpu_name(
    name: str, resource_mapping: ResourceMapping, wanted: Callable[[ResourcePattern], bool] = lambda _: True
) -> str:
    """Return the condition that the resource `name` (a CEL variable) is a GPU resource whose pattern is wanted.

    The first pattern that fits a name decides, so a pattern counts only where no other one before it fits.
    """
    groups: dict[tuple[ResourcePattern, ...], list[ResourcePattern]] = defaultdict(list)
    unwanted: list[ResourcePattern] = []
    for candidate in resource_mapping.patterns:
        if candidate.measure is Measure.NOTHING or not wanted(candidate):
            unwanted.append(candidate)
        else:
            groups[tuple(each for each in unwanted if _may_overlap(each, candidate))].append(candidate)
    ways: list[str] = []
    for exceptions, group in groups.items():
        condition = any_pattern(name, group)
        unless = f"!({any_pattern(name, exceptions)})"
        ways.append(f"({unless} &&\n ({condition}))" if exceptions else condition)
    return " ||\n".join(ways) or "false"


def any_pattern(name: str, patterns: Iterable[ResourcePattern]) -> str:
    plain = [pattern.pattern for pattern in patterns if "*" not in pattern.pattern]
    # Here a * stands for one or more characters, unlike in globs.
    regexes = [escaped(each.pattern).replace(r"\*", ".+") for each in patterns if "*" in each.pattern]
    return " ||\n".join(_fitting(name, plain, regexes))


def _may_overlap(one: ResourcePattern, other: ResourcePattern) -> bool:
    """Whether some name could fit both; yes in doubt."""
    (head, star, tail), (other_head, other_star, other_tail) = (
        each.pattern.partition("*") for each in (one, other)
    )
    if not star and not other_star:
        return head == other_head
    heads = head.startswith(other_head) or other_head.startswith(head)
    return heads and (tail.endswith(other_tail) or other_tail.endswith(tail))


def gpus_variable(containers: str, resource_mapping: ResourceMapping) -> Named:
    """Return the variable `gpus`: the names of GPU resources that the containers name."""
    is_gpu = indented(is_gpu_name("name", resource_mapping), 2)
    return "gpus", f"{resource_names(containers)}.filter(name,\n  {is_gpu})"


def resource_names(containers: str) -> str:
    """Return the list of the names of all resources in the containers.

    This CEL cannot flatten lists, so names are joined and split again.
    """
    names = "c.?resources[?kind].orValue({}).map(name, name).join(' ')"
    return (
        f"({containers}).map(c, ['limits', 'requests'].map(kind,\n  {names}).join(' ')).join(' ').split(' ')"
    )


def requests(names: str) -> str:
    """Return whether the container `c` requests one of these resources, or uses a ResourceClaim.

    CEL cannot look up the devices of a claim. Of a resource, the limit counts where there is one.
    """
    return f"""\
(c.?resources.?claims.orValue([]).size() > 0 ||
 ['limits', 'requests'].exists(kind, c.?resources[?kind].orValue({{}}).exists(name, amount,
   name in {names} && (kind == 'limits' || !c.?resources.?limits[?name].hasValue()) &&
   quantity(amount).isGreaterThan(quantity('0')))))"""


REQUESTS_GPUS = requests("variables.gpus")
"""Whether the container `c` requests a GPU (see `gpus_variable`)."""


def is_fraction_pod(resource_mapping: ResourceMapping) -> str:
    """Return the condition that an annotation requests a part of a GPU."""
    keys = [key.key for key in resource_mapping.fraction_annotations if not key.measure.is_count]
    if not keys:
        return "false"
    return f"{texts(dict.fromkeys(keys))}.exists(key, {POD}.metadata.?annotations[?key].hasValue())"


def fraction_container(resource_mapping: ResourceMapping) -> str:
    """Return the expression of the name of the container that a fraction scheduler serves, '' where none does."""
    schedulers = texts(resource_mapping.fraction_schedulers)
    return f"""\
({is_fraction_pod(resource_mapping)}) && {POD}.spec.?nodeName.orValue('') == '' &&
{POD}.spec.?schedulerName.orValue('') in {schedulers}
  ? {POD}.metadata.?annotations[?{text(FRACTION_CONTAINER)}].orValue({POD}.spec.?containers[?0].?name.orValue(''))
  : ''"""


LISTS = ("containers", "initContainers")
CONTAINERS = " + ".join(f"{POD}.spec.?{each}.orValue([])" for each in LISTS)

NOT_A_MIRROR_POD: Named = (
    "not-a-mirror-pod",
    f"""\
!('system:nodes' in request.userInfo.?groups.orValue([]) &&
  {POD}.spec.?nodeName.orValue('') != '' &&
  request.userInfo.username == 'system:node:' + {POD}.spec.?nodeName.orValue('') &&
  {POD}.metadata.?annotations[?'{MIRROR_ANNOTATION}'].hasValue())""",
)
"""Leaves out a kubelet's mirror of a static pod: nothing may be added, and denying it would not stop the pod."""


def may_request_gpus(resource_mapping: ResourceMapping) -> Named:
    """Return the match condition, cheap and a little too wide, that excludes pods without GPUs."""
    keys = texts(dict.fromkeys(key.key for key in resource_mapping.fraction_annotations))
    return (
        "may-request-gpus",
        f"""\
({CONTAINERS}).exists(c,
  c.?resources.?limits.orValue({{}}).exists(name, name.contains('/')) ||
  c.?resources.?requests.orValue({{}}).exists(name, name.contains('/'))) ||
{POD}.spec.?resourceClaims.orValue([]).size() > 0 ||
{POD}.metadata.?annotations.orValue({{}}).exists(key, key in {keys})""",
    )


def pod_requests_gpus(resource_mapping: ResourceMapping) -> Named:
    """Return the variable `requestsGPUs`, given `gpus`: whether the pod requests a GPU in any way, or uses a ResourceClaim."""
    return (
        "requestsGPUs",
        f"({CONTAINERS}).exists(c,\n  {indented(REQUESTS_GPUS, 2)}) ||\n"
        f"{POD}.spec.?resourceClaims.orValue([]).size() > 0 ||\n{is_fraction_pod(resource_mapping)}",
    )


def sentence_per_container(containers: str, condition: str, found: str) -> str:
    """Return the list: of each container `c` that meets the condition, its sentences `found`, joined to one."""
    return f"""\
{POD}.spec.?{containers}.orValue([]).transformList(i, c,
  {condition},
  {found}.join('; ')).filter(finding, finding != '')"""


def bound(name: str, value: str, expression: str) -> str:
    """Return the expression with the value bound to `name`. The API server's CEL has no `cel.bind`."""
    return f"[{value}].map({name},\n  {expression})[0]"


def tolerates_value(toleration: str, value: str) -> str:
    """Return the condition that the toleration tolerates a taint with its key and this value. Its operator is not Exists."""
    operator, own = f"{toleration}.?operator.orValue('')", f"{toleration}.?value.orValue('')"
    numbers = " && ".join(f"{each}.matches(r'{DECIMAL_INTEGER}')" for each in (own, value))
    compared = f"quantity({value}).compareTo(quantity({own}))"
    return f"""\
{operator} in {texts(EQUAL)} ? {own} == {value} :
  {operator} in ['Gt', 'Lt'] && {numbers} &&
  {compared} == ({operator} == 'Gt' ? 1 : -1)"""


def sentence(
    path: str, message: str, rule: str, *, container: str = "", value: str = "", remedy: str = ""
) -> str:
    """Return the expression that makes of its parts the sentence that `Finding.sentence` makes; all but `rule` are CEL."""
    of_container = f"""' (container "' + {container} + '")'""" if container else ""
    before = f"{remedy} + '; '" if remedy else ""
    parts = (path, of_container, value, "': '", before, message, text(f" [{rule}]"))
    return " + ".join(filter(None, parts))


def quoted_value(value: str) -> str:
    """Return the expression that quotes a text, cut at VALUE_LENGTH."""
    cut = f"({value}.size() > {VALUE_LENGTH} ? {value}.substring(0, {VALUE_LENGTH - 1}) + '…' : {value})"
    return f"""' = "' + {cut} + '"'"""
