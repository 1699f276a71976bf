"""Where a request ends and what it is, read from its head alone; a head that can be read in two ways is refused."""

import pytest

from tests.cases import cases
from webhook.server.http import HEAD_LIMIT, RefusedError, find_request

LINE = b"POST / HTTP/1.1\r\n"


@cases(
    ("received", "want_size", "want_body"),
    no_fields=(b"GET / HTTP/1.1\r\n\r\nrest", 18, 0),
    length=(b"POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n", 39, 12),
    length_in_small_letters=(b"POST / HTTP/1.1\r\ncontent-length:12 \r\n\r\n", 39, 12),
    another_field=(b"POST / HTTP/1.1\r\nX-Content-Length: 12\r\n\r\n", 41, 0),
    inside_a_value=(b"POST / HTTP/1.1\r\nX: content-length: 3\r\n\r\n", 41, 0),
    in_the_body=(b"POST / HTTP/1.1\r\n\r\nContent-Length: 9\r\n\r\n", 19, 0),
    zeros_in_front=(LINE + b"Content-Length: 007\r\n\r\n", 40, 7),
)
def test_head_says_where_the_request_ends(received: bytes, want_size: int, want_body: int) -> None:
    request = find_request(bytearray(received))
    assert request is not None
    assert (request.head_size, request.body_size) == (want_size, want_body)


BAD_HEAD = (400, "the head of the request is not valid HTTP/1.1\n")
BAD_LENGTH = (400, "the request must have one Content-Length, a number, and no Transfer-Encoding\n")
NO_LENGTH = (411, "say how long the body is: Content-Length is required\n")
LONG_PATH = (414, "the path of the request is longer than this server accepts\n")
LONG_HEAD = (431, "the head of the request is longer than this server accepts\n")


@cases(
    ("head", "want"),
    chunked=(LINE + b"Transfer-Encoding: chunked\r\n\r\n", NO_LENGTH),
    chunked_otherwise_spelt=(LINE + b"transfer-encoding:Chunked\t\r\n\r\n", NO_LENGTH),
    chunked_twice=(LINE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", BAD_LENGTH),
    repeated=(b"P / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", BAD_HEAD),
    superscript_two=(b"P / HTTP/1.1\r\nContent-Length: \xc2\xb2\r\n\r\n", BAD_LENGTH),
    superscript_two_of_latin_1=(b"P / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", BAD_LENGTH),
    empty=(b"P / HTTP/1.1\r\nContent-Length:\r\n\r\n", BAD_LENGTH),
    two_hosts=(LINE + b"Host: a\r\nHost: a\r\n\r\n", BAD_HEAD),
    two_content_types=(LINE + b"Content-Type: a\r\ncontent-type: b\r\n\r\n", BAD_HEAD),
    zero_in_a_value=(LINE + b"X: a\x00\r\n\r\n", BAD_HEAD),
    bare_carriage_return=(LINE + b"X: a\rb\r\n\r\n", BAD_HEAD),
    bare_line_feed=(LINE + b"X: a\nY: b\r\n\r\n", BAD_HEAD),
    folded=(LINE + b"X: a\r\n b\r\n\r\n", BAD_HEAD),
    folded_onto_the_request_line=(LINE + b"\tX: a\r\n\r\n", BAD_HEAD),
    space_before_the_colon=(LINE + b"X : a\r\n\r\n", BAD_HEAD),
    no_colon=(LINE + b"X\r\n\r\n", BAD_HEAD),
    no_name=(LINE + b": a\r\n\r\n", BAD_HEAD),
    name_that_is_not_ascii=(LINE + b"X\xe9: a\r\n\r\n", BAD_HEAD),
    empty_line_in_front=(b"\r\nGET / HTTP/1.1\r\n\r\n", BAD_HEAD),
    method_in_small_letters=(b"get / HTTP/1.1\r\n\r\n", BAD_HEAD),
    method_that_is_not_ascii=(b"G\xffT / HTTP/1.1\r\n\r\n", BAD_HEAD),
    two_spaces=(b"GET  / HTTP/1.1\r\n\r\n", BAD_HEAD),
    space_in_the_path=(b"GET /a b HTTP/1.1\r\n\r\n", BAD_HEAD),
    path_that_is_not_ascii=(b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n", BAD_HEAD),
    fragment=(b"GET /#a HTTP/1.1\r\n\r\n", BAD_HEAD),
    as_to_a_proxy=(b"GET http://a/ HTTP/1.1\r\n\r\n", BAD_HEAD),
    connect=(b"CONNECT a:1 HTTP/1.1\r\n\r\n", BAD_HEAD),
    space_after_the_version=(b"GET / HTTP/1.1 \r\n\r\n", BAD_HEAD),
    version_2=(b"GET / HTTP/2.0\r\n\r\n", BAD_HEAD),
    version_0_9=(b"GET /\r\n\r\n", BAD_HEAD),
    preface_of_version_2=(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD_HEAD),
    path_too_long=(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", LONG_PATH),
    too_many_fields=(LINE + b"a:\r\n" * 101 + b"\r\n", LONG_HEAD),
    head_too_long=(LINE + b"a:" + b"b" * HEAD_LIMIT + b"\r\n\r\n", LONG_HEAD),
    no_end_in_sight=(b"\r\n" + b"a" * HEAD_LIMIT, LONG_HEAD),
)  # fmt: skip
def test_head_that_leaves_a_doubt_is_refused(head: bytes, want: tuple[int, str]) -> None:
    with pytest.raises(RefusedError) as refused:
        find_request(bytearray(head))
    response = refused.value.response
    assert (response.status, response.body.decode()) == want


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


@cases(
    ("head", "want"),
    kept=(b"GET / HTTP/1.1\r\n\r\n", True),
    close=(b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", False),
    close_among_others=(b"GET / HTTP/1.1\r\nConnection: te, close\r\n\r\n", False),
    version_1_0=(b"GET / HTTP/1.0\r\n\r\n", False),
    version_1_0_kept=(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
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
