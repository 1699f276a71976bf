"""Files that nobody wrote for a command to read: it says in words what is wrong with one, and ends with exit status 2."""

import gc
import gzip
import os
import random
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import yaml
from click.testing import CliRunner, Result
from urllib3.util import connection

from certs.files import ensure_self_signed
from certs.issue import issue_ca, issue_server
from tests.seed import SAID, SEED
from webhook.commands import main
from webhook.prometheus.client import Prometheus, PrometheusError
from webhook.server.settings import StartupError
from webhook.server.tls import ServingCertificate

EXAMPLES = Path(__file__).parents[3] / "examples"
CLUSTER = {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "it",
    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "ml"}}],
    "clusters": [{"name": "it", "cluster": CLUSTER}],
    "users": [{"name": "it", "user": {"token": "secret", "username": "a", "password": "b"}}],
}
PRICES = b"currency: EUR\ndefault: 2.50\nclasses: {nvidia-l4: 0.80, nvidia-h100: 4}\n"
AUDIT = (
    b'{"time":"2026-11-21T12:00:00.000Z","phase":"count","kind":"Pod","namespace":"ml","name":"train","verdict":"held",'
    b'"replica":"a","objectUid":"u","owner":"Job/train","since":"2026-11-21T11:00:00Z","class":"nvidia-l4","demand":{"gpus":"1"}}\n'
    b'{"time":"2026-11-21T13:00:00.000Z","phase":"validate","kind":"Pod","verdict":"denied","namespace":"ml","name":"x",'
    b'"user":"ana","operation":"CREATE","findings":[{"rule":"gpu-quota","reason":"QuotaExceeded","outcome":"denied"}]}\n'
)
CONFIG_JSON = (
    b'{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}'
)


class Surface(NamedTuple):
    """A file that a command reads: its name, valid contents, and the commands. `{}` is its path, `{}/` its folder.

    any_text: whether text without any meaning is no error, as lines of a log.
    """

    name: str
    contents: Sequence[bytes]
    commands: Sequence[str]
    any_text: bool = False


def examples(*folders: str) -> list[bytes]:
    return [path.read_bytes() for folder in folders for path in sorted((EXAMPLES / folder).glob("*.yaml"))]


SURFACES = {
    "kubeconfig": Surface(
        "config",
        [yaml.safe_dump(KUBECONFIG).encode(), yaml.safe_dump(KUBECONFIG, default_flow_style=True).encode()],
        [
            "status --kubeconfig {}", "quota --kubeconfig {}", "why --kubeconfig {}", "config --kubeconfig {}",
            "classes --kubeconfig {}", "doctor --kubeconfig {}", "scan --kubeconfig {}", "canary --kubeconfig {}",
            "pause default --for 1h --reason x --kubeconfig {}", "release --all --kubeconfig {}",
            "certs show --kubeconfig {}", "rightsize --kubeconfig {} --prometheus-url http://127.0.0.1:9",
            "check --kubeconfig {} " + str(EXAMPLES / "workloads" / "pod-cpu.yaml"), "status --context it --kubeconfig {}",
        ],
    ),
    "prices": Surface("prices.yaml", [PRICES], ["usage --prices {} /dev/null"]),
    "an audit log": Surface("audit.log", [AUDIT], ["usage --by owner {}", "usage -o csv {}", "usage -o json {}"], any_text=True),
    "a compressed audit log": Surface("audit.log.gz", [gzip.compress(AUDIT)], ["usage --by user {}"], any_text=True),
    "documents": Surface(
        "policy.yaml",
        examples("policies", "policies-host-resources", "quotas", "teams", "queue"),
        ["config {}", "config {}/", "check --config {} -"],
    ),
    "manifests": Surface(
        "pod.yaml",
        examples("workloads", "nodes", "argocd", "ci"),
        ["check {}", "check {}/", "check --fix --yes {}", "check -o lines {}", "check -o yaml {}"],
        any_text=True,  # other documents than objects are counted
    ),
    "a model's config.json": Surface("config.json", [CONFIG_JSON], ["estimate --params 7b --config-json {}"]),
}  # fmt: skip
TOKENS = [
    b"", b"\x00", b"\xff\xfe", b"\xc3(", b"\x1b[2J", "\u202e\u2028".encode(), b"&a [*a]", b"*b", b"<<: *a", b"!!binary eA==",
    b"!!python/object/apply:os.getcwd []", b"!x", b"[" * 300, b"{a: " * 200, b"1e999", b"-0x1", b"9" * 5000, b".nan", b"~",
    b"null", b"[]", b"{}", b"- ", b": ", b"\t", b"\r", b"\n---\n", b"...", b"%YAML 9.9\n---\n", b"'", b'"', b"|", b"#",
    b"x" * 70_000, b"2026-13-45", b"true", b"0", b"-1", b"\n", b"  ", b"!", b"@", b"`", b"? ", b"\xef\xbb\xbf", b"ed\xed\xa0\x80",
]  # fmt: skip
ALIASES = b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (c, c, c - 1, c - 1) for c in range(98, 120))
NESTED = {
    "flow": b"[" * 50_000,
    "maps": b'{"a":' * 50_000,
    "block": b"".join(b" " * n + b"a:\n" for n in range(600)),
}
FLOW_LEVELS = 700
"""Of a kubeconfig, which PyYAML reads without libyaml: it gives up below 500, and its time grows with their square."""
SHAPES: dict[str, bytes] = {
    "nothing": b"", "blank": b" \n\n", "a word": b"garbage\n", "a list": b"[]", "a map": b"{}", "a number": b"3", "null": b"null",
    "true": b"true", "lists": b"[[[]]]", "binary": bytes(range(256)), "NUL": b"a: \x00", "latin": "ü: é".encode("latin-1"),
    "utf-16": "kind: Pod".encode("utf-16"), "a tag": b"!!python/object/apply:os.getcwd []", "aliases": ALIASES,
    "an endless alias": b"&a [*a]", "an alias of nothing": b"*a", "huge": b"9" * 100_000, "infinite": b"1e99999",
    "two": b"a: 1\n---\nb: 2\n", "cut": b"a: {b: [", "items": b"apiVersion: v1\nkind: List\nitems: 3\n",
    "wrong types": b"apiVersion: []\nkind: {}\nmetadata: 3\nspec: []\nclusters: 3\nusers: x\ncontexts: {}\ncurrent-context: []\n",
    "nulls": b"apiVersion:\nkind:\nmetadata:\nspec:\nclusters:\nusers:\ncontexts:\ncurrent-context:\ncurrency:\nclasses:\n",
    "members of wrong types": b"clusters: [3]\nusers: [[]]\ncontexts: [null]\ncurrent-context: a\nclasses: {a: [1]}\n",
    "wrong members": b"clusters: [{name: a, cluster: 3}]\nusers: [{name: a, user: x}]\n"
    b"contexts: [{name: a, context: []}]\ncurrent-context: a\n",
    "a map for a name": b"clusters: [{name: b, cluster: {}}]\nusers: [{name: a, user: {}}]\n"
    b"contexts: [{name: a, context: {cluster: {a: b}, user: a}}]\ncurrent-context: a\n",
    **{f"nested {name}": text for name, text in NESTED.items()},
}  # fmt: skip


