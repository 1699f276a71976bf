"""The server's part: the pair out of the Secret, and whether API servers accept it. It writes nothing to the cluster.

Until the Secret holds a pair that is good, a throw-away certificate is served that nobody trusts: liveness probes, which do
not look at it, find a living process, while readiness says what is waited for.

Once ready, only a certificate that expires or that a published caBundle refuses takes readiness away; the latter after a
grace, since to leave the Service helps nobody whom the other replicas would refuse as well. An API server that cannot be
reached never does.
"""

import atexit
import dataclasses
import datetime as dt
import logging
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from certs.acceptance import Pair, Published, objections, observe
from certs.check import expires_at, issued_by
from certs.issue import issue_authority, issue_server
from certs.rotation import pem
from certs.secret import CA, CERTIFICATE, KEY
from webhook.certificates.objects import (
    CONFIGURATION,
    KINDS,
    ChangeSignal,
    ClusterConfigurations,
    ClusterSecret,
    ConfigurationSeen,
    SecretName,
    configuration_resources,
    hosts,
)
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.server.tls import CertificateState

log = logging.getLogger("gpu_admission.certificates")

PERIOD = 30.0
"""Seconds between looks that nothing gave cause for."""
IMPATIENT = 2.0
"""Seconds between looks while something is not as it should be; the watches usually are faster."""
UNTRUSTED_GRACE = dt.timedelta(seconds=30)
"""How long a published caBundle may refuse our certificate before readiness goes: the controller repairs it in less."""

