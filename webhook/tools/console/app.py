"""The pages and their server on loopback: a Flask application that shows what an observer read last, or reads one object."""

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from inspect import getmembers, isfunction
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

import flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from policies.printable import printable_lines
from policies.quota.amounts import format_gpu_hours, unit_name
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.loader import ConfigurationError
from webhook.prometheus.client import Prometheus, PrometheusError
from webhook.threads import thread
from webhook.tools.console import views
from webhook.tools.console.guard import guard
from webhook.tools.console.history import SIDE, History
from webhook.tools.console.proposals import DenialProposals, ProposalReader
from webhook.tools.rightsize.workloads import SizeReport, read_sizes
from webhook.tools.status.freshness import ago, stale_figures
from webhook.tools.status.reading import read_status, status_reader
from webhook.tools.status.report import ClusterStatus, Health
from webhook.tools.status.team_text import team_notes, team_view_text
from webhook.tools.why.discovery import UnknownKindError
from webhook.tools.why.explaining import explain
from webhook.tools.why.problems import read_problems

PAUSE_SECONDS = 5.0
PAUSE_PER_READING_TIME = 10
"""Minimum of the pause, in multiples of the time that the last reading took: a large cluster is read less often."""

WATCHED_SECONDS = 600.0
"""Reading stops after this time without a request. A page in a background tab asks once a minute, which keeps reading alive."""

T = TypeVar("T")

log = logging.getLogger("gpu_admission.console")


class Observer(Generic[T]):
    """Calls `read` in a thread of its own. The first caller waits for the first result."""

    def __init__(
        self, read: Callable[[], T], pause: float = PAUSE_SECONDS, watched: float = WATCHED_SECONDS
    ) -> None:
        self._read, self._pause, self._watched = read, pause, watched
        self._condition = threading.Condition()
        self._observation: tuple[T | None, str] | None = None
        self._requested_at = monotonic()
        self._is_observing = False

    def observation(self, *, waits: bool = True) -> tuple[T | None, str]:
        """Return the last result (None before the first), and the error of the newest attempt, "" if it succeeded.

        waits: for the first result.
        """
        with self._condition:
            self._requested_at = monotonic()
            if not self._is_observing:
                self._is_observing = True
                thread("observer", self._run, threading.Event()).start()
            while waits and self._observation is None:
                self._condition.wait()
            return self._observation or (None, "")

    def _run(self, _stopping: threading.Event) -> None:
        while True:
            began = monotonic()
            self._observe()
            pause = max(self._pause, PAUSE_PER_READING_TIME * (monotonic() - began))
            with self._condition:
                if monotonic() - self._requested_at > self._watched:
                    self._is_observing = False  # the next caller starts another
                    return
            sleep(pause)

    def _observe(self) -> None:
        problem, read = "", self._observation[0] if self._observation else None
        try:
            read = self._read()
        except (errors.ApiError, PrometheusError) as error:
            problem = str(error)
        except Exception:
            log.exception("the cluster was not read")
            problem = "the console failed; its output on the terminal says why"
        with self._condition:
            self._observation = read, problem
            self._condition.notify_all()


SHOWN_DENIALS = 5
"""On the overview; their own page has all."""
MAX_SHOWN = 10
"""Of a list beside the subject of a page: findings, nodes, denials of a namespace."""

FILTERS = dict(getmembers(views, lambda each: isfunction(each) and each.__module__ == views.__name__))
"""By their names in templates: every function of `views`."""


