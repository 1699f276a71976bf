import pytest

from webhook.cluster import errors


@pytest.mark.parametrize(
    ("code", "body", "want", "message"),
    [
        pytest.param(400, b'{"message":"bad token"}', errors.ApiError, "bad token", id="bad-request"),
        pytest.param(401, b'{"message":"who?"}', errors.Unauthorized, "who?", id="unauthorized"),
        pytest.param(403, b'{"message":"no"}', errors.Forbidden, "no", id="forbidden"),
        pytest.param(404, b'{"message":"none"}', errors.NotFound, "none", id="not-found"),
        pytest.param(409, b'{"message":"old","reason":"Conflict"}', errors.Conflict, "old", id="conflict"),
        pytest.param(
            409, b'{"message":"is","reason":"AlreadyExists"}', errors.AlreadyExists, "is", id="exists"
        ),
        pytest.param(410, b'{"message":"late","reason":"Expired"}', errors.Gone, "late", id="expired"),
        pytest.param(422, b'{"message":"bad"}', errors.ApiError, "bad", id="invalid"),
        pytest.param(
            418, b'{"message":"tea"}', errors.ApiError, "tea", id="a-code-without-a-type-of-its-own"
        ),
        pytest.param(503, b"<html>proxy</html>", errors.Unavailable, "<html>proxy</html>", id="no-status"),
        pytest.param(404, b"", errors.NotFound, "HTTP 404", id="nothing-said"),
        pytest.param(500, b'{"message":7}', errors.Unavailable, '{"message":7}', id="status-of-other-types"),
    ],
)
def test_every_answer_has_its_type(code: int, body: bytes, want: type[errors.ApiError], message: str) -> None:
    error = errors.of_response(code, body)

    assert type(error) is want
    assert (str(error), error.code) == (message, code)


@pytest.mark.parametrize(
    ("header", "want"),
    [
        pytest.param("7", 7, id="seconds"),
        pytest.param(None, 0, id="none"),
        pytest.param("Fri, 31 Dec 1999 23:59:59 GMT", 0, id="a-date-is-not-for-us"),
        pytest.param("٣", 0, id="digits-of-another-script"),
    ],
)
def test_retry_after(header: str | None, want: int) -> None:
    error = errors.of_response(429, b"", retry_after=header)

    assert isinstance(error, errors.Unavailable)
    assert error.retry_after == want
