"""The log of a review: every decision is a line, on disk before the page hears of it.

A file of SQLite, append-only, and whole by itself (no WAL beside it). A request of the page has a
random name of the page's own, so a repeated one is never counted twice; it may decide on many rows
at once, a line each, and is taken back as a whole. It says which decisions it replaces, so two tabs
cannot overrule each other unseen. Each line carries a digest of itself and of the line before, so a
damaged file is refused instead of giving other labels.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...data import BadInput
from ...files import TEMPORARY, check_writable
from ...runfolder import REVIEW

LOG = REVIEW
ACTIONS = ("accept", "keep", "choose", "bad", "skip")  # bad: the item is of no class at all
SCHEMA = """
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  request TEXT NOT NULL,            -- the page's name for what it asked
  tab TEXT NOT NULL,
  row INTEGER NOT NULL,             -- row of the data
  action TEXT NOT NULL CHECK (action IN ('accept', 'keep', 'choose', 'bad', 'skip', 'undo')),
  label INTEGER,                    -- number of the class; null: none was decided on
  undoes INTEGER UNIQUE REFERENCES decisions (id),
  at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  digest TEXT,
  UNIQUE (request, row)
)"""
COLUMNS = "id, request, tab, row, action, label, undoes, at"
LINES = f"SELECT {COLUMNS}{{}} FROM decisions WHERE id > ? ORDER BY id"
_BROKEN = (sqlite3.Error, UnicodeDecodeError)  # the second: of a message that quotes damaged text


class Decision(NamedTuple):
    """What holds for a row now."""

    id: int
    row: int
    action: str
    label: int | None
    tab: str
    request: str


class Choice(NamedTuple):
    """What a page decides on a row; seen: the id of the decision that it replaces, 0 for none."""

    row: int
    action: str
    label: int | None
    seen: int = 0


class Line(NamedTuple):
    """A line of the log, as it is written."""

    id: int
    request: str
    tab: str
    row: int
    action: str
    label: int | None
    undoes: int | None
    at: str

    def digest(self, before: str) -> str:
        return hashlib.blake2b(f"{before} {tuple(self)!a}".encode(), digest_size=16).hexdigest()


class Conflict(Exception):
    """Somebody else decided on the row in the meantime."""


class NotSaved(BadInput):
    """A decision that could not be written, because the disk is full or another writer is stuck."""


class Log:
    """The decisions of a run. Any number of threads and processes may write at once.

    What holds is kept in memory and brought up to date by the lines that are new, so that a
    decision costs as much after 50,000 others as at the start. counted: the rows in `counts`.
    """

    def __init__(self, path: Path, counted: Container[int] | None = None) -> None:
        self._path, self._counted = path, counted
        self._one_at_a_time = threading.Lock()
        self._last, self._digest = 0, ""  # of the last line that was read
        self._requests: dict[str, list[int]] = {}  # and their rows
        self._held: dict[int, list[Decision]] = {}  # of each row all that were not undone
        self._current: dict[int, Decision] = {}  # the last of these, the oldest first
        self.counts: Counter[str] = Counter()  # of the actions of these
        self.undone = 0  # decisions that were taken back
        check_writable(path)
        self._db: sqlite3.Connection | None = None  # there is no file before the first decision
        self._catch_up()

    def _connected(self) -> sqlite3.Connection | None:
        path = self._path
        if self._db is not None or not _exists(path):
            return self._db
        try:
            self._db = sqlite3.connect(
                path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = EXTRA")
            _check(self._db, path)
            self._catch_up()
            written = self._db.execute("SELECT seq FROM sqlite_sequence").fetchall()
            if written != ([(self._last,)] if self._last else []):
                raise _damaged(path, "lines are missing at its end")
        except sqlite3.OperationalError as error:
            raise BadInput(f"{path} cannot be used ({error}); move it away") from error
        except _BROKEN as error:
            raise _damaged(path, error) from error
        return self._db

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes in; it is on disk when the block ends."""
        with self._one_at_a_time:
            if not _exists(self._path):
                _create(self._path)
            db = self._connected()
            assert db is not None
            try:
                db.execute("BEGIN IMMEDIATE")
                self._catch_up()
                yield db
                db.execute("COMMIT")
            except sqlite3.Error as error:
                raise NotSaved(
                    f"This decision is not saved: {self._path} cannot be written ({error}). Make "
                    "room if the disk is full, then decide again; all before it is saved."
                ) from error
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._one_at_a_time:
            try:
                yield
            except _BROKEN as error:
                raise BadInput(f"{self._path} cannot be read ({error})") from error

    def _catch_up(self) -> None:
        """What was written since it was last read, by this process or another."""
        if (db := self._connected()) is None:
            return
        for *values, digest in db.execute(LINES.format(", digest"), (self._last,)):
            line = Line(*values)
            if line.id != self._last + 1 or digest != line.digest(self._digest):
                raise _damaged(self._path, f"decision {line.id} is not as it was written")
            self._last, self._digest = line.id, digest
            self._requests.setdefault(line.request, []).append(line.row)
            self._take(line)

    def _take(self, line: Line) -> None:
        held = self._held.setdefault(line.row, [])
        before = self._current.pop(line.row, None)
        if line.action == "undo":
            self.undone += 1
            held[:] = [decision for decision in held if decision.id != line.undoes]
        else:
            held.append(
                Decision(line.id, line.row, line.action, line.label, line.tab, line.request)
            )
        if held:
            self._current[line.row] = held[-1]
        if held and line.action == "undo":  # an older one holds again, in its old place
            self._current = dict(sorted(self._current.items(), key=lambda item: item[1].id))
        if self._counted is None or line.row in self._counted:
            self.counts.update([held[-1].action] if held else [])
            self.counts.subtract([before.action] if before else [])

    def refresh(self) -> None:
        """Take in what other processes wrote."""
        with self._reading():
            self._catch_up()

    def holds(self, row: int) -> Decision | None:
        """The decision on a row, as of the last refresh."""
        return self._current.get(row)

    def current(self) -> dict[int, Decision]:
        """The last decision on each row that was not undone, the oldest first."""
        with self._reading():
            self._catch_up()
            return dict(self._current)

    def is_by_hand(self, decision: Decision) -> bool:
        """Was the row decided on by itself? Rows accepted all at once were not looked at."""
        return len(self._requests[decision.request]) == 1

    def rows_of(self, request: str) -> list[int]:
        """The rows that a request has decided on or given back, as of the last refresh."""
        return list(self._requests.get(request, ()))

    def decide(
        self, request: str, tab: str, row: int, action: str, label: int | None, seen: int
    ) -> None:
        """seen: the id of the decision that this one replaces, 0 for none."""
        self.decide_all(request, tab, [Choice(row, action, label, seen)])

    def decide_all(self, request: str, tab: str, choices: Sequence[Choice]) -> None:
        """All of them or none, and one `undo` takes them back."""
        with self._open() as db:
            if request in self._requests:
                return
            for choice in choices:
                held = self._current.get(choice.row)
                if (held.id if held else 0) != choice.seen:
                    raise Conflict
            lines = [(choice.row, choice.action, choice.label, None) for choice in choices]
            self._append(db, request, tab, lines)

    def undo(self, request: str, tab: str) -> int | None:
        """Takes back the last request of this tab that still holds; returns its first row."""
        with self._open() as db:
            if request in self._requests:
                return self._requests[request][0]
            last = next((d for d in reversed(self._current.values()) if d.tab == tab), None)
            if last is None:
                return None
            undone = [
                held
                for row in self._requests[last.request]
                if (held := self._current.get(row)) and held.request == last.request
            ]
            self._append(db, request, tab, [(d.row, "undo", None, d.id) for d in undone])
            return undone[0].row

    def _append(
        self,
        db: sqlite3.Connection,
        request: str,
        tab: str,
        lines: Sequence[tuple[int, str, int | None, int | None]],
    ) -> None:
        """Written, not yet taken: it is read again with what others write, once it is on disk.

        lines: row, action, label, and the id of the decision that it undoes.
        """
        at, before = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), self._digest
        written = []
        for number, (row, action, label, undoes) in enumerate(lines, self._last + 1):
            line = Line(number, request, tab, row, action, label, undoes, at)
            before = line.digest(before)
            written.append((*line, before))
        db.executemany(
            f"INSERT INTO decisions ({COLUMNS}, digest) VALUES (?,?,?,?,?,?,?,?,?)", written
        )


