"""The pod templates of workloads, in CEL: the same table of kinds and paths from which the webhook reads them."""

from collections import defaultdict

from webhook.tools.export.cel import Named, present, text, texts
from webhook.tools.export.objects import POD_CHANGES, Object
from webhook.workloads.kinds import WORKLOADS, Form, Template

Path = tuple[str, ...]
"""Steps from the object to a pod template."""

EVERY_KEY, EVERY_ITEM = "*", "[]"
"""Steps that stand for every value of a map, and for every item of a list."""

BRANCHES = frozenset({EVERY_KEY, EVERY_ITEM})

WRITTEN_BY_SOMEBODY: Named = (
    "written-by-somebody",
    "!dyn(object).metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))",
)
"""What a controller makes of another object has been looked at there, and nobody reads a controller's warnings."""


def _path(form: Form) -> Path | None:
    """Return the way to a pod template; None for a form of another sort, or one out of CEL's reach."""
    steps = tuple(form.path.replace("[]", ".[]").split("."))
    branches = sum(step in BRANCHES for step in steps)
    return steps if isinstance(form, Template) and branches <= 1 else None


PATHS = {
    kind: paths
    for kind, forms in WORKLOADS.items()
    if (paths := tuple(path for path in map(_path, forms) if path))
}
"""By group and kind, those paths that CEL can follow: it cannot make one list of lists, so a path may branch once."""

INEXPRESSIBLE = sorted({kind for (_, kind), forms in WORKLOADS.items() if not all(map(_path, forms))})
"""The kinds of which some pods are not found."""


def resources() -> tuple[Object, ...]:
    """Return the resource rules of the kinds; a resource is called like its kind, in the plural."""
    groups: dict[str, list[str]] = defaultdict(list)
    for group, kind in PATHS:
        groups[group].append(plural(kind))
    return tuple(
        {**POD_CHANGES, "apiGroups": [group], "apiVersions": ["*"], "resources": sorted(names)}
        for group, names in sorted(groups.items())
    )


def plural(kind: str) -> str:
    """Return what the API calls objects of the kind: deployments, networkpolicies, harnesses."""
    name = kind.lower()
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def variables() -> tuple[Named, ...]:
    """Return the variables, of which `written` lists the templates that are new: {path, pod}, the path ending in a dot."""
    return (
        ("found", _templates("dyn(object)")),
        ("before", f"request.operation == 'CREATE' ? [] :\n{_templates('dyn(oldObject)')}"),
        ("written", "variables.found.filter(t, !variables.before.exists(old, old.pod == t.pod))"),
    )


def _templates(workload: str) -> str:
    kinds: dict[tuple[Path, ...], list[str]] = defaultdict(list)
    for (group, kind), paths in PATHS.items():
        kinds[paths].append(f"{group}/{kind}")
    lines = []
    for paths, names in kinds.items():
        union = " +\n  ".join(_found(workload, path) for path in paths)
        lines.append(f"request.kind.group + '/' + request.kind.kind in {texts(names)} ?\n  {union} :\n")
    return "".join([*lines, "  []"])


def _found(workload: str, place: Path) -> str:
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


def _steps(path: Path) -> str:
    return "".join(f".?{step}" for step in path)
