"""Options of `controller` for certificates."""

import dataclasses
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

# Flag, field of Terms, unit, least number of units, help.
_DURATIONS = (
    ("--ca-days", "authority_lifetime", _DAY, 2.0, _LIFETIME.format("a certificate authority")),
    # Certificates are valid from an hour before, which is part of their lifetime.
    ("--leaf-days", "leaf_lifetime", _DAY, 1.0, _LIFETIME.format("a certificate")),
    (
        "--propagation-seconds",
        "propagation",
        _SECOND,
        0.0,
        "Time for every API server to load a new authority before it issues certificates.",
    ),
    (
        "--retirement-seconds",
        "retirement",
        _SECOND,
        0.0,
        "Time for every server to load its certificate before the old authority is dropped.",
    ),
)


class CertificateOptions(NamedTuple):
    """As given; `secret` is None where this controller does not manage certificates."""

    secret: str | None
    terms: Terms

    def loop(self, api: ApiClient, namespace: str, registry: CollectorRegistry) -> CertificateLoop | None:
        """Return the certificate loop; `namespace` is for a Secret's name without one."""
        if self.secret is None:
            return None
        secret = SecretName.of(self.secret, namespace)
        terms = dataclasses.replace(self.terms, names=self.terms.names or service_names(secret.namespace))
        return CertificateLoop(api, secret, terms, registry)


def certificate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as `certificates`, a CertificateOptions."""

    @functools.wraps(command)
    def packed(certificate_secret: str | None, certificate_names: tuple[str, ...], **given: Any) -> Any:
        durations = {field: given.pop(field) * unit for _, field, unit, *_ in _DURATIONS}
        terms = Terms(names=certificate_names, **durations)
        return command(**given, certificates=CertificateOptions(certificate_secret, terms))

    decorated: Callable[..., Any] = packed
    for flag, field, unit, least, text in reversed(_DURATIONS):
        default, allowed = getattr(_DEFAULTS, field) / unit, click.FloatRange(min=least)
        option = click.option(flag, field, default=default, show_default=True, type=allowed, help=text)
        decorated = option(decorated)
    return _SECRET(_NAMES(decorated))


def _dns_names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if not is_dns_subdomain(name):
            raise click.BadParameter(f'"{name}" is not a valid DNS name')
    return given


_SECRET = click.option(
    "--certificate-secret",
    metavar="[NAMESPACE/]NAME",
    help="Keep the webhook's certificate in this Secret, its authority in gpu-admission-ca beside it, and the caBundles of "
    "zz-gpu-admission.",
)
_NAMES = click.option(
    "--certificate-name",
    "certificate_names",
    metavar="DNS",
    multiple=True,
    callback=_dns_names,
    help="DNS name in the certificate (repeatable); left out: those of the Service gpu-admission in the Secret's namespace.",
)
