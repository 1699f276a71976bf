"""The pod templates of workloads, in CEL: the same table of kinds and paths from which the webhook reads them."""

from collections.abc import Mapping

from webhook.tools.export.cel import Named, present, text, texts
from webhook.tools.export.objects import Object
from webhook.workloads.kinds import Form, Template

Path = tuple[str, ...]
"""Steps from the object to a pod template."""

EVERY_KEY, EVERY_ITEM = "*", "[]"
"""Steps that stand for every value of a map, and for every item of a list."""

BRANCHES = frozenset({EVERY_KEY, EVERY_ITEM})

Kinds = Mapping[tuple[str, str], tuple[Form, ...]]
Paths = Mapping[tuple[str, str], tuple[Path, ...]]

WRITTEN_BY_SOMEBODY: Named = (
    "written-by-somebody",
    "!dyn(object).metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))",
)
"""What a controller makes of another object has been looked at there, and nobody reads a controller's warnings."""


def expressible(kinds: Kinds) -> dict[tuple[str, str], tuple[Path, ...]]:
    """Return the paths to pod templates that CEL can follow: it cannot make one list of lists, so a path may branch once."""
    found = {kind: tuple(path for path in map(_path, forms) if path) for kind, forms in kinds.items()}
    return {kind: paths for kind, paths in found.items() if paths}


def inexpressible(kinds: Kinds) -> list[str]:
    """Return the kinds of which some pods are not found, sorted."""
    return sorted({kind for (_group, kind), forms in kinds.items() if not all(map(_path, forms))})


def _path(form: Form) -> Path | None:
    """Return the way to a pod template; None for a form of another sort, or one out of CEL's reach."""
    steps = tuple(form.path.replace("[]", ".[]").split("."))
    branches = sum(step in BRANCHES for step in steps)
    return steps if isinstance(form, Template) and branches <= 1 else None


def resources(paths: Paths) -> tuple[Object, ...]:
    """Return the resource rules of the kinds; a resource is called like its kind, in the plural."""
    groups: dict[str, list[str]] = {}
    for group, kind in paths:
        groups.setdefault(group, []).append(plural(kind))
    return tuple(
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "resources": sorted(names),
            "operations": ["CREATE", "UPDATE"],
            "scope": "Namespaced",
        }
        for group, names in sorted(groups.items())
    )


def plural(kind: str) -> str:
    """Return what the API calls objects of the kind: deployments, networkpolicies, harnesses."""
    name = kind.lower()
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def variables(paths: Paths) -> tuple[Named, ...]:
    """Return the variables, of which `written` lists the templates that are new: {path, pod}, the path ending in a dot."""
    return (
        ("found", _templates("dyn(object)", paths)),
        ("before", f"request.operation == 'CREATE' ? [] :\n{_templates('dyn(oldObject)', paths)}"),
        ("written", "variables.found.filter(t, !variables.before.exists(old, old.pod == t.pod))"),
    )


def _templates(workload: str, paths: Paths) -> str:
    kinds: dict[tuple[Path, ...], list[str]] = {}
    for (group, kind), places in paths.items():
        kinds.setdefault(places, []).append(f"{group}/{kind}")
    cases = [
        f"request.kind.group + '/' + request.kind.kind in {texts(names)} ?\n  {_union(workload, places)} :"
        for places, names in kinds.items()
    ]
    return "\n".join([*cases, "  []"])


def _union(workload: str, places: tuple[Path, ...]) -> str:
    return " +\n  ".join(_found(workload, place) for place in places)


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