Clock = Callable[[], dt.datetime]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the last look that succeeded has shown; readiness is made of it."""

    looked: dt.datetime
    seen: tuple[ConfigurationSeen, ...]
    published: Published
    untrusted_since: dt.datetime | None = None


class SecretCertificate:
    """Made before the server, which takes its files; `start` is for the process that serves, since threads do not fork."""

    def __init__(self, name: SecretName, *, clock: Clock = lambda: dt.datetime.now(dt.UTC)) -> None:
        self.name = name
        self._clock = clock
        self._directory = PrivateDirectory()
        self._directory.write(*_throw_away(clock()))
        self._held: Pair | None = None
        self._loaded_at = 0.0
        self._refused = f"waiting for the Secret {name}"
        self._failures = 0
        self._view: View | None = None
        self._was_ready = False
        self.certificate, self.key = self._directory.certificate, self._directory.key

    def start(self, api: ApiClient) -> None:
        bell = ChangeSignal(api, [self.name.resource, *configuration_resources()])
        bell.start(threading.Event())
        threading.Thread(target=self._run, args=(api, bell), name="certificate", daemon=True).start()

    @property
    def state(self) -> CertificateState | None:
        """Describe what is served; None while nothing is that an API server could accept."""
        if self._held is None:
            return None
        return CertificateState(
            loaded_at=self._loaded_at,
            not_after=expires_at(self._held.certificate),
            last_error=self._refused or None,
            failures=self._failures,
        )

    @property
    def authority_not_after(self) -> float:
        """When the authority expires that has issued the certificate, seconds since the epoch; 0 without one."""
        if self._held is None:
            return 0.0
        for authority in x509.load_pem_x509_certificates(self._held.authorities):
            if issued_by(self._held.certificate, pem([authority]), self._clock()):
                return authority.not_valid_after_utc.timestamp()
        return 0.0

    def unready(self) -> list[str]:
        """Return what keeps API servers from accepting what we serve, as far as readiness goes by it."""
        held, view, now = self._held, self._view, self._clock()
        if held is None:
            return [self._refused]
        if (end := expires_at(held.certificate)) <= now:
            return [f"the certificate expired at {end:%Y-%m-%d %H:%M} UTC"]
        if view is None:
            return [] if self._was_ready else ["the webhook configurations could not be read yet"]
        problems = distrust(held, view.seen, now)
        if not self._was_ready:
            return problems + missing(view.seen)
        since = view.untrusted_since
        return problems if since is not None and view.looked - since >= UNTRUSTED_GRACE else []

    def look(self, secret: ClusterSecret, configurations: ClusterConfigurations) -> bool:
        """Take what the cluster holds now; return whether all is as it should be. Raises `errors.ApiError`."""
        seen = tuple(configurations.seen())
        stored = secret.read()
        now = self._clock()
        published = self._published(seen, now)
        if stored is None:
            self._refuse(f"waiting for the Secret {self.name}" if self._held is None else "", counts=False)
        else:
            data = stored.content.data
            pair = Pair(data.get(CERTIFICATE, b""), data.get(KEY, b""), data.get(CA, b""))
            self._offer(pair, published, now)
        untrusted = self._held is not None and bool(distrust(self._held, seen, now))
        before = self._view.untrusted_since if self._view else None
        self._view = View(
            looked=now, seen=seen, published=published, untrusted_since=(before or now) if untrusted else None
        )
        self._was_ready = self._was_ready or not self.unready()
        return not (untrusted or self._refused or self.unready())

    def _run(self, api: ApiClient, bell: ChangeSignal) -> None:
        secret, configurations = ClusterSecret(api, self.name), ClusterConfigurations(api)
        log.info("taking the certificate from the Secret %s", self.name)
        problem = ""
        while True:
            pause = IMPATIENT
            try:
                if self.look(secret, configurations):
                    pause = PERIOD
                told = "; ".join(self.unready())
            except errors.ApiError as error:
                told = f"the certificate cannot be looked up: {error}"
                if self._held is None:
                    self._refuse(told, counts=False)
            except Exception as error:  # a defect must not end the loop: the certificate would expire
                log.exception("the certificate cannot be looked up")
                told = type(error).__name__
            if told != problem:
                log.warning("%s", told) if told else log.info("the certificate is accepted by API servers")
            problem = told
            bell.wait(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    def _offer(self, pair: Pair, published: Published, now: dt.datetime) -> None:
        if pair == self._held:
            self._refuse("", counts=False)
            return
        if found := objections(pair, self._held, published, now):
            self._refuse(f"the Secret {self.name}: {'; '.join(found)}", counts=True)
            return
        if self._held is None or (pair.certificate, pair.key) != (self._held.certificate, self._held.key):
            self._directory.write(pair.certificate, pair.key)
            self._loaded_at = time.time()
            log.info(
                "serving the certificate of the Secret %s, valid until %s",
                self.name,
                expires_at(pair.certificate),
            )
        self._held = pair
        self._refuse("", counts=False)

    def _refuse(self, why: str, *, counts: bool) -> None:
        if why and why != self._refused and counts:
            self._failures += 1
            log.error("%s: %s", "keeping the certificate before" if self._held else "no certificate yet", why)
        self._refused = why

    def _published(self, seen: tuple[ConfigurationSeen, ...], now: dt.datetime) -> Published:
        bundles = frozenset(bundle for each in seen for bundle in each.configuration.bundles)
        return observe(self._view.published if self._view else None, bundles, hosts(seen), now)


def distrust(pair: Pair, seen: tuple[ConfigurationSeen, ...], now: dt.datetime) -> list[str]:
    """Return which of the configurations have a caBundle that does not verify the certificate."""
    return [
        f"the caBundle of the {each.configuration.kind} {CONFIGURATION} does not verify the certificate"
        for each in seen
        if not all(issued_by(pair.certificate, bundle, now) for bundle in set(each.configuration.bundles))
    ]


def missing(seen: tuple[ConfigurationSeen, ...]) -> list[str]:
    present = {each.configuration.kind for each in seen}
    return [f"there is no {kind} {CONFIGURATION}" for kind in KINDS if kind not in present]


def _throw_away(now: dt.datetime) -> tuple[bytes, bytes]:
    lifetime = dt.timedelta(days=1)
    authority = issue_authority(
        common_name="gpu-admission, waiting for its Secret", now=now, lifetime=lifetime
    )
    pair = issue_server(authority, names=["waiting.invalid"], now=now, lifetime=lifetime)
    return pair.certificate_pem(), pair.key_pem()


_MEMORY = Path("/dev/shm")  # noqa: S108 - keys should not reach a disk
_OWNER_ONLY = 0o600


class PrivateDirectory:
    """Holds one pair at a time, swapped as kubelet does. It goes when the process ends that made it, not its children."""

    def __init__(self) -> None:
        base = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
        self._path = Path(tempfile.mkdtemp(prefix="gpu-admission-", dir=base))  # mode 0700
        self.certificate = self._path / "..data" / "tls.crt"
        self.key = self._path / "..data" / "tls.key"
        atexit.register(self._remove, os.getpid())

    def write(self, certificate: bytes, key: bytes) -> None:
        """Put this pair in the place of the one before; who reads just then finds either, or a mixture that does not match."""
        folder = Path(tempfile.mkdtemp(prefix="..pair-", dir=self._path))
        for name, content in (("tls.crt", certificate), ("tls.key", key)):
            path = folder / name
            path.touch(_OWNER_ONLY)
            path.write_bytes(content)
        published, link = self._path / "..data", self._path / "..data_tmp"
        before = published.resolve().name  # may be being read
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        link.rename(published)
        for other in self._path.glob("..pair-*"):
            if other.name not in (before, folder.name):
                shutil.rmtree(other, ignore_errors=True)

    def _remove(self, owner: int) -> None:
        if os.getpid() == owner:
            shutil.rmtree(self._path, ignore_errors=True)
