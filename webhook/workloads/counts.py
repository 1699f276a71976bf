"""The number of pods that an object creates from each of its pod templates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from policies.pods.field_paths import Parts, field_path
from policies.pods.workload import PodCount, PodNumber
from webhook.configuration.decoding import Problem
from webhook.configuration.workload_kinds import (
    BRANCHES,
    EVERY_ITEM,
    EVERY_KEY,
    Factor,
    PodForm,
    PodPath,
    WorkloadKind,
    factors,
    steps,
)

_NONE = PodCount(running=0)
_DIGITS = 9
"""A number of pods with more digits is a placeholder for "no limit", such as Ray's default of maxReplicas."""


def pod_count(workload_kind: WorkloadKind, pod_path: PodPath, data: Any, at: Parts) -> PodCount:
    """Return the number of pods that the object `data` creates from the template at `at`, a place on the path of `pod_path`."""
    if workload_kind.templates_only:
        return _NONE
    scales = pod_path.most and (
        not pod_path.elastic or first_value(data, pod_path, at, pod_path.elastic) is True
    )
    running = _product(pod_path.replicas, data, pod_path, at)
    maximum = (_product(pod_path.most, data, pod_path, at) or None) if scales else None
    count = PodCount(
        running=running,
        maximum=maximum,
        gang=_product(pod_path.gang, data, pod_path, at) if pod_path.gang else None,
        number=_pod_number(running, data, pod_path, at) if running and not maximum else None,
    )
    is_stopped = any(_stopping_fields(workload_kind, pod_path, data, at))
    return replace(_NONE, resumed=count) if is_stopped else count


def pods_of_model(workload_kind: WorkloadKind, pod_path: PodPath, data: Any, at: Parts) -> int | None:
    """Return the number of pods over which the object spreads one model, with those of the template at `at`; None if unknown.

    They are its gang, and the gangs of templates with another path in the table: the workers of a leader.
    """
    gangs = [_product(pod_path.gang, data, pod_path, at)]
    for other in workload_kind.pods:
        if other is pod_path or not other.gang:
            continue
        for path, _ in values(data, resolved_path(pod_path, at, other.path)):
            # `amounts` are of the pods that paths below them describe.
            is_same = path == at or (pod_path.form is PodForm.AMOUNTS and path[: len(at)] == at)
            gangs += [] if is_same else [_product(other.gang, data, other, path)]
    known = [gang for gang in gangs if gang is not None]
    return sum(known) if len(known) == len(gangs) else None


def fields_without_pods(workload_kind: WorkloadKind, data: Any) -> Iterator[str]:
    """Yield the fields by which the object creates no pods: `spec.suspend is true`, `scaled to zero: spec.replicas is 0`."""
    if workload_kind.templates_only:
        yield f"a {workload_kind.kind} is only a template: other objects make pods of it"
    for pod_path in workload_kind.pods:
        for at, _ in values(data, steps(pod_path.path)):
            yield from _stopping_fields(workload_kind, pod_path, data, at)
            for factor in factors(pod_path.replicas):
                for path in factor.paths:
                    written = first_value(data, pod_path, at, path)
                    if written is not None:
                        if plain_number(written) == 0:
                            yield f"scaled to zero: {field_path(resolved_path(pod_path, at, path))} is 0"
                        break


def with_gang_sizes(workload_kind: WorkloadKind, data: Any, counts: Sequence[PodCount]) -> list[PodCount]:
    """Return the counts with gang sizes by `workload_kind.together`: that number, less the pods of other templates."""
    needed = plain_number(next((value for _, value in values(data, steps(workload_kind.together))), None))
    running = [count.running for count in counts]
    if needed is None or any(number is None for number in running):
        return list(counts)
    everyone = sum(number or 0 for number in running)
    return [
        replace(
            count,
            gang=max(needed - (everyone - (count.running or 0)), 0) or None,
            number=count.number and replace(count.number, sets_gang=False),
        )
        for count in counts
    ]


def resolved_path(pod_path: PodPath, at: Parts, path: str) -> tuple[str | int, ...]:
    """Return the steps of `path`. Those that it shares with the path of the pods take map keys and list indexes from `at`."""
    own, other = steps(pod_path.path), steps(path, pod_path.path)
    shared = next(
        (n for n, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), min(len(own), len(other))
    )
    return (*at[:shared], *other[shared:])


