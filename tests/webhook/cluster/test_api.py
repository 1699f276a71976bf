"""The client against a server that misbehaves as API servers do."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, page, status
from webhook.cluster import errors
from webhook.cluster.access import load_access
from webhook.cluster.api import IDENTITIES_PAGE_SIZE, METADATA_LIST, ApiClient, Identity, api_path


class _Named(msgspec.Struct):
    metadata: dict[str, str]


def name_of(raw: msgspec.Raw) -> str | None:
    name = msgspec.json.decode(raw, type=_Named).metadata["name"]
    return None if name == "skipped" else name


def in_turn(*answers: Answer) -> Iterator[Answer]:
    yield from answers


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    answers = in_turn(page(["a", "skipped"], "7", "next"), page(["b"], "7"))
    with ApiServer(tmp_path, lambda _: next(answers)) as server:
        listed = server.client().list("/api/v1/pods", name_of)

    assert (listed.items, listed.resource_version) == (["a", "b"], "7")
    assert [request.query for request in server.requests] == [
        {"limit": "500"},  # no resourceVersion: the newest
        {"limit": "500", "continue": "next"},
    ]


def test_an_expired_list_begins_again_and_never_uses_the_inconsistent_token(tmp_path: Path) -> None:
    expired = Answer(
        b'{"kind":"Status","code":410,"reason":"Expired","metadata":{"continue":"inconsistent"},"message":"too old"}',
        410,
    )
    answers = in_turn(page(["a"], "7", "next"), expired, page(["a"], "9", "then"), page(["c"], "9"))
    with ApiServer(tmp_path, lambda _: next(answers)) as server:
        listed = server.client().list("/api/v1/pods", name_of)

    assert (listed.items, listed.resource_version) == (["a", "c"], "9")
    assert [request.query.get("continue") for request in server.requests] == [None, "next", None, "then"]


def test_pages_of_two_revisions_are_no_list(tmp_path: Path) -> None:
    answers = in_turn(page(["a"], "7", "next"), page(["b"], "8"), page(["a", "b"], "8"))
    with ApiServer(tmp_path, lambda _: next(answers)) as server:
        listed = server.client().list("/api/v1/pods", name_of)

    assert (listed.items, listed.resource_version) == (["a", "b"], "8")


def test_a_list_that_keeps_expiring_is_given_up(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        return status(410, "too old", "Expired") if "continue" in request.query else page(["a"], "7", "next")

    with ApiServer(tmp_path, answer) as server, pytest.raises(errors.Gone) as refused:
        server.client().list("/api/v1/pods", name_of)

    assert str(refused.value) == "the list of /api/v1/pods expired 3 times before its end"


def test_identities_are_listed_in_large_pages_of_metadata(tmp_path: Path) -> None:
    last = Answer(b'{"metadata": {"resourceVersion": "7"}, "items": null}')
    answers = in_turn(page(["a"], "7", "next"), last)
    with ApiServer(tmp_path, lambda _: next(answers)) as server:
        listed = server.client().identities("/api/v1/pods")

    assert (listed.items, listed.resource_version) == ([Identity("a", "a", "7", "team")], "7")
    assert [request.query["limit"] for request in server.requests] == [str(IDENTITIES_PAGE_SIZE)] * 2
    assert {request.headers["Accept"] for request in server.requests} == {METADATA_LIST}


@cases(
    ("body", "why"),
    no_json=(b"<html>", "JSON is malformed: invalid character (byte 0)"),
    no_list=(b'{"items":3}', "Expected `array | null`, got `int` - at `$.items`"),
    cut=(b'{"metadata": {"resourceVersion": "43"}, "items": [', "Input data was truncated"),
    without_a_uid=(
        b'{"metadata": {}, "items": [{"metadata": {"name": "train-0"}}]}',
        "Object missing required field `uid` - at `$.items[0].metadata`",
    ),
)
def test_what_is_no_list_is_an_error_with_its_path(tmp_path: Path, body: bytes, why: str) -> None:
    with ApiServer(tmp_path, lambda _: Answer(body)) as server, pytest.raises(errors.ApiError) as refused:
        server.client().identities("/api/v1/pods")

    assert str(refused.value) == f"the list of /api/v1/pods cannot be read: {why}"


def test_a_list_without_a_revision(tmp_path: Path) -> None:
    answer = page([], "new")
    with ApiServer(tmp_path, lambda _: answer) as server, pytest.raises(errors.ApiError) as refused:
        server.client().revision("/api/v1/pods")

    assert str(refused.value) == (
        "the list of /api/v1/pods cannot be read: invalid literal for int() with base 10: 'new'"
    )


def test_nobody_listens(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: Answer()) as server:
        client = server.client()

    with pytest.raises(errors.Unreachable, match="refused"):
        client.get("/version")


@cases(("method", "calls"), reading_again_changes_nothing=("get", 2), a_write_may_have_happened=("put", 1))
def test_a_connection_that_was_closed_just_now(tmp_path: Path, method: str, calls: int) -> None:
    with ApiServer(tmp_path, lambda _: Answer(cut=True)) as server:
        client = server.client()
        with pytest.raises(errors.Unreachable):
            client.get("/x") if method == "get" else client.put("/x", b"{}")

    assert len(server.requests) == calls


def test_refused_credentials_are_read_again_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    def answer(request: Request) -> Answer:
        return Answer(b"in") if request.headers["Authorization"] == "Bearer new" else status(401, "who?")

    with ApiServer(tmp_path, answer) as server:
        client = ApiClient(load_access(str(server.kubeconfig(tokenFile=str(token)))))
        client._reloaded_at -= 60
        token.write_text("new")

        assert client.get("/version") == b"in"
        token.write_text("revoked")
        assert client.get("/version") == b"in"

    assert [request.headers["Authorization"] for request in server.requests] == [
        "Bearer old",
        "Bearer new",
        "Bearer new",
    ]


def test_credentials_that_cannot_be_read_are_an_error_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    with ApiServer(tmp_path, lambda _: status(401, "who?")) as server:
        access = load_access(str(server.kubeconfig(tokenFile=str(token))))
        client = ApiClient(access)
        client._reloaded_at -= 60
        (tmp_path / "kubeconfig").unlink()
        with pytest.raises(errors.Unauthorized, match="No such file or directory"):
            client.get("/x")
        monkeypatch.setattr(
            access._configuration, "refresh_api_key_hook", lambda _: token.with_suffix(".gone").read_text()
        )
        with pytest.raises(errors.Unauthorized, match=r"the credentials cannot be read: .*token\.gone"):
            client.get("/x")


def test_credentials_that_stay_refused_are_not_tried_for_ever(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: status(401, "who?")) as server:
        client = server.client()
        client._reloaded_at -= 60
        for _ in range(3):
            with pytest.raises(errors.Unauthorized, match=r"who\?"):
                client.get("/version")

    assert len(server.requests) == 4


@cases(
    ("parts", "want"),
    a_collection=(["namespaces", "team", "pods"], "/api/v1/namespaces/team/pods"),
    a_path_is_one_name=(["namespaces", "../../x"], "/api/v1/namespaces/..%2F..%2Fx"),
    no_query=(["namespaces", "a?b#c d%2e"], "/api/v1/namespaces/a%3Fb%23c%20d%252e"),
    a_colon_stays=(["clusterroles", "system:node"], "/api/v1/clusterroles/system:node"),
)
def test_a_name_is_one_step_of_a_path(parts: list[str], want: str) -> None:
    assert api_path("/api/v1", *parts) == want


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_nothing_has_a_name_of_dots(name: str) -> None:
    with pytest.raises(errors.NotFound, match="no object has a path of"):
        api_path("/api/v1", "namespaces", name, "pods")


def test_no_other_place_puts_a_name_into_a_path() -> None:
    unquoted = re.compile(r'f"/apis?/[^"]*/\{\w*(name|namespace|own|claim|secret)\b')
    sources = (Path(__file__).parents[3] / "webhook").rglob("*.py")
    found = [path.name for path in sources if unquoted.search(path.read_text())]
    assert found == []
