"""The syntax of Kubernetes names and labels (k8s.io/apimachinery `pkg/util/validation`, v0.37.2), and of paths.

Docstrings name the Kubernetes function that decides the same, where there is one.
"""

import posixpath
import re
from collections.abc import Callable

_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_NAME = r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?"


def _syntax(pattern: str, longest: int = _SUBDOMAIN_LENGTH) -> Callable[[str], bool]:
    matches = re.compile(pattern).fullmatch
    return lambda text: len(text) <= longest and matches(text) is not None


is_dns_label = _syntax(_DNS_LABEL, _LABEL_LENGTH)
"""Whether this can be the name of a Namespace or a Service (`IsDNS1123Label`)."""
is_dns_subdomain = _syntax(_SUBDOMAIN)
"""Whether this can be the name of most objects, such as a Secret or a DeviceClass (`IsDNS1123Subdomain`)."""
is_class_name = _syntax(_SUBDOMAIN, _LABEL_LENGTH)
"""Whether this can be the name of a GPUClass or a family: the name of an object and the value of a node label."""
is_label_value = _syntax(rf"({_NAME})?", _LABEL_LENGTH)
"""Whether this can be the value of a label, which may be empty (`IsValidLabelValue`)."""
is_uid = _syntax(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""Whether this is a UUID (RFC 4122). The API server gives one to every object and review."""
is_kind = _syntax(r"[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?", _LABEL_LENGTH)
"""Whether this can be the kind of an API: a DNS label, also with capitals (`validateCustomResourceDefinitionNames`)."""
is_data_key = _syntax(r"(?!\.\.?$)[-._a-zA-Z0-9]+")
"""Whether this can be a key of a Secret or a ConfigMap (`IsConfigMapKey`)."""

is_qualified_name = _syntax(
    rf"((?=.{{1,{_SUBDOMAIN_LENGTH}}}/){_SUBDOMAIN}/)?(?=.{{1,{_LABEL_LENGTH}}}$){_NAME}",
    _SUBDOMAIN_LENGTH + len("/") + _LABEL_LENGTH,
)
"""Whether this can be the key of a label, taint or annotation: `[DNS subdomain/]name` (`IsQualifiedName`)."""


def is_resource_name(name: str) -> bool:
    """Whether this can be the name of an extended resource: a qualified name with a prefix."""
    return "/" in name and is_qualified_name(name)


def is_variable_name(name: str) -> bool:
    """Whether this can be the name of an environment variable that shells read (`IsCIdentifier`)."""
    return name.isascii() and name.isidentifier()


def cleaned_path(path: str) -> str:
    """Return an absolute path as container runtimes clean it: without `.`, `..` and doubled slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))
