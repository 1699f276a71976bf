"""The syntax of Kubernetes names and labels (k8s.io/apimachinery `pkg/util/validation`, v0.36.3), and of paths.

Each docstring names the function of Kubernetes that decides the same.
"""

import posixpath
import re

_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL.pattern}(\.{_DNS_LABEL.pattern})*")
_QUALIFIED_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_KIND = re.compile(r"[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def is_dns_label(name: str) -> bool:
    """Whether this can be the name of a Namespace or a Service (`IsDNS1123Label`)."""
    return len(name) <= _LABEL_LENGTH and _DNS_LABEL.fullmatch(name) is not None


def is_dns_subdomain(name: str) -> bool:
    """Whether this can be the name of most objects, such as a Secret or a DeviceClass (`IsDNS1123Subdomain`)."""
    return len(name) <= _SUBDOMAIN_LENGTH and _DNS_SUBDOMAIN.fullmatch(name) is not None


def is_class_name(name: str) -> bool:
    """Whether this can be the name of a GPUClass or a family: the name of an object and the value of a node label."""
    return len(name) <= _LABEL_LENGTH and is_dns_subdomain(name)


def is_qualified_name(key: str) -> bool:
    """Whether this can be the key of a label, taint or annotation: `[DNS subdomain/]name` (`IsQualifiedName`)."""
    prefix, slash, name = key.rpartition("/")
    return (not slash or is_dns_subdomain(prefix)) and bool(name) and is_label_value(name)


def is_resource_name(name: str) -> bool:
    """Whether this can be the name of an extended resource: a qualified name with a prefix."""
    return "/" in name and is_qualified_name(name)


def is_label_value(value: str) -> bool:
    """Whether this can be the value of a label, which may be empty (`IsValidLabelValue`)."""
    return not value or (len(value) <= _LABEL_LENGTH and _QUALIFIED_NAME.fullmatch(value) is not None)


def is_uid(uid: str) -> bool:
    """Whether this is a UUID (RFC 4122). The API server gives one to every object and review."""
    return _UID.fullmatch(uid) is not None


def is_kind(kind: str) -> bool:
    """Whether this can be the kind of an API: a DNS label, also with capitals (`validateCustomResourceDefinitionNames`)."""
    return len(kind) <= _LABEL_LENGTH and _KIND.fullmatch(kind) is not None


def is_variable_name(name: str) -> bool:
    """Whether this can be the name of an environment variable that shells read (`IsCIdentifier`)."""
    return _VARIABLE_NAME.fullmatch(name) is not None


def is_data_key(key: str) -> bool:
    """Whether this can be a key of a Secret or a ConfigMap (`IsConfigMapKey`)."""
    return len(key) <= _SUBDOMAIN_LENGTH and _DATA_KEY.fullmatch(key) is not None and key not in {".", ".."}


def cleaned_path(path: str) -> str:
    """Return an absolute path as container runtimes clean it: without `.`, `..` and doubled slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))