def create_app(
    api: ApiClient,
    observer: Observer[ClusterStatus],
    history: History,
    *,
    cluster: str,
    home: str,
    sizes: Observer[SizeReport] | None = None,
) -> flask.Flask:
    """Return the application; `cluster` names the cluster for people, `home` is the namespace where none is named.

    sizes: None without a Prometheus.
    """
    app = flask.Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(
        cluster=cluster,
        home=home,
        side=SIDE,
        max_shown=MAX_SHOWN,
        LOOKS=views.LOOKS,
        OK=Health.OK,
        ORDERS=list(views.Order),
        drawing=history.drawing,
    )
    app.jinja_env.filters.update(
        FILTERS,
        ago=ago,
        utc=utc,
        moment=datetime.fromisoformat,
        stale_figures=stale_figures,
        format_gpu_hours=format_gpu_hours,
        unit=unit_name,
        team_view_text=team_view_text,
        team_notes=team_notes,
    )
    guard(app)
    proposals, opened = DenialProposals(api), datetime.now(UTC)

    def page(template: str, *, code: int = 200, **values: object) -> flask.Response:
        """Render a page around what was read last, or one that says why nothing could be."""
        status, unread = observer.observation()
        if status is None:
            template, code = "unread.html", 502
        text = flask.render_template(
            template, unread=unread, status=status, opened=opened, now=datetime.now(UTC), **values
        )
        return flask.Response(printable_lines(text), code)

    @app.route("/")
    def overview() -> flask.Response:
        return page("overview.html", shown=SHOWN_DENIALS, sizes=sizes and sizes.observation(waits=False))

    @app.route("/quotas/<namespace>")
    def quota(namespace: str) -> flask.Response:
        return page("quota.html", namespace=namespace)

    @app.route("/teams", defaults={"name": ""})
    @app.route("/teams/<name>")
    def team(name: str) -> flask.Response:
        status, _ = observer.observation()
        is_known = not name or status is None or views.knows_team(status, name)
        return page("team.html", code=200 if is_known else 404, name=name)

    @app.route("/denials")
    def denials() -> flask.Response:
        status, _ = observer.observation()
        shown = views.page_of((status and status.denials) or (), flask.request.args)
        try:
            offers = proposals.of(shown.items, datetime.now(UTC))
        except errors.ApiError:  # the page says so, as soon as the observer meets it
            offers = {}
        return page("denials.html", offers=offers, shown=shown)

    @app.route("/why")
    def why() -> flask.Response:
        requested, namespace = (flask.request.args.get(each, "").strip() for each in ("object", "namespace"))
        answer = _why_content(api, requested, namespace, home)
        listed = answer["listed"].problems if "listed" in answer else ()
        shown = views.problem_page(listed, flask.request.args)
        return page("why.html", requested=requested, namespace=namespace, shown=shown, **answer)

    @app.errorhandler(404)
    def missing(_error: Exception) -> flask.Response:
        return page("missing.html", code=404)

    return app


def _why_content(api: ApiClient, requested: str, namespace: str, home: str) -> dict[str, Any]:
    """Return an explanation, `found`, with what to write, `offer`; or what is `listed` of a namespace; or the `problem`."""
    kind, _, name = (part.strip() for part in requested.partition("/" if "/" in requested else " "))
    now = datetime.now(UTC)
    try:
        if not requested:
            listed = read_problems(api, namespace, now)
            if not namespace and listed.omitted:  # a tenant, who may not read all namespaces
                listed = read_problems(api, home, now)
            return {"listed": listed}
        if not (kind and name):
            return {"problem": f'"{requested}" must be KIND/NAME, such as job/train'}
        found = explain(api, kind, name, namespace or home, now)
        return {"found": found, "offer": ProposalReader(api, now).propose(kind, name, namespace or home)}
    except (errors.ApiError, UnknownKindError, ConfigurationError) as error:
        return {"problem": str(error)}


HOST = "127.0.0.1"
IDLE_SECONDS = 60
"""A connection is closed after this time without data."""


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def version_string(self) -> str:
        return "gpu-admission"

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - werkzeug's signature
        """Write nothing: the page asks every few seconds."""


SIZES_SECONDS = 3600.0
"""Seconds between two readings of peaks. Prometheus records one an hour."""


def console_server(
    api: ApiClient,
    *,
    cluster: str,
    namespaces: Sequence[str] = (),
    home: str = "",
    port: int = 0,
    prometheus: Prometheus | None = None,
) -> BaseWSGIServer:
    """Return the server, bound to a port of loopback, by default a free one. Raises OSError for one that is taken."""
    history = History()

    def read(before: ClusterStatus | None) -> ClusterStatus:
        now, installation = datetime.now(UTC), before.installation if before else None
        status = read_status(api, now=now, namespaces=namespaces, home=home, installation=installation)
        rows = {(quota.namespace, row.key): row for quota in status.quotas for row in quota.rows}
        history.record(monotonic(), {key: row for key, row in rows.items() if row.used is not None})
        return status

    def read_right_size(known: Prometheus) -> SizeReport:
        return read_sizes(api, known, datetime.now(UTC), namespaces=namespaces)

    sizes = Observer(partial(read_right_size, prometheus), pause=SIZES_SECONDS) if prometheus else None
    app = create_app(api, Observer(status_reader(read)), history, cluster=cluster, home=home, sizes=sizes)
    # Bound here, because werkzeug ends the process if the port is taken.
    with socket.create_server((HOST, port)) as bound:
        return make_server(HOST, port, app, threaded=True, request_handler=_Handler, fd=bound.fileno())
