"""Names of GPU resources that a misspelt name seems to mean."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from posixpath import commonprefix

from policies.finding import Reason
from policies.pods.names import is_resource_name

INVALID_RESOURCE_NAME = Reason(
    "InvalidResourceName", "the API server rejects the name of a GPU resource", hides_others=True
)
UNKNOWN_RESOURCE_NAME = Reason(
    "UnknownResourceName", "the name of a resource nearly equals that of a GPU resource", hides_others=True
)
INVALID_NAME_MESSAGE = (
    "the API server rejects this name: those of extended resources are domain/name in lowercase"
)

WRONG_NAMES = {
    "alpha.kubernetes.io/nvidia-gpu": "nvidia.com/gpu",
    "aws.amazon.com/neurondevice": "aws.amazon.com/neuron",
    "intel.com/gpu": "gpu.intel.com/i915",
    "intel.com/gaudi": "habana.ai/gaudi",
}
"""Names that no node has, with those meant: Kubernetes 1.11 removed the first with the feature gate Accelerators (its
CHANGELOG), Neuron 2.20 the second (its announcements); people write Intel's under the company's domain (llm-d-autoscaling,
issue 1104)."""

_QUOTA_PREFIX = re.compile(r"(requests|limits)\.")
_SLICE_NAME = re.compile(r"/mig[._-]?([1-7])g[._-]?([0-9]{1,4})g(?:b([a-z0-9.-]*))?$", re.IGNORECASE)
"""The name of a MIG slice, also without its dash, dot or b."""
_AMOUNT_IN_NAME = re.compile(r"(?<!\s)\s*[=:]\s*[0-9]*$")
"""An amount that became part of the name: `nvidia.com/gpu=1`. The lookbehind prevents quadratic backtracking over many spaces."""
_WORD = re.compile(r"[a-z0-9]+")

_SplitName = tuple[str, str, str]
"""A name, and its domain and the rest in lower case."""


class ExactNames:
    """The names of GPU resources in a mapping, without patterns. whole_devices: those of whole accelerators among them."""

    def __init__(self, names: Collection[str], whole_devices: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.by_part: dict[tuple[str, str], list[_SplitName]] = defaultdict(list)
        """By the domain or the rest, and the first letter of the other one."""
        for name in names:
            domain, _, rest = name.lower().partition("/")
            for part, other in ((domain, rest), (rest, domain)):
                self.by_part[part, other[:1]].append((name, domain, rest))
        self.by_words: dict[str, str] = {}
        """By their words, because people often write them without the domain."""
        for device in whole_devices:
            domain, _, rest = device.partition("/")
            for words in (device, f"{domain.partition('.')[0]} {rest}", rest):
                self.by_words.setdefault(_words(words), device)


def intended_name(name: str, exact: ExactNames, is_gpu: Callable[[str], bool]) -> str | None:
    """Return the GPU resource that `name` probably means, or None. is_gpu: whether a pattern of the mapping matches a name."""
    if name in exact.names:
        return WRONG_NAMES.get(name)
    plain = WRONG_NAMES.get(name) or _AMOUNT_IN_NAME.sub("", _QUOTA_PREFIX.sub("", name, count=1))
    plain = _SLICE_NAME.sub(lambda match: f"/mig-{match[1]}g.{match[2]}gb{match[3] or ''}".lower(), plain)
    if plain != name and is_gpu(plain):
        return plain
    if not is_resource_name(name):
        words = _words(plain)
        return exact.by_words.get(words) or exact.by_words.get(words.removesuffix("s"))
    domain, _, rest = name.lower().partition("/")
    parts = ((domain, rest[:1]), (rest, domain[:1]))
    alike: list[_SplitName] = [each for part in parts for each in exact.by_part.get(part, ())]
    for similar, other_domain, other in alike:
        if rest == other and (other_domain.startswith(f"{domain}.") or _is_one_typo(domain, other_domain)):
            return similar
        if domain == other_domain and rest != other and _is_one_typo(rest, other):
            return similar
    return None


def _words(name: str) -> str:
    """Return the name in lower case, with spaces between its words: `nvidia com gpu`."""
    return " ".join(_WORD.findall(name.lower()))


def _is_one_typo(written: str, meant: str) -> bool:
    """Whether texts with the same first letter are equal, or differ in one letter or separator, or by two swapped letters.

    Digits must be the same: nvidia.com/gpu2 is another name. `pgpu` is not a typo of `gpu`: the first letters must be equal.
    """
    if abs(len(written) - len(meant)) > 1:
        return False
    common_start = len(commonprefix([written, meant]))
    one, other = written[common_start:], meant[common_start:]
    common_end = len(commonprefix([one[::-1], other[::-1]]))
    one, other = one[: len(one) - common_end], other[: len(other) - common_end]
    is_letter = all(len(part) <= 1 and not part.isdigit() for part in (one, other))
    is_swap = len(one) == len("ab") and one == other[::-1]
    return is_letter or is_swap
