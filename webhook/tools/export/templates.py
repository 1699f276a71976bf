"""The pod templates of workloads, in CEL: the same table of kinds and paths from which the webhook reads them."""

from collections import defaultdict

from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import (
    BRANCHES,
    EVERY_ITEM,
    EVERY_KEY,
    PodForm,
    PodPath,
    Steps,
    WorkloadKind,
    steps,
)
from webhook.tools.export.cel import Named, present, text, texts
from webhook.tools.export.objects import POD_CHANGES, Object

WRITTEN_BY_SOMEBODY: Named = (
    "written-by-somebody",
    "!dyn(object).metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))",
)
"""What a controller makes of another object has been reviewed there, and nobody reads a controller's warnings."""


def _way(form: PodPath) -> Steps | None:
    """Return the way to a pod template; None for another form, or out of CEL's reach: it cannot make one list of lists."""
    way = steps(form.path)
    branches = sum(step in BRANCHES for step in way)
    return way if form.form is PodForm.TEMPLATE and branches <= 1 else None


def _paths(kind: WorkloadKind) -> tuple[Steps, ...]:
    """Return the ways that CEL can follow, without those that lead where another leads as well."""
    found = [way for form in kind.pods if (way := _way(form))]
    return tuple(way for way in found if not any(_covers(other, way) for other in found if other != way))


def _covers(wide: Steps, narrow: Steps) -> bool:
    pairs = zip(wide, narrow, strict=False)
    return len(wide) == len(narrow) and all(a in {b, EVERY_KEY} for a, b in pairs)


# The built-in kinds: what is exported holds while nobody reads documents.
_KINDS = load_directory(None).workload_kinds

PATHS = {key: paths for key, kind in _KINDS.items() if (paths := _paths(kind))}
"""By group and kind, those paths that CEL can follow."""

INEXPRESSIBLE = sorted({kind.kind for kind in _KINDS.values() if not all(map(_way, kind.pods))})
"""The kinds of which some pods are not found."""


def resources() -> tuple[Object, ...]:
    """Return the resource rules of the kinds; a resource is called like its kind, in the plural."""
    groups: dict[str, list[str]] = defaultdict(list)
    for group, kind in PATHS:
        groups[group].append(_KINDS[group, kind].plural)
    return tuple(
        {**POD_CHANGES, "apiGroups": [group], "apiVersions": ["*"], "resources": sorted(names)}
        for group, names in sorted(groups.items())
    )


def variables() -> tuple[Named, ...]:
    """Return the variables, of which `written` lists the templates that are new: {path, pod}, the path ending in a dot."""
    return (
        ("found", _templates("dyn(object)")),
        ("before", f"request.operation == 'CREATE' ? [] :\n{_templates('dyn(oldObject)')}"),
        ("written", "variables.found.filter(t, !variables.before.exists(old, old.pod == t.pod))"),
    )


def _templates(workload: str) -> str:
    kinds: dict[tuple[Steps, ...], list[str]] = defaultdict(list)
    for (group, kind), paths in PATHS.items():
        kinds[paths].append(f"{group}/{kind}")
    lines = []
    for paths, names in kinds.items():
        union = " +\n  ".join(_found(workload, path) for path in paths)
        lines.append(f"request.kind.group + '/' + request.kind.kind in {texts(names)} ?\n  {union} :\n")
    return "".join([*lines, "  []"])


def _found(workload: str, place: Steps) -> str:
    """Return the list of what stands at the place: {path, pod}."""
    branch = next((at for at, step in enumerate(place) if step in BRANCHES), None)
    if branch is None:
        at = f"{workload}{_steps(place)}"
        path = text(f"{'.'.join(place)}.")
        return f"({at}.hasValue() ? [{{'path': dyn({path}), 'pod': dyn({at}.value())}}] : [])"
    trunk, rest = place[:branch], place[branch + 1 :]
    before, after = ".".join(trunk), ".".join(("", *rest, ""))
    at, nothing, path = f"v{_steps(rest)}", "{}", f"{text(f'{before}.')} + k + {text(after)}"
    if place[branch] == EVERY_ITEM:
        nothing, path = "[]", f"{text(f'{before}[')} + string(k) + {text(f']{after}')}"
    return (
        f"{present(workload + _steps(trunk), nothing)}.transformList(k, v, {at}.hasValue(),\n"
        f"    {{'path': dyn({path}), 'pod': dyn({at}.value())}})"
    )


def _steps(path: Steps) -> str:
    return "".join(f".?{step}" for step in path)
