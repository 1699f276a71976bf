"""The pages: a Flask application that shows what an observer read last, and asks the cluster where a page is about one object."""

from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

import flask

from webhook.cluster import errors
from webhook.tools.console import views
from webhook.tools.console.guard import guard
from webhook.tools.console.history import SIDE, Drawing, History, draw
from webhook.tools.console.observer import Observer
from webhook.tools.status.report import ClusterStatus, Health
from webhook.tools.why.explanation import Explanation

SHOWN_DENIALS = 5
"""On the overview; their own page has all."""

FILTERS = (
    views.amount,
    views.ago,
    views.clock,
    views.denied,
    views.dimension,
    views.fill,
    views.in_force,
    views.percent,
    views.summary,
    views.words,
)

Explain = Callable[[str, str, str], Explanation]
"""Takes kind, name and namespace. Raises `errors.ApiError`."""


def create_app(
    observer: Observer[ClusterStatus], history: History, explain: Explain, cluster: str
) -> flask.Flask:
    """Return the application; `cluster` names the cluster for people."""
    app = flask.Flask(__name__)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(
        cluster=cluster, side=SIDE, LOOKS=views.LOOKS, OK=Health.OK, quota_of=views.quota_of
    )
    for each in FILTERS:
        app.jinja_env.filters[each.__name__] = each
    pages = _Pages(observer, history, explain)
    app.add_url_rule("/", view_func=pages.overview)
    app.add_url_rule("/quotas/<namespace>", view_func=pages.quota)
    app.add_url_rule("/denials", view_func=pages.denials)
    app.add_url_rule("/why", view_func=pages.why)
    app.register_error_handler(404, pages.missing)
    guard(app)
    return app


class _Pages:
    def __init__(self, observer: Observer[ClusterStatus], history: History, explain: Explain) -> None:
        self._observer, self._history, self._explain = observer, history, explain
        self._opened = views.clock(datetime.now(UTC))

    def overview(self) -> flask.Response:
        return self._page("overview.html", totals=views.totals, shown=SHOWN_DENIALS)

    def quota(self, namespace: str) -> flask.Response:
        return self._page("quota.html", namespace=namespace, charts=self._charts, opened=self._opened)

    def denials(self) -> flask.Response:
        return self._page("denials.html")

    def why(self) -> flask.Response:
        asked = flask.request.args.get("object", "").strip()
        namespace = flask.request.args.get("namespace", "").strip()
        kind, _, name = asked.partition("/") if "/" in asked else asked.partition(" ")
        found, problem = None, ""
        if kind and name.strip():
            try:
                found = self._explain(kind, name.strip(), namespace)
            except errors.ApiError as error:
                problem = str(error)
        elif asked:
            problem = f'"{asked}" must be KIND/NAME, such as job/train'
        return self._page("why.html", asked=asked, namespace=namespace, found=found, problem=problem)

    def missing(self, _error: Exception) -> flask.Response:
        return self._page("missing.html", status=404)

    def _page(self, template: str, *, status: int = 200, **values: object) -> flask.Response:
        """Render a page around what was read last, or one that says why nothing could be."""
        seen = self._observer.observation()
        if seen.read is None:
            template, status = "unread.html", 502
        text = flask.render_template(template, seen=seen, status=seen.read, now=datetime.now(UTC), **values)
        return flask.Response(text, status)

    def _charts(self, namespace: str, key: str) -> Drawing | None:
        steps = self._history.steps((namespace, key))
        return draw(steps, monotonic()) if steps else None
