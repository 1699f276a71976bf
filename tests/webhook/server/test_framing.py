"""Where a request ends and what it is, read from its head alone; a head that can be read in two ways is refused."""

import pytest

from webhook.server.http import HEAD_LIMIT, RefusedError, find_request

LINE = b"POST / HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("received", "want_size", "want_body"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\nrest", 18, 0, id="no-fields"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n", 39, 12, id="length"),
        pytest.param(b"POST / HTTP/1.1\r\ncontent-length:12 \r\n\r\n", 39, 12, id="length-in-small-letters"),
        pytest.param(b"POST / HTTP/1.1\r\nX-Content-Length: 12\r\n\r\n", 41, 0, id="another-field"),
        pytest.param(b"POST / HTTP/1.1\r\nX: content-length: 3\r\n\r\n", 41, 0, id="inside-a-value"),
        pytest.param(b"POST / HTTP/1.1\r\n\r\nContent-Length: 9\r\n\r\n", 19, 0, id="in-the-body"),
        pytest.param(LINE + b"Content-Length: 007\r\n\r\n", 40, 7, id="zeros-in-front"),
    ],
)
def test_head_says_where_the_request_ends(received: bytes, want_size: int, want_body: int) -> None:
    request = find_request(bytearray(received))
    assert request is not None
    assert (request.head_size, request.body_size) == (want_size, want_body)


@pytest.mark.parametrize(
    ("head", "want_status"),
    [
        pytest.param(LINE + b"Transfer-Encoding: chunked\r\n\r\n", 411, id="chunked"),
        pytest.param(LINE + b"transfer-encoding:Chunked\t\r\n\r\n", 411, id="chunked-otherwise-spelt"),
        pytest.param(LINE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400, id="chunked-twice"),
        pytest.param(b"P / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400, id="repeated"),
        pytest.param(b"P / HTTP/1.1\r\nContent-Length: \xc2\xb2\r\n\r\n", 400, id="superscript-two"),
        pytest.param(b"P / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400, id="superscript-two-of-latin-1"),
        pytest.param(b"P / HTTP/1.1\r\nContent-Length:\r\n\r\n", 400, id="empty"),
        pytest.param(LINE + b"Host: a\r\nHost: a\r\n\r\n", 400, id="two-hosts"),
        pytest.param(LINE + b"Content-Type: a\r\ncontent-type: b\r\n\r\n", 400, id="two-content-types"),
        pytest.param(LINE + b"X: a\x00\r\n\r\n", 400, id="zero-in-a-value"),
        pytest.param(LINE + b"X: a\rb\r\n\r\n", 400, id="bare-carriage-return"),
        pytest.param(LINE + b"X: a\nY: b\r\n\r\n", 400, id="bare-line-feed"),
        pytest.param(LINE + b"X: a\r\n b\r\n\r\n", 400, id="folded"),
        pytest.param(LINE + b"\tX: a\r\n\r\n", 400, id="folded-onto-the-request-line"),
        pytest.param(LINE + b"X : a\r\n\r\n", 400, id="space-before-the-colon"),
        pytest.param(LINE + b"X\r\n\r\n", 400, id="no-colon"),
        pytest.param(LINE + b": a\r\n\r\n", 400, id="no-name"),
        pytest.param(LINE + b"X\xe9: a\r\n\r\n", 400, id="name-that-is-not-ascii"),
        pytest.param(b"\r\nGET / HTTP/1.1\r\n\r\n", 400, id="empty-line-in-front"),
        pytest.param(b"get / HTTP/1.1\r\n\r\n", 400, id="method-in-small-letters"),
        pytest.param(b"G\xffT / HTTP/1.1\r\n\r\n", 400, id="method-that-is-not-ascii"),
        pytest.param(b"GET  / HTTP/1.1\r\n\r\n", 400, id="two-spaces"),
        pytest.param(b"GET /a b HTTP/1.1\r\n\r\n", 400, id="space-in-the-path"),
        pytest.param(b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n", 400, id="path-that-is-not-ascii"),
        pytest.param(b"GET /#a HTTP/1.1\r\n\r\n", 400, id="fragment"),
        pytest.param(b"GET http://a/ HTTP/1.1\r\n\r\n", 400, id="as-to-a-proxy"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\n\r\n", 400, id="connect"),
        pytest.param(b"GET / HTTP/1.1 \r\n\r\n", 400, id="space-after-the-version"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", 400, id="version-2"),
        pytest.param(b"GET /\r\n\r\n", 400, id="version-0.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="preface-of-version-2"),
        pytest.param(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 414, id="path-too-long"),
        pytest.param(LINE + b"a:\r\n" * 101 + b"\r\n", 431, id="too-many-fields"),
        pytest.param(LINE + b"a:" + b"b" * HEAD_LIMIT + b"\r\n\r\n", 431, id="head-too-long"),
        pytest.param(b"\r\n" + b"a" * HEAD_LIMIT, 431, id="no-end-in-sight"),
    ],
)  # fmt: skip
def test_head_that_leaves_a_doubt_is_refused(head: bytes, want_status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        find_request(bytearray(head))
    assert refused.value.response.status == want_status


@pytest.mark.parametrize("length", range(len(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")))
def test_head_is_found_wherever_it_was_cut(length: int) -> None:
    whole = bytearray(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert find_request(whole[:length]) is None
    request = find_request(whole)
    assert request is not None
    assert (request.head_size, request.headers) == (len(whole), {"host": "a"})


def test_expectation_is_seen() -> None:
    request = find_request(bytearray(b"POST / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 5\r\n\r\n"))
    assert request is not None
    assert (request.expects_continue, request.body_size) == (True, 5)


def test_length_that_no_memory_holds_is_still_a_number() -> None:
    request = find_request(bytearray(LINE + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"))
    assert request is not None
    assert request.body_size > 2**62


@pytest.mark.parametrize(
    ("head", "want"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", True, id="kept"),
        pytest.param(b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", False, id="close"),
        pytest.param(b"GET / HTTP/1.1\r\nConnection: te, close\r\n\r\n", False, id="close-among-others"),
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", False, id="version-1.0"),
        pytest.param(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, id="version-1.0-kept"),
    ],
)
def test_connection_is_kept_as_long_as_nobody_objects(head: bytes, want: bool) -> None:
    request = find_request(bytearray(head))
    assert request is not None
    assert request.keep_alive is want


def test_request_is_taken_apart() -> None:
    head = b"POST /mutate/a%20b?timeout=5s?&x HTTP/1.1\r\nAccept: a \r\naccept:\tb\r\nX_Y:\r\n\r\n"
    request = find_request(bytearray(head))
    assert request is not None
    assert (request.method, request.path, request.query) == ("POST", "/mutate/a%20b", "timeout=5s?&x")
    assert request.headers == {"accept": "a, b", "x_y": ""}
