"""`ytilde review`: a local page to go through the suspicious labels of a run with the keyboard.

Every decision is a line in an append-only log (SQLite, WAL, in the run folder), on disk before the
page hears of it. A line is known by the page's own random name for it, so a repeated request is
never counted twice, and it says which decision it replaces, so two tabs cannot overrule each other
unseen. The server listens on this machine alone and answers nobody who lacks the address's token.
"""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from .checkpoint import check_writable, write_csv
from .data import IGNORE, BadInput, Data
from .report import _text, digest, encode, own_parts, picture_of, table, template

LOG = "review.sqlite"
HELD = 120.0  # seconds for which an item that one tab shows is not offered to another
LARGEST = 640  # side of a picture on the page
COLUMNS = 40  # values of a table's row on the page
MESSAGE = 4096  # bytes of a request
SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  request TEXT NOT NULL UNIQUE,     -- the page's name for this decision
  tab TEXT NOT NULL,
  row INTEGER NOT NULL,             -- row of the data
  action TEXT NOT NULL CHECK (action IN ('accept', 'keep', 'choose', 'skip', 'undo')),
  label INTEGER,                    -- number of the class; null: none was decided on
  undoes INTEGER UNIQUE REFERENCES decisions (id),
  at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)"""


class Decision(NamedTuple):
    """What holds for a row now."""

    id: int
    row: int
    action: str
    label: int | None
    tab: str


class Conflict(Exception):
    """Somebody else decided on the row in the meantime."""


class Log:
    """The decisions of a run. Any number of threads and processes may write at once."""

    def __init__(self, path: Path) -> None:
        self._one_at_a_time = threading.Lock()
        check_writable(path)
        try:
            self._db = sqlite3.connect(
                path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(SCHEMA)
        except sqlite3.Error as error:
            raise BadInput(f"{path} cannot be used ({error}); move it away") from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes in; it is on disk when the block ends."""
        with self._one_at_a_time:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def current(self) -> dict[int, Decision]:
        """The last decision on each row that was not undone, the oldest first."""
        with self._open() as db:
            return _current(db)

    def decide(
        self, request: str, tab: str, row: int, action: str, label: int | None, seen: int
    ) -> None:
        """seen: the id of the decision that this one replaces, 0 for none."""
        with self._open() as db:
            if not _known(db, request):
                held = _current(db).get(row)
                if (held.id if held else 0) != seen:
                    raise Conflict
                _append(db, request, tab, row, action, label, None)

    def undo(self, request: str, tab: str) -> int | None:
        """Takes back the last decision of this tab that still holds; returns its row."""
        with self._open() as db:
            if again := _known(db, request):
                return again[0]
            own = [d for d in _current(db).values() if d.tab == tab]
            if not own:
                return None
            _append(db, request, tab, own[-1].row, "undo", None, own[-1].id)
            return own[-1].row


def _known(db: sqlite3.Connection, request: str) -> tuple[int] | None:
    return db.execute("SELECT row FROM decisions WHERE request = ?", (request,)).fetchone()


def _append(db: sqlite3.Connection, *values: Any) -> None:
    db.execute(
        "INSERT INTO decisions (request, tab, row, action, label, undoes) VALUES (?,?,?,?,?,?)",
        values,
    )


def _current(db: sqlite3.Connection) -> dict[int, Decision]:
    # In SQLite the other columns of a MAX() are those of the row that holds the maximum.
    found = db.execute(
        "SELECT MAX(id), row, action, label, tab FROM decisions WHERE action != 'undo' AND id NOT "
        "IN (SELECT undoes FROM decisions WHERE undoes IS NOT NULL) GROUP BY row ORDER BY MAX(id)"
    )
    return {row: Decision(id_, row, *rest) for id_, row, *rest in found}