def _exists(path: Path) -> bool:
    found = path.exists()
    if not found and any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal")):
        raise _damaged(path, "it is missing, and a part of it is not")
    return found


def _create(path: Path) -> None:
    """A new log, whole or not at all: an empty file is then always a damaged one."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        with closing(sqlite3.connect(temporary)) as db:
            db.execute(SCHEMA)
        _publish(temporary, path)
    except (sqlite3.Error, OSError) as error:
        raise NotSaved(f"This decision is not saved: cannot write {path} ({error}).") from error
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    """Under its name, unless another process was first: its log is not replaced."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            os.replace(temporary, path)


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a damaged file; the log of an older ytilde gets today's table, line by line."""
    if not path.stat().st_size:
        raise _damaged(path, "it is empty")
    ((told,),) = db.execute("PRAGMA integrity_check(1)")
    if told != "ok":
        raise _damaged(path, told)
    tables = _tables(db)
    if tables == _tables_of(SCHEMA):
        return
    if tables not in (_tables_of(*older) for older in OLDER):
        raise _damaged(path, "its tables are not those of a review")
    with db:  # all of it or nothing
        db.execute("BEGIN IMMEDIATE")
        if _tables(db) == tables:  # nobody else was first
            _renew(db, digests=tables == _tables_of(*OLDER[1]))


# How the table was before 'bad' was an action: in 0.1, and then with digests.
_BEFORE_BAD = """
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
OLDER = ((_BEFORE_BAD,), (_BEFORE_BAD, "ALTER TABLE decisions ADD COLUMN digest TEXT"))


def _renew(db: sqlite3.Connection, digests: bool) -> None:
    """Today's table in the place of an older one; a line without a digest gets it, as it is now."""
    lines = db.execute(LINES.format(", digest" if digests else ""), (0,)).fetchall()
    last = db.execute("SELECT seq FROM sqlite_sequence").fetchall()
    db.execute("DROP TABLE decisions")
    db.execute(SCHEMA)
    before = ""
    for values in lines:
        line = Line(*values[: len(Line._fields)])
        before = values[-1] if digests else line.digest(before)
        db.execute(
            f"INSERT INTO decisions ({COLUMNS}, digest) VALUES (?,?,?,?,?,?,?,?,?)", (*line, before)
        )
    # how many lines there ever were, so that lost ones are still missed
    db.execute("DELETE FROM sqlite_sequence")
    db.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES ('decisions', ?)", last)


def _tables(db: sqlite3.Connection) -> list[tuple[str, str, str, str | None]]:
    asked = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    return db.execute(asked).fetchall()


@cache
def _tables_of(*statements: str) -> list[tuple[str, str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in statements:
            db.execute(statement)
        return _tables(db)


def _damaged(path: Path, reason: object) -> BadInput:
    return BadInput(
        f"{path} is damaged ({reason}), so no decision in it is used; put a copy of it back, or "
        "move it away and review again"
    )
