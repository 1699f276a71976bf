"""What `fetch-model` refuses: bad configuration, redirects and names that lead out; and credentials, which it never shows."""

import shutil
from pathlib import Path

import pytest

from tests.cases import cases
from tests.webhook.tools.fetch.conftest import MODEL, WHOLE, Identity, Warmer
from tests.webhook.tools.fetch.servers import Store, serving

pytestmark = [pytest.mark.processes(sentences=True), pytest.mark.usefixtures("url")]

REMOVE = "remove the credentials, and put them into a Secret that the policy names as credentialsSecret of source https"
NO_DIRECTORY = "s3://b/k: Invalid value for 'DIRECTORY': must be an absolute directory other than /"


@cases(
    ("uri", "destination", "options", "problem"),
    plain_http=(
        "http://host/m.bin",
        "/m",
        (),
        "http://host/m.bin: is plain http, over which anyone on the way can replace the model; use https://",
    ),
    credentials_in_the_uri=(
        "https://u:hunter22@host/m.bin",
        "/m",
        (),
        f"https://host/m.bin: holds credentials, which everyone who may see the pod can read; {REMOVE}",
    ),
    signature_in_the_query=(
        "https://host/m?sig=hunter22",
        "/m",
        (),
        "https://host/m: holds a signature or token in its query, which everyone who may see the pod can read; "
        f"{REMOVE}",
    ),
    relative_destination=("s3://b/k", "models", (), NO_DIRECTORY),
    root_destination=("s3://b/k", "/", (), NO_DIRECTORY),
    not_a_number_of_attempts=(
        "s3://b/k",
        "/m",
        ("--attempts=-1",),
        "s3://b/k: Invalid value for '--attempts' (env var: 'MODEL_ATTEMPTS'): -1 is not in the range x>=1.",
    ),
    not_a_quantity=(
        "s3://b/k",
        "/m",
        ("--size-limit=many",),
        "s3://b/k: Invalid value for '--size-limit': \"many\" is not a Kubernetes quantity: expected a number and perhaps a "
        "suffix, such as 2, 500m or 16Gi",
    ),
    unknown_option=("s3://b/k", "/m", ("--no-such",), "s3://b/k: No such option '--no-such'."),
    environment=(
        "s3://b/k",
        "/m",
        (),
        "s3://b/k: Invalid value for '--parallel' (env var: 'MODEL_PARALLEL'): -1 is not in the range x>=1.",
    ),
)
def test_bad_configuration_exits_2(
    warmer: Warmer, *, uri: str, destination: str, options: tuple[str, ...], problem: str
) -> None:
    if destination != "/m":
        warmer.destination = Path(destination)
    if "MODEL_PARALLEL" in problem:
        warmer.environment["MODEL_PARALLEL"] = "-1"

    code, said = warmer.run(uri, *options)

    assert (code, said) == (2, f"failed: {problem}\n")
    assert Path(warmer.environment["MODEL_TERMINATION_LOG"]).read_text() == said.rstrip("\n")
    assert not warmer.state.exists()


def test_credentials_are_never_said_and_do_not_follow_a_redirect(
    warmer: Warmer, url: str, store: Store, authority: Identity
) -> None:
    elsewhere = Store(objects={"/moved/model.bin": MODEL})
    with serving(elsewhere, tls=authority.context) as other:
        store.redirect = f"{other}/moved/model.bin?signature=51gn4tur3"
        code, said = warmer.run(url, MODEL_HTTP_AUTHORIZATION="Bearer t0pS3cret")
        elsewhere.statuses = [403]
        shutil.rmtree(warmer.destination)
        failed = warmer.run(f"{url}?version=t0k3nt0k3n", MODEL_HTTP_AUTHORIZATION="Bearer t0pS3cret")

    assert (code, failed[0]) == (0, 1)
    assert {seen.headers["Authorization"] for seen in store.seen} == {"Bearer t0pS3cret"}
    assert {seen.headers["Authorization"] for seen in elsewhere.seen} == {None}
    for secret in ("t0pS3cret", "t0k3nt0k3n", "51gn4tur3"):
        assert secret not in said + failed[1]


def test_credentials_stay_where_the_redirect_stays(warmer: Warmer, web: str, url: str, store: Store) -> None:
    store.objects["/moved/model.bin"] = MODEL
    store.redirect = f"{web}/moved/model.bin"

    warmer.gets(WHOLE, url, MODEL_HTTP_AUTHORIZATION="Bearer t0pS3cret")
    assert "/moved/model.bin" in {seen.path for seen in store.seen}
    assert {seen.headers["Authorization"] for seen in store.seen} == {"Bearer t0pS3cret"}


def test_a_redirect_away_from_https_is_refused(warmer: Warmer, url: str, store: Store) -> None:
    store.redirect = "http://127.0.0.1:9/model.bin"

    assert warmer.run(url) == (1, f"failed: {url}: redirects away from https\n")


def test_a_name_that_leads_out_is_refused(warmer: Warmer, web: str, store: Store) -> None:
    store.objects["/../../evil"] = b"evil"

    uri = f"{web}/..%2F..%2Fevil"
    said = warmer.fails(uri)

    problem = "has an object named '../../evil', which could lead out of the destination"
    assert said == f"failed: {uri}: {problem}\n"
    assert not list(warmer.destination.parent.rglob("evil"))
