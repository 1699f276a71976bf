"""The pages: a Flask application that shows what an observer read last, and asks the cluster where a page is about one object."""

from datetime import UTC, datetime
from time import monotonic

import flask

from policies.printable import printable_lines
from policies.quota.amounts import unit
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.loader import ConfigurationError
from webhook.tools.console import views
from webhook.tools.console.guard import guard
from webhook.tools.console.history import SIDE, Drawing, History, draw
from webhook.tools.console.observer import Observer
from webhook.tools.console.proposals import DenialProposals, Proposal, ProposalReader
from webhook.tools.status.report import ClusterStatus, Health
from webhook.tools.why.discovery import UnknownKindError
from webhook.tools.why.explaining import explain
from webhook.tools.why.explanation import Explanation

SHOWN_DENIALS = 5
"""On the overview; their own page has all."""

FILTERS = (
    views.amount,
    views.ago,
    views.brief,
    views.clock,
    views.denied,
    views.fill,
    views.height,
    views.in_force,
    views.knows_nodes,
    views.minutes,
    views.number,
    views.percent,
    views.summary,
    views.words,
    unit,
)


def create_app(
    api: ApiClient, observer: Observer[ClusterStatus], history: History, *, cluster: str, home: str
) -> flask.Flask:
    """Return the application; `cluster` names the cluster for people, `home` is the namespace where none is named."""
    app = flask.Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(
        cluster=cluster, home=home, side=SIDE, LOOKS=views.LOOKS, OK=Health.OK, quota_of=views.quota_of
    )
    for each in FILTERS:
        app.jinja_env.filters[each.__name__] = each
    pages = _Pages(api, observer, history, home)
    app.add_url_rule("/", view_func=pages.overview)
    app.add_url_rule("/quotas/<namespace>", view_func=pages.quota)
    app.add_url_rule("/denials", view_func=pages.denials)
    app.add_url_rule("/why", view_func=pages.why)
    app.register_error_handler(404, pages.missing)
    guard(app)
    return app


class _Pages:
    def __init__(
        self, api: ApiClient, observer: Observer[ClusterStatus], history: History, home: str
    ) -> None:
        self._api, self._observer, self._history, self._home = api, observer, history, home
        self._proposals = DenialProposals(api)
        self._opened = datetime.now(UTC)

    def overview(self) -> flask.Response:
        return self._page("overview.html", totals=views.totals, drawing=self._drawing, shown=SHOWN_DENIALS)

    def quota(self, namespace: str) -> flask.Response:
        return self._page("quota.html", namespace=namespace, drawing=self._drawing)

    def denials(self) -> flask.Response:
        status, _ = self._observer.observation()
        denials = (status and status.denials) or ()
        try:
            offers = self._proposals.of(denials, datetime.now(UTC))
        except errors.ApiError:  # the page says so, as soon as the observer meets it
            offers = {}
        return self._page("denials.html", offers=offers)

    def why(self) -> flask.Response:
        requested, namespace = (flask.request.args.get(each, "").strip() for each in ("object", "namespace"))
        kind, _, name = (each.strip() for each in requested.partition("/" if "/" in requested else " "))
        found, offer, problem = None, None, ""
        if kind and name:
            try:
                found, offer = self._explained(kind, name, namespace or self._home)
            except (errors.ApiError, UnknownKindError, ConfigurationError) as error:
                problem = str(error)
        elif requested:
            problem = f'"{requested}" must be KIND/NAME, such as job/train'
        return self._page(
            "why.html", requested=requested, namespace=namespace, found=found, offer=offer, problem=problem
        )

    def _explained(self, kind: str, name: str, namespace: str) -> tuple[Explanation, Proposal | None]:
        now = datetime.now(UTC)
        found = explain(self._api, kind, name, namespace, now)
        return found, ProposalReader(self._api, now).propose(kind, name, namespace)

    def missing(self, _error: Exception) -> flask.Response:
        return self._page("missing.html", status=404)

    def _page(self, template: str, *, status: int = 200, **values: object) -> flask.Response:
        """Render a page around what was read last, or one that says why nothing could be."""
        found, problem = self._observer.observation()
        if found is None:
            template, status = "unread.html", 502
        text = flask.render_template(
            template, unread=problem, status=found, opened=self._opened, now=datetime.now(UTC), **values
        )
        return flask.Response(printable_lines(text), status)

    def _drawing(self, namespace: str, key: str) -> Drawing | None:
        steps = self._history.steps((namespace, key))
        return draw(steps, monotonic()) if steps else None