def mutated(content: bytes, choose: random.Random) -> bytes:
    """Return the content with some bytes, words or lines changed."""
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        at, to = sorted(choose.choices(range(len(content) + 1), k=2))
        to = min(to, at + choose.choice((1, 4, 40, 400)))
        match choose.randrange(6):
            case 0:
                content = content[:at] + bytes([choose.randrange(256)]) + content[at + 1 :]
            case 1:
                content = content[:at] + content[to:]
            case 2:
                content = content[:to] + content[at:]
            case 3:
                content = content[:at] + choose.choice(TOKENS) + content[at:]
            case _:  # a value in place of another one
                words = list(re.finditer(rb"[^\s:,{}\[\]\"]+", content))
                word = choose.choice(words) if words else None
                if word:
                    content = content[: word.start()] + choose.choice(TOKENS) + content[word.end() :]
    return content


@pytest.fixture(autouse=True)
def nothing_is_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No address that a mutation has made is called, and no program run."""

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(connection, "create_connection", refused)
    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)


def called(command: str, path: Path) -> Result:
    arguments = [each.replace("{}/", str(path.parent)).replace("{}", str(path)) for each in command.split()]
    return CliRunner().invoke(main, arguments, input="")


def wrong(result: Result, *, must_fail: bool) -> str:
    """Return what is wrong with the end of a command, "" if nothing is."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{type(result.exception).__name__}: {result.exception}"
    if result.exit_code not in ({2} if must_fail else {0, 1, 2}):
        return f"exit status {result.exit_code}"
    said = result.stderr
    if result.exit_code == 2 and not re.search(
        r"^(error|Error|Usage):\s",
        said + re.sub(r"^.*?: error:", "error:", result.stdout, flags=re.MULTILINE),
        re.MULTILINE,
    ):
        return f"no error: {said[:200]!r}"
    if not said.replace("\n", "").replace("\t", "").isprintable():
        return f"hidden characters: {said[:200]!r}"
    if re.search(r"Traceback|Errno|object at 0x|urllib3|HTTPSConnectionPool|<class|Error\(", said):
        return f"words of Python: {said[:300]!r}"
    return "a long line" if max(map(len, said.splitlines()), default=0) > 5_000 else ""