class Review:
    """The suspects of an audited run, the worst first, and what was decided on them."""

    def __init__(
        self,
        run: Path,
        data: Data,
        *,
        paths: Sequence[str] | None = None,
        columns: dict[str, list[str] | None] | None = None,
    ) -> None:
        self.run, self.data, self.paths, self.columns = run, data, paths, columns
        self.names = [data.class_name(k) for k in range(data.num_classes)]
        self.issues = _suspects(run, self.names, data)
        self.position = {issue["index"]: k for k, issue in enumerate(self.issues)}
        self.log = Log(run / LOG)
        self._shown: dict[int, tuple[str, float]] = {}  # row: tab and time

    @cached_property
    def _table(self) -> pd.DataFrame:
        return table(self.data.x, self.columns)  # type: ignore[arg-type]

    def labels(self) -> pd.DataFrame:
        """Every label with the decisions applied, in the columns of `audit --fix-above`."""
        rows = (self.data.y != IGNORE).nonzero()[:, 0].tolist()
        given = [int(label) for label in self.data.y[rows]]
        decided = {d.row: d.label for d in self.log.current().values() if d.label is not None}
        label = [decided.get(row, old) for row, old in zip(rows, given, strict=True)]
        fixed = [new != old for new, old in zip(label, given, strict=True)]
        named = {"label": label, "given_label": given}
        frame = pd.DataFrame({"index": rows, "label": label, "fixed": fixed, "given_label": given})
        return frame.assign(**{c: [self.names[k] for k in v] for c, v in named.items()})

    # ---- what the page asks for ------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        return {
            "classes": [_text(name) for name in self.names],
            "picture": len(self.data.shape) > 1,
            "run": _text(self.run, 200),
        }

    def next(self, tab: str, kind: str = "open") -> dict[str, Any]:
        """The next item without a decision (`open`), or the longest skipped one (`skipped`)."""
        current = self.log.current()
        if kind == "skipped":
            rows = [d.row for d in current.values() if d.action == "skip"]
        else:
            rows = [issue["index"] for issue in self.issues if issue["index"] not in current]
        now = time.monotonic()
        free = (row for row in rows if self._is_free(row, tab, now))
        row = next(free, rows[0] if rows else None)
        if row is not None:
            self._shown[row] = (tab, now)
        return self._answer(current, row)

    def _is_free(self, row: int, tab: str, now: float) -> bool:
        other, since = self._shown.get(row, (tab, now))
        return other == tab or now - since > HELD

    def at(self, position: int) -> dict[str, Any]:
        near = self.issues[: position + 1][-1:]  # past the end: the last one
        return self._answer(self.log.current(), near[0]["index"] if near else None)

    def decide(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Writes a decision, then answers with the next item, or with what stood in its way."""
        tab, kind = _word(asked, "tab"), _word(asked, "kind")
        row, action, label = self._decision(asked)
        try:
            self.log.decide(
                _word(asked, "request"), tab, row, action, label, _number(asked, "seen")
            )
        except Conflict:
            return self._answer(self.log.current(), row) | {"conflict": True}
        return self.next(tab, kind)

    def _decision(self, asked: dict[str, Any]) -> tuple[int, str, int | None]:
        row, action = _number(asked, "row"), _word(asked, "action")
        if row not in self.position:
            raise BadInput(f"row {row} is not among the suspects")
        issue = self.issues[self.position[row]]
        labels = {"accept": issue["predicted"], "keep": issue["given"], "skip": None}
        if action == "choose":
            label = _number(asked, "label")
            if not 0 <= label < len(self.names):
                raise BadInput(f"there is no class {label}")
            return row, action, label
        if action not in labels:
            raise BadInput(f"there is no action {action!r}")
        return row, action, labels[action]

    def undo(self, asked: dict[str, Any]) -> dict[str, Any]:
        row = self.log.undo(_word(asked, "request"), _word(asked, "tab"))
        if row not in self.position:
            return self.next(_word(asked, "tab"), _word(asked, "kind")) | {"nothing": True}
        return self._answer(self.log.current(), row)

    def picture(self, row: int) -> bytes:
        picture = picture_of(self.data.x, row)
        picture.thumbnail((LARGEST, LARGEST))
        return encode(picture, "png")

    def _answer(self, current: dict[int, Decision], row: int | None) -> dict[str, Any]:
        item = None if row is None else self._item(row, current.get(row))
        return {"item": item, "progress": self._count(current)}

    def progress(self) -> dict[str, int]:
        """How many suspects there are, are open, and were decided in which way."""
        return self._count(self.log.current())

    def _count(self, current: dict[int, Decision]) -> dict[str, int]:
        actions = [d.action for d in current.values() if d.row in self.position]
        counts = {name: actions.count(name) for name in ("accept", "keep", "choose", "skip")}
        return counts | {"total": len(self.issues), "open": len(self.issues) - len(actions)}

    def _item(self, row: int, decision: Decision | None) -> dict[str, Any]:
        issue = self.issues[self.position[row]]
        values: list[tuple[str, str]] = []
        if len(self.data.shape) == 1:
            shown = self._table.iloc[row, :COLUMNS]
            values = [(_text(name, 60), _text(value, 200)) for name, value in shown.items()]
        return issue | {
            "row": row,
            "position": self.position[row],
            "path": _text(self.paths[row], 200) if self.paths else "",
            "values": values,
            "seen": decision.id if decision else 0,
            "action": decision.action if decision else "",
            "label": decision.label if decision else None,
        }


def _suspects(run: Path, names: list[str], data: Data) -> list[dict[str, Any]]:
    """The flagged rows of audit.json, the worst first; classes as numbers."""
    path = run / "audit.json"
    if not path.exists():
        raise BadInput(f"{run} is not audited yet; `ytilde audit {run}` comes first")
    number = {name: k for k, name in enumerate(names)}
    labels = {
        "given": "given_label",
        "predicted": "predicted_label",
        "runner_up": "runner_up_label",
    }
    figures = ("predicted_prob", "runner_up_prob", "p_wrong", "ambiguity")
    try:
        issues: list[dict[str, Any]] = [
            {"index": int(issue["index"])}
            | {key: number[str(issue[f"{key}_label"])] for key in labels}
            | {key: float(issue[key]) for key in figures}
            for issue in json.loads(path.read_text("utf-8"))["issues"]
        ]
        same = all(int(data.y[issue["index"]]) == issue["given"] for issue in issues)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadInput(f"{path} cannot be read ({error!r}); `ytilde audit {run}` again") from error
    if not same:
        raise BadInput(f"{path} was made of other labels; `ytilde audit {run}` again")
    return sorted(issues, key=lambda issue: (-issue["p_wrong"], issue["index"]))


def _word(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 64 or not value.isascii():
        raise BadInput(f"{key} must be a short word")
    return value


def _number(asked: dict[str, Any], key: str) -> int:
    value = asked.get(key)
    if type(value) is not int or not 0 <= value < 2**53:
        raise BadInput(f"{key} must be a whole number")
    return value


def export(review: Review, path: Path) -> tuple[int, int]:
    """Write the labels with the decisions applied; returns their number and how many changed."""
    frame = review.labels()
    write_csv(path, frame)
    return len(frame), int(frame.fixed.sum())


# ---- the server ----------------------------------------------------------------------------------


def application(review: Review, token: str, port: int) -> Any:
    """The page as an ASGI application (Starlette)."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    page, policy = _page(review)
    own = {f"{host}:{port}" for host in ("127.0.0.1", "localhost")}
    origins = {None} | {f"http://{host}" for host in own}  # None: no script of another page sent it

    async def guard(request: Request, call_next: Callable) -> Response:
        """Only this page, under its own address, with its token; nothing is kept by the browser."""
        given = request.url.path.partition("/")[2].partition("/")[0]
        host, origin = (request.headers.get(name) for name in ("host", "origin"))
        if host not in own or origin not in origins:
            response: Response = PlainTextResponse("Refused: not this page's address.", 403)
        elif not secrets.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            text = "Refused: open the whole address that `ytilde review` printed."
            response = PlainTextResponse(text, 403)
        else:
            response = await call_next(request)
        response.headers.update(
            {
                "Content-Security-Policy": policy,
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Resource-Policy": "same-origin",
            }
        )
        return response

    async def show(request: Request) -> Response:
        return HTMLResponse(page)

    async def picture(request: Request) -> Response:
        row = int(request.path_params["row"])
        if row not in review.position or len(review.data.shape) == 1:
            return PlainTextResponse("There is no such picture.", 404)
        content = await run_in_threadpool(review.picture, row)
        return Response(content, media_type="image/png")

    async def ask(request: Request) -> Response:
        """Everything else is a POST of a small JSON object: what the page does by name."""
        verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "overview": lambda asked: review.overview(),
            "next": lambda asked: review.next(_word(asked, "tab"), _word(asked, "kind")),
            "at": lambda asked: review.at(_number(asked, "position")),
            "decide": review.decide,
            "undo": review.undo,
        }
        verb = verbs.get(request.path_params["verb"])
        try:
            asked = json.loads(await _body(request))
            if verb is None or not isinstance(asked, dict):
                raise BadInput("there is no such question")
            return JSONResponse(await run_in_threadpool(verb, asked))
        except (BadInput, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)

    routes = [
        Route("/{token}/", show),
        Route("/{token}/picture/{row:int}", picture),
        Route("/{token}/{verb}", ask, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])


