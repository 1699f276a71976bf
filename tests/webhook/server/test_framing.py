import pytest

from webhook.server.framing import Head, find_head


@pytest.mark.parametrize(
    ("received", "want_size", "want_body"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\nrest", 18, 0, id="no-fields"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n", 39, 12, id="length"),
        pytest.param(b"POST / HTTP/1.1\r\ncontent-length:12 \r\n\r\n", 39, 12, id="length-in-small-letters"),
        pytest.param(b"POST / HTTP/1.1\r\nX-Content-Length: 12\r\n\r\n", 41, 0, id="another-field"),
        pytest.param(b"POST / HTTP/1.1\r\nX: content-length: 3\r\n\r\n", 41, 0, id="inside-a-value"),
        pytest.param(b"POST / HTTP/1.1\r\n\r\nContent-Length: 9\r\n\r\n", 19, 0, id="in-the-body"),
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 47, None, id="chunked"),
        pytest.param(
            b"P / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 54, None, id="repeated"
        ),
        pytest.param(b"P / HTTP/1.1\r\nContent-Length: \xc2\xb2\r\n\r\n", 36, None, id="superscript-two"),
        pytest.param(b"P / HTTP/1.1\r\nContent-Length:\r\n\r\n", 33, None, id="empty"),
    ],
)
def test_head_says_where_the_request_ends(received: bytes, want_size: int, want_body: int | None) -> None:
    want = Head(size=want_size, body=want_body, expects_continue=False)
    assert find_head(bytearray(received)) == want


@pytest.mark.parametrize("length", range(len(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")))
def test_head_is_found_wherever_it_was_cut(length: int) -> None:
    whole = bytearray(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert find_head(whole[:length]) is None
    assert find_head(whole, searched=length) == Head(size=len(whole), body=0, expects_continue=False)


def test_expectation_is_seen() -> None:
    head = find_head(bytearray(b"POST / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 5\r\n\r\n"))
    assert head is not None
    assert (head.expects_continue, head.body) == (True, 5)
