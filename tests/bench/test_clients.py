"""Requests made beforehand: what differs between them, and that their length is right."""

from tests.bench.clients import NUMBER, TURN, Plan, requests_of


def test_numbers_and_turns_stand_in_path_and_body() -> None:
    path, body = f"/namespaces/team-{TURN}/pods", f"pod-{NUMBER}"
    plan = Plan(
        host="", port=443, path=path, body=body, requests=3, clients=1, ca_file="", server_name="", turns=2
    )

    made = [each.split(b"\r\n") for each in requests_of(plan)]

    assert [(head, length, body) for head, *_, length, _, body in made] == [
        (
            f"POST /namespaces/team-{turn:04}/pods HTTP/1.1".encode(),
            b"Content-Length: 10",
            f"pod-{number:06}".encode(),
        )
        for number, turn in enumerate((0, 1, 0))
    ]