def follow(
    data: Any, way: Sequence[str | int], at: Parts = (), leaf: type = object
) -> Iterator[tuple[Parts, Any] | Problem]:
    """Yield each value at the end of the steps, with its path. Yield a Problem for each value of the wrong type."""
    if data is None:
        return
    if not way:
        wanted = "text" if leaf is str else "a map"
        yield (at, data) if isinstance(data, leaf) else Problem(at, f"must be {wanted}")
        return
    step, rest = way[0], way[1:]
    if step == EVERY_ITEM or isinstance(step, int):
        if isinstance(data, list):
            for index in (step,) if isinstance(step, int) else range(len(data)):
                yield from follow(data[index], rest, (*at, index), leaf)
        else:
            yield Problem(at, "must be a list")
    elif isinstance(data, dict):
        for key in list(data) if step == EVERY_KEY else (step,):
            yield from follow(data.get(key), rest, (*at, key), leaf)
    else:
        yield Problem(at, "must be a map")


def values(data: Any, way: Sequence[str | int]) -> Iterator[tuple[Parts, Any]]:
    """Yield each value at the end of the steps, with its path. Skip values on the way that are neither map nor list."""
    return (found for found in follow(data, way) if not isinstance(found, Problem))


def first_value(data: Any, pod_path: PodPath, at: Parts, path: str) -> Any:
    """Return the first value at `path` for the pods at `at`, see `resolved_path`."""
    return next((value for _, value in values(data, resolved_path(pod_path, at, path))), None)


def stage_field(workload_kind: WorkloadKind, data: Any) -> str:
    """Return the field by which the pods of the object start in stages, "" if they do not."""
    return next(map(field_path, _paths_with(workload_kind.staged, data)), "")


def has_one_of(wanted: Mapping[str, str], data: Any) -> bool:
    """Whether the object has the value at one of these paths; `*` is any value."""
    return any(True for _ in _paths_with(wanted, data))


def _paths_with(wanted: Mapping[str, str], data: Any) -> Iterator[Parts]:
    return (
        at
        for path, text in wanted.items()
        for at, value in values(data, steps(path))
        if value == text or (text == "*" and value is not None)
    )


def _stopping_fields(workload_kind: WorkloadKind, pod_path: PodPath, data: Any, at: Parts) -> Iterator[str]:
    """Yield the fields that keep the object from creating these pods: `spec.suspend is true`."""
    for path, stopped in workload_kind.stopped.items():
        way = resolved_path(pod_path, at, path)
        if any(step in BRANCHES for step in way):
            continue  # the field belongs to other pods
        value = next((value for _, value in values(data, way)), None)
        written = str(value).lower() if isinstance(value, bool) else value
        if written == stopped or (stopped == "*" and written is not None):
            yield f"{path} is {'set' if stopped == '*' else stopped}"


def _pod_number(running: int, data: Any, pod_path: PodPath, at: Parts) -> PodNumber | None:
    """Return the first field that says there are several, and that is not the size of a group beside its leader."""
    of_gang = [_stated_value(factor, data, pod_path, at)[0] for factor in factors(pod_path.gang)]
    for factor in factors(pod_path.replicas):
        (path, value), pods = _stated_value(factor, data, pod_path, at), _number(factor, data, pod_path, at)
        if path and isinstance(value, int) and pods and pods > 1 and not factor.less:
            low = plain_number(first_value(data, pod_path, at, factor.at_least)) if factor.at_least else None
            return PodNumber(field_path(path), running // pods, low or 1, path in of_gang)
    return None


def _product(texts: tuple[str, ...], data: Any, pod_path: PodPath, at: Parts) -> int | None:
    product: int | None = 1
    for factor in factors(texts):
        number = _number(factor, data, pod_path, at)
        if number is None or product is None:
            return None
        product *= number
    return product


def _number(factor: Factor, data: Any, pod_path: PodPath, at: Parts) -> int | None:
    number = plain_number(_stated_value(factor, data, pod_path, at)[1])
    if number is None:
        return None
    low, high = (
        plain_number(first_value(data, pod_path, at, path)) if path else None
        for path in (factor.at_least, factor.at_most)
    )
    number = max(number, low or 0)
    number = number if high is None else min(number, high)
    if factor.less and first_value(data, pod_path, at, factor.less) is not None:
        number = max(number - 1, 0)
    return number


def _stated_value(factor: Factor, data: Any, pod_path: PodPath, at: Parts) -> tuple[Parts, Any]:
    """Return the first value at a path of the factor, with its path in the object; its default without one."""
    written = (next(values(data, resolved_path(pod_path, at, path)), ((), None)) for path in factor.paths)
    return next((found for found in written if found[1] is not None), ((), factor.default))


def plain_number(value: Any) -> int | None:
    """Return the value as a number of pods or seconds. None for a template parameter, and for a number with too many digits."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _DIGITS:
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 10**_DIGITS else None