@pytest.mark.parametrize("what", SURFACES)
def test_shapes_that_are_no_such_file(what: str, tmp_path: Path) -> None:
    gc.collect()  # connections of other tests cannot be closed where the stack is full, as in a nested file
    surface, failed = SURFACES[what], []
    for name, content in SHAPES.items():
        path = tmp_path / name / surface.name
        path.parent.mkdir()
        path.write_bytes(content[:FLOW_LEVELS] if (what, name) == ("kubeconfig", "nested flow") else content)
        for command in surface.commands:
            result = called(command, path)
            is_nothing = what == "documents" and name in {"nothing", "blank", "null"}
            if why := wrong(result, must_fail=not surface.any_text and not is_nothing):
                failed.append(f"{name}, {command}: {why}")
            if what == "kubeconfig" and len(result.stderr.splitlines()) != 1:
                failed.append(f"{name}, {command}: {result.stderr}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("what", SURFACES)
def test_places_where_no_such_file_is(what: str, tmp_path: Path) -> None:
    surface, failed = SURFACES[what], []
    places: dict[str, Callable[[Path], object]] = {
        "missing": lambda _: None,
        "a directory": lambda path: path.mkdir(),
        "a loop": lambda path: path.symlink_to(path.name),
    }
    if os.getuid():  # nothing is closed to root
        places["closed"] = lambda path: path.touch(0)
    for name, make in places.items():
        path = tmp_path / name / surface.name
        path.parent.mkdir()
        make(path)
        for command in (each for each in surface.commands if "{}/" not in each):
            why = wrong(called(command, path), must_fail=True)
            failed += [f"{name}, {command}: {why}"] if why else []
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("what", [each for each in SURFACES if each not in {"kubeconfig", "documents"}])
def test_a_pipe_is_read(what: str, tmp_path: Path) -> None:
    """As in `usage <(kubectl logs …)`; those two are read several times."""
    surface = SURFACES[what]
    path = tmp_path / surface.name
    os.mkfifo(path)
    command = next(each for each in surface.commands if "--fix" not in each)
    writer = threading.Thread(target=lambda: path.write_bytes(surface.contents[0]), daemon=True)
    writer.start()
    assert not wrong(called(command, path), must_fail=False)
    writer.join(10)
    assert not writer.is_alive()


NUMBERS = [pytest.param(60, id="some"), pytest.param(600, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("what", SURFACES)
def test_bytes_of_valid_files(what: str, number: int, tmp_path: Path) -> None:
    surface, choose, failed = SURFACES[what], random.Random(f"{SEED} {what} {number}"), []  # noqa: S311 - cases
    path = tmp_path / surface.name
    for at in range(number):
        content = mutated(choose.choice(surface.contents), choose)
        path.write_bytes(content)
        command = choose.choice(surface.commands)
        if why := wrong(called(command, path), must_fail=False):
            failed.append(f"{at}, {command}: {why}\n  {content[:2000]!r}")
    assert not failed, f"{SAID}, {len(failed)} of {number}:\n" + "\n".join(failed[:10])


@cache
def pems() -> tuple[bytes, bytes, bytes]:
    """Return an authority, a certificate that it issued, and its key."""
    now = datetime.now(UTC)
    authority = issue_ca(common_name="tests", now=now, lifetime=timedelta(days=30))
    leaf = issue_server(authority, names=["localhost"], now=now, lifetime=timedelta(days=30))
    return authority.certificate_pem(), leaf.certificate_pem(), leaf.key_pem()


@pytest.mark.parametrize("number", NUMBERS)
def test_certificates_keys_and_authorities(number: int, tmp_path: Path) -> None:
    choose, failed = random.Random(f"{SEED} {number}"), []  # noqa: S311 - cases
    paths = [tmp_path / name for name in ("ca.crt", "tls.crt", "tls.key")]
    shapes = [*SHAPES.values()]
    for at in range(number):
        contents = list(pems())
        index = at % 3
        contents[index] = shapes[at // 3] if at // 3 < len(shapes) else mutated(contents[index], choose)
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        authority, certificate, key = paths
        try:
            ServingCertificate(certificate, key, authority)
        except StartupError as error:
            if not str(error).isprintable() or re.search("Errno|_ssl|object at", str(error)):
                failed.append(f"{at}: {error}")
        except Exception as error:  # noqa: BLE001 - what must not be
            failed.append(f"{at}: {type(error).__name__}: {error}\n  {contents[index][:2000]!r}")
        try:
            ensure_self_signed(tmp_path, ["localhost"], datetime.now(UTC))
        except Exception as error:  # noqa: BLE001 - what must not be
            failed.append(
                f"{at}, --self-signed: {type(error).__name__}: {error}\n  {contents[index][:2000]!r}"
            )
        try:
            Prometheus("https://127.0.0.1:9", paths[index], authority).query("up")
        except PrometheusError as error:
            if not str(error).isprintable() or re.search("Errno|_ssl|object at", str(error)):
                failed.append(f"{at}: {error}")
    assert not failed, f"{SAID}, {len(failed)} of {number}:\n" + "\n".join(failed[:10])
