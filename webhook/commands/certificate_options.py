"""Options of `controller` for certificates."""

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

import click

from certs.rotation import Terms
from policies.pods.names import is_dns_subdomain

_DEFAULTS = Terms(names=())
_DAY, _SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)


def _dns_names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if not is_dns_subdomain(name):
            raise click.BadParameter(f'"{name}" is not a valid DNS name')
    return given


def _duration(flag: str, default: float, least: float, text: str) -> Callable[..., Any]:
    return click.option(flag, default=default, show_default=True, type=click.FloatRange(min=least), help=text)


def certificate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as `certificates`: the name of the Secret, None without one, and Terms."""

    @click.option(
        "--certificate-secret",
        metavar="[NAMESPACE/]NAME",
        help="Keep the webhook's certificate in this Secret, its authority in gpu-admission-ca beside it, and the caBundles of "
        "zz-gpu-admission.",
    )
    @click.option(
        "--certificate-name",
        "certificate_names",
        metavar="DNS",
        multiple=True,
        callback=_dns_names,
        help="DNS name in the certificate (repeatable); left out: those of the Service gpu-admission in the Secret's namespace.",
    )
    @_duration(
        "--ca-days",
        _DEFAULTS.authority_lifetime / _DAY,
        2.0,
        "Lifetime of a certificate authority; renewed after two thirds of it.",
    )
    # Certificates are valid from an hour before, which is part of their lifetime.
    @_duration(
        "--leaf-days",
        _DEFAULTS.leaf_lifetime / _DAY,
        1.0,
        "Lifetime of a certificate; renewed after two thirds of it.",
    )
    @_duration(
        "--propagation-seconds",
        _DEFAULTS.propagation / _SECOND,
        0.0,
        "Time for every API server to load a new authority before it issues certificates.",
    )
    @_duration(
        "--retirement-seconds",
        _DEFAULTS.retirement / _SECOND,
        0.0,
        "Time for every server to load its certificate before the old authority is dropped.",
    )
    @functools.wraps(command)
    def packed(
        certificate_secret: str | None,
        certificate_names: tuple[str, ...],
        ca_days: float,
        leaf_days: float,
        propagation_seconds: float,
        retirement_seconds: float,
        **given: Any,
    ) -> Any:
        terms = Terms(
            names=certificate_names,
            authority_lifetime=ca_days * _DAY,
            leaf_lifetime=leaf_days * _DAY,
            propagation=propagation_seconds * _SECOND,
            retirement=retirement_seconds * _SECOND,
        )
        return command(**given, certificates=(certificate_secret, terms))

    decorated: Callable[..., Any] = packed
    return decorated
