from tests.cases import cases
from webhook.cluster import errors


@cases(
    ("code", "body", "want", "message"),
    bad_request=(400, b'{"message":"bad token"}', errors.ApiError, "bad token"),
    unauthorized=(401, b'{"message":"who?"}', errors.Unauthorized, "who?"),
    forbidden=(403, b'{"message":"no"}', errors.Forbidden, "no"),
    not_found=(404, b'{"message":"none"}', errors.NotFound, "none"),
    conflict=(409, b'{"message":"old","reason":"Conflict"}', errors.Conflict, "old"),
    exists=(409, b'{"message":"is","reason":"AlreadyExists"}', errors.AlreadyExists, "is"),
    expired=(410, b'{"message":"late","reason":"Expired"}', errors.Gone, "late"),
    invalid=(422, b'{"message":"bad"}', errors.Invalid, "bad"),
    a_code_without_a_type_of_its_own=(418, b'{"message":"tea"}', errors.ApiError, "tea"),
    no_status=(503, b"<html>proxy</html>", errors.Unavailable, "<html>proxy</html>"),
    nothing_said=(404, b"", errors.NotFound, "HTTP 404"),
    status_of_other_types=(500, b'{"message":7}', errors.Unavailable, '{"message":7}'),
)
def test_every_answer_has_its_type(code: int, body: bytes, want: type[errors.ApiError], message: str) -> None:
    error = errors.of_response(code, body)

    assert type(error) is want
    assert str(error) == message
