"""Requests made beforehand: what differs between them, and that their length is right."""

from tests.bench.clients import NUMBER, TURN, Plan, requests_of


def plan(**fields: object) -> Plan:
    usual = {
        "host": "127.0.0.1",
        "port": 443,
        "path": "/pods",
        "body": "",
        "requests": 3,
        "clients": 1,
        "ca_file": "",
        "server_name": "x",
    }
    return Plan(**(usual | fields))  # type: ignore[arg-type]


def test_numbers_and_turns_stand_in_path_and_body() -> None:
    made = requests_of(plan(path=f"/namespaces/team-{TURN}/pods", body=f"pod-{NUMBER}", turns=2))

    assert [each.partition(b" HTTP")[0] for each in made] == [
        b"POST /namespaces/team-0000/pods",
        b"POST /namespaces/team-0001/pods",
        b"POST /namespaces/team-0000/pods",
    ]
    assert [each.rpartition(b"\r\n")[2] for each in made] == [b"pod-000000", b"pod-000001", b"pod-000002"]


def test_a_deletion_has_no_body() -> None:
    first = requests_of(plan(method="DELETE", path=f"/pods/{NUMBER}?gracePeriodSeconds=0"))[0]

    assert first.startswith(b"DELETE /pods/000000?gracePeriodSeconds=0 HTTP/1.1\r\n")
    assert first.endswith(b"\r\nContent-Length: 0\r\n\r\n")
