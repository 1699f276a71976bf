"""Templates, and placeholders in values that a tool replaces before the API server sees the object."""

import re
from collections.abc import Iterator
from typing import Any

from policies.pods.field_paths import Parts

_GO_TEMPLATE_ACTION = re.compile(r"(?:^|[:,\-\[{])[ \t]*\{[{%]", re.MULTILINE)
"""Where a template puts `{{…}}` or `{%…%}` and YAML has a map as a key: unquoted, where a value or a line starts."""

_TEMPLATED = re.compile(r"\{\{|\{%")
"""Forms of Go templates and Jinja."""

_SHELL_VARIABLE = re.compile(r"\$\{|^\$[A-Za-z_]\w*$|^<[^<>]+>$")
"""Forms of envsubst, and `<NAME>` as documentation writes it. `${…}` in command and args is for the shell of the container."""

_TEKTON_REFERENCE = re.compile(r"\$\(")
"""The form of Tekton's parameters. In env, args and command Kubernetes itself expands it."""

_WITH_PARAMETERS = {("", "Template"), ("kubeflow.org", "Experiment")}
"""OpenShift's Template before it had a group; Katib's `${trialParameters.…}`."""

_COMMAND_FIELD = re.compile(r"\.(args|command)\b")
_KUBERNETES_EXPANDS = re.compile(r"\.(args|command|env)\b")

_AMOUNTS = {("limits",), ("requests",)}


def is_template(text: str) -> bool:
    """Whether text that does not parse as YAML looks like a template."""
    return _GO_TEMPLATE_ACTION.search(text) is not None


def is_placeholder(value: Any, path: str = "") -> bool:
    """Whether a tool replaces the value at `path` before the API server sees the object."""
    if not isinstance(value, str):
        return False
    if _TEMPLATED.search(value):
        return True
    if _SHELL_VARIABLE.search(value):
        return not _COMMAND_FIELD.search(path)
    return _TEKTON_REFERENCE.search(value) is not None and not _KUBERNETES_EXPANDS.search(path)


def undecided_amounts(data: Any) -> Iterator[tuple[Parts, str]]:
    """Yield every placeholder that stands for the amount of an extended resource, and its path."""
    rest: list[tuple[Parts, Any]] = [((), data)]
    while rest:
        at, value = rest.pop()
        members = dict(enumerate(value)) if isinstance(value, list) else value
        for key, member in members.items() if isinstance(members, dict) else ():
            if at[-1:] in _AMOUNTS and "/" in str(key) and is_placeholder(member):
                yield (*at, key), member
            rest.append(((*at, key), member))


def has_parameters(group: str, kind: str) -> bool:
    """Whether placeholders in objects of the kind are parameters that its controller fills in."""
    if group == "argoproj.io":
        return kind != "Rollout"
    return group in {"tekton.dev", "template.openshift.io"} or (group, kind) in _WITH_PARAMETERS
