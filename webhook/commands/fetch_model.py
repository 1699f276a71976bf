"""`gpu-admission fetch-model`: the command of the init container of model-warming.

Its image has only the packages of deploy/constraints-fetcher.txt: click, msgspec and the client libraries of the sources. So no
module that it imports may import kubernetes, rich or jinja2.
"""

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from policies.models.warming.model_uri import FETCHED, parse_model_uri, redacted
from policies.pods.annotations import BadAnnotation
from policies.pods.quantity import QuantityError, parse_quantity
from webhook.tools.fetch import fetching
from webhook.tools.fetch.report import EXIT_BAD_REQUEST, FetchReport


class _Reporting(click.Command):
    """Reports invalid arguments in the termination message, which `kubectl describe pod` shows."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        uri = next((argument for argument in args if not argument.startswith("-")), "fetch-model")
        try:
            return super().make_context(info_name, args, *rest, **extra)
        except click.UsageError as error:
            FetchReport(redacted(uri)).fail(error.format_message(), EXIT_BAD_REQUEST)


def _parse_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return parse_quantity(text).value if text else None
    except QuantityError as error:
        raise click.BadParameter(str(error)) from None


def _parse_endpoints(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    endpoints = dict(value.partition("=")[::2] for value in values)
    if not endpoints.keys() <= {"s3", "gs"} or not all(endpoints.values()):
        raise click.BadParameter("must be s3=URL or gs=URL")
    return endpoints


def _check_directory(_context: click.Context, _parameter: click.Parameter, path: Path) -> Path:
    if not path.is_absolute() or not path.name:
        raise click.BadParameter("must be an absolute directory other than /")
    return path


_path = click.Path(path_type=Path)
_number = partial(click.option, type=click.IntRange(min=1), show_envvar=True)


@click.command("fetch-model", cls=_Reporting)
@click.argument("uri")
@click.argument("directory", type=_path, callback=_check_directory)
@click.option(
    "--endpoint", metavar="URL", help="Server for s3, gs, hf or models. Default: the server of the provider."
)
@click.option(
    "--artifact-endpoint",
    "endpoints",
    multiple=True,
    metavar="SCHEME=URL",
    callback=_parse_endpoints,
    help="Server for models of an MLflow registry that are in s3 or gs.",
)
@click.option(
    "--claim-mount",
    type=_path,
    default=Path("/source"),
    help="Mount path of the PersistentVolumeClaim of pvc://.",
)
@click.option("--size-limit", metavar="QUANTITY", callback=_parse_size, help="Maximum size of the model.")
@_number("--parallel", envvar="MODEL_PARALLEL", default=4, help="Files fetched concurrently.")
@_number(
    "--attempts",
    envvar="MODEL_ATTEMPTS",
    default=6,
    help="Consecutive failures before giving up. Progress resets the count.",
)
@_number(
    "--lock-wait",
    envvar="MODEL_LOCK_WAIT",
    default=3600,
    help="Seconds to wait for another pod that fetches the model.",
)
def fetch_model(uri: str, directory: Path, lock_wait: int, **options: Any) -> NoReturn:
    """Fetch the model URI into DIRECTORY, unless it is there. Lock, marker and partial files are beside it in .NAME.warming.

    \b
    s3://bucket/prefix      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
                            AWS_SESSION_TOKEN, AWS_REGION
    gs://bucket/prefix      GOOGLE_APPLICATION_CREDENTIALS
    hf://owner/name[@rev]   HF_TOKEN
    https://host/file       MODEL_HTTP_AUTHORIZATION (header value)
    pvc://claim/path        (no credentials)
    models:/name/version    MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME
    models:/name@alias      and MLFLOW_TRACKING_PASSWORD

    An https:// or models:/ URI may end in #sha256=HEX.

    Exit codes: 0 DIRECTORY has the model, 1 failure, 2 invalid arguments, 143 SIGTERM. The next run resumes.
    """  # noqa: D301 - click does not rewrap a paragraph after this mark
    model = parse_model_uri(uri)
    if isinstance(model, BadAnnotation):  # the parser is that of the annotation
        FetchReport(model.value).fail(f"{model.message}; {model.remedy}", EXIT_BAD_REQUEST)
    if model.scheme not in FETCHED:
        FetchReport(model.redacted).fail("is mounted by the kubelet, not fetched", EXIT_BAD_REQUEST)
    endpoint, endpoints = options.pop("endpoint"), options.pop("endpoints")
    endpoints |= {model.scheme: endpoint} if endpoint else {}
    fetching.fetch_model(model, directory, lock_wait, fetching.FetchOptions(endpoints=endpoints, **options))
