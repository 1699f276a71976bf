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


def extended_amounts(data: Any, at: Parts = ()) -> Iterator[tuple[Parts, Any]]:
    """Yield the path and the value of every amount of an extended resource in plain data."""
    members = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in members:
        if at[-1:] in {("limits",), ("requests",)} and "/" in str(key):
            yield (*at, key), value
        yield from extended_amounts(value, (*at, key))


def has_parameters(group: str, kind: str) -> bool:
    """Whether placeholders in objects of the kind are parameters that its controller fills in."""
    if group == "argoproj.io":
        return kind != "Rollout"
    return group in {"tekton.dev", "template.openshift.io"} or (group, kind) in _WITH_PARAMETERS