async def _body(request: Any) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MESSAGE:
            raise BadInput("the request is too long")
    return body


def _page(review: Review) -> tuple[str, str]:
    """The page, and the policy that lets it run its own script and load its own pictures alone."""
    own = own_parts("review")
    run = _text(review.run, 200)
    page = template("review.html").render(run=run, quoted=shlex.quote(run), **own._asdict())
    policy = (
        f"default-src 'none'; script-src {digest(own.script)}; style-src {digest(own.style)}; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


def serve(review: Review, port: int, say: Callable[[str], None]) -> None:
    """Serve the page on this machine until Ctrl-C; `say` gets its address."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise BadInput(
            'the review page needs starlette and uvicorn: pip install "ytilde[app]"'
        ) from error
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInput(
                f"port {port} is taken ({error.strerror}); use another --port"
            ) from error
        listener.listen()  # whoever opens the address at once waits for the answer
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            application(review, token, port), log_level="warning", access_log=False,
            server_header=False, timeout_graceful_shutdown=1, lifespan="off", ws="none",
        )  # fmt: skip
        say(f"http://127.0.0.1:{port}/{token}/")
        with suppress(KeyboardInterrupt):  # uvicorn closes in order, then passes Ctrl-C on
            uvicorn.Server(config).run(sockets=[listener])
