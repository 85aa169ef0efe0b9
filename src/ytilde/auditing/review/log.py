"""The log of a review: every decision is a line, on disk before the page hears of it.

SQLite in WAL mode, append-only. A line is known by the page's own random name for it, so a
repeated request is never counted twice, and it says which decision it replaces, so two tabs cannot
overrule each other unseen.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...checkpoint import check_writable
from ...data import BadInput

LOG = "review.sqlite"
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
