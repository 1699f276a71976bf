"""Options of `controller` for certificates."""

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import click
from prometheus_client import CollectorRegistry

from certs.rotation import Terms
from policies.pods.names import is_dns_subdomain
from webhook.certificates.objects import SecretName
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import service_names
from webhook.controller.certificate_loop import CertificateLoop

_DEFAULTS = Terms(names=())
_DAY, _SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)
_LIFETIME = "Lifetime of {}; renewed after two thirds of it."
_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


class CertificateOptions(NamedTuple):
    """As given; `secret` is None where this controller does not manage certificates."""

    secret: str | None
    names: tuple[str, ...]
    ca_days: float
    leaf_days: float
    propagation_seconds: float
    retirement_seconds: float

    def loop(self, api: ApiClient, namespace: str, registry: CollectorRegistry) -> CertificateLoop | None:
        """Return the certificate loop; `namespace` is for a Secret's name without one."""
        if self.secret is None:
            return None
        secret = SecretName.of(self.secret, namespace)
        terms = Terms(
            names=self.names or service_names(secret.namespace),
            authority_lifetime=dt.timedelta(days=self.ca_days),
            leaf_lifetime=dt.timedelta(days=self.leaf_days),
            propagation=dt.timedelta(seconds=self.propagation_seconds),
            retirement=dt.timedelta(seconds=self.retirement_seconds),
        )
        return CertificateLoop(api, secret, terms, registry)


def certificate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as `certificates`, a CertificateOptions."""

    @functools.wraps(command)
    def packed(**given: Any) -> Any:
        values = {name: given.pop(f"certificate_{name}") for name in CertificateOptions._fields}
        return command(**given, certificates=CertificateOptions(**values))

    decorated: Callable[..., Any] = packed
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _dns_names(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for name in given:
        if not is_dns_subdomain(name):
            raise click.BadParameter(f'"{name}" is not a valid DNS name')
    return given


def _duration(flag: str, default: dt.timedelta, unit: dt.timedelta, least: float, text: str) -> _Option:
    return click.option(
        flag,
        f"certificate_{flag[2:].replace('-', '_')}",
        default=default / unit,
        show_default=True,
        type=click.FloatRange(min=least),
        help=text,
    )


_OPTIONS = (
    click.option(
        "--certificate-secret",
        metavar="[NAMESPACE/]NAME",
        help="Manage authority and certificate of the webhook in this Secret, and the caBundles of zz-gpu-admission.",
    ),
    click.option(
        "--certificate-name",
        "certificate_names",
        metavar="DNS",
        multiple=True,
        callback=_dns_names,
        help="DNS name in the certificate (repeatable); left out: those of the Service gpu-admission in the Secret's namespace.",
    ),
    _duration(
        "--ca-days", _DEFAULTS.authority_lifetime, _DAY, 2.0, _LIFETIME.format("a certificate authority")
    ),
    # Certificates are valid from an hour before, which is part of their lifetime.
    _duration("--leaf-days", _DEFAULTS.leaf_lifetime, _DAY, 1.0, _LIFETIME.format("a certificate")),
    _duration(
        "--propagation-seconds",
        _DEFAULTS.propagation,
        _SECOND,
        0.0,
        "Time for every API server to load a new authority before it issues certificates.",
    ),
    _duration(
        "--retirement-seconds",
        _DEFAULTS.retirement,
        _SECOND,
        0.0,
        "Time for every server to load its certificate before the old authority is dropped.",
    ),
)
