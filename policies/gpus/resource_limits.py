"""A policy's limits of GPU resources: one number for every resource, or numbers by resource, class and family.

The most specific matching name decides: the class, its family, the resource, the longest pattern such as `nvidia.com/mig-*`, `*`.
A class and a family limit only whole cards.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from policies.gpus.classes import GPUClass, GPUClasses
from policies.gpus.resource_mapping import GPUResource
from policies.pods.names import is_resource_name

ResourceLimits = int | dict[str, int] | None
"""A number, or numbers by name; None: unlimited."""

ANY = "*"


def limit_problems(limits: ResourceLimits, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, message) for every invalid value."""
    for name, limit in (limits if isinstance(limits, Mapping) else {"": limits}).items():
        limit_path = f"{path}[{name}]" if name else path
        if limit is not None and limit < 0:
            yield limit_path, f"must be 0 or more{'' if name else ', or null for no limit'}, not {limit}"
        domain, _, rest = name.partition("/")
        is_valid = ANY not in domain and rest.count(ANY) <= 1 and is_resource_name(name.replace(ANY, "x"))
        if "/" in name and not is_valid:
            yield (
                limit_path,
                "must be a resource name such as example.com/gpu, with at most one * after the /",
            )


def unknown_names(limits: ResourceLimits, gpu_classes: GPUClasses, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, message) for every name that is not a resource, a class or a family."""
    for name in limits if isinstance(limits, Mapping) else ():
        if "/" not in name and name != ANY and not gpu_classes.resolve(name):
            nearest = gpu_classes.suggestion(name, ": ")
            yield f"{path}[{name}]", f"must be a resource, a class or a family{nearest}"


def limit_for(limits: ResourceLimits, resource: GPUResource, classes: Sequence[GPUClass]) -> int | None:
    """Return the limit of the resource for a pod on any of the classes (empty: not known), the highest. None: no limit."""
    if not isinstance(limits, dict):
        return limits
    by_pattern = limits_by_pattern(limits)
    of_resource = next((limit for name, limit in by_pattern if fnmatchcase(resource.name, name)), None)
    offering = [gpu_class for gpu_class in classes if gpu_class.resource == resource.name]
    by_class = [limits.get(c.name, limits.get(c.family, of_resource)) for c in offering] or [of_resource]
    known = [limit for limit in by_class if limit is not None]
    return max(known) if len(known) == len(by_class) else None


def limits_by_pattern(limits: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the limits by resource, the most specific first: names, patterns by length, `*`."""
    patterns = [(name, limit) for name, limit in limits.items() if "/" in name or name == ANY]
    return sorted(patterns, key=lambda pattern: (ANY in pattern[0], -len(pattern[0]), pattern[0]))
