"""The review page: no decision is lost or doubled, and nobody else gets in."""

import contextlib
import http.client
import io
import itertools
import json
import multiprocessing
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from browser import start
from ytilde import BadInput, audit, cli, readers
from ytilde.auditing import review
from ytilde.auditing.pages import text_of
from ytilde.auditing.review.log import OLDER
from ytilde.engine import Recipe

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "\"><img src=x onerror=document.title='pwned'>",
    "قطة \u202eسوداء",
    "👩‍🚀 it's",
    "=cmd()",
)
OPTIONS = ("label", "clean_label", "image_column")


def make_run(folder, suspects, names=HOSTILE, kind="images", features=False, ids=None):
    """A run as `fit` and `audit` leave it: twice as many rows as suspects, and config.json.

    features: similar rows are known; they have the suspect's true class. ids: the first of a
    table's ids.
    """
    rng = np.random.default_rng(0)
    n, k = 2 * suspects, len(names)
    clean = rng.integers(0, k, n)
    y = np.where(np.arange(n) % 2, clean, (clean + 1) % k)
    p = 0.9 * np.eye(k)[clean] + 0.1 * rng.dirichlet(np.ones(k), n)
    folder.mkdir()
    if kind == "images":
        source = folder / "data.npz"
        x = rng.integers(0, 256, (n, 3, 8, 8)).astype(np.uint8)
        np.savez(source, x=x, y=y, names=np.array(names))
    else:
        source = folder / "data.csv"
        frame = pd.DataFrame(
            {"weight": np.arange(n) / 4, "colour": ["red", "<b>blue</b>"] * suspects}
        )
        if ids is not None:
            frame.insert(0, "no", [ids + k for k in range(n)])
        frame.assign(label=np.array(names)[y]).to_csv(source, index=False)
    found = readers.read(str(source))
    config = dict.fromkeys(OPTIONS) | {
        "source": str(source), "data_root": None, "noise": None,
        "recipe": asdict(Recipe()), "fingerprint": found.fingerprint,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    p = p[:, [names.index(name) for name in found.data.names]]  # a table's classes are sorted
    result = audit(p, found.data.y, names=found.data.names, transition=np.full((k, k), 1 / k))
    assert result.issues.is_label_issue.sum() == suspects
    result.context.features = np.eye(k)[clean] if features else None
    result.to_json(folder / "audit.json")
    result.to_csv(folder / "issues.csv")
    return folder


def session(run, sample=None):
    found = readers.read(json.loads((run / "config.json").read_text())["source"])
    shown = {"paths": found.paths, "ids": found.ids, "texts": found.texts}
    return review.Review(run, found.data, columns=found.schema.columns, sample=sample, **shown)


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["ytilde.auditing.review"])  # torch is imported once


def serve(run, pipe, largest=None, sample=None):
    view = session(run, sample)
    if largest is not None:  # bytes of a file, as if the disk were full then
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    review.serve(view, 0, pipe.send)


class Server:
    """A review in a process of its own."""

    def __init__(self, run, **options):
        pytest.importorskip("starlette", reason='pip install "ytilde[app]"')
        pytest.importorskip("uvicorn", reason='pip install "ytilde[app]"')
        pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=serve, args=(run, theirs), kwargs=options, daemon=True
        )
        self.process.start()
        self.url = pipe.recv()
        self.port, self.token = self.url.split(":")[2].strip("/").split("/")

    def kill(self):
        self.process.kill()
        self.process.join()

    def send(self, method, path, body=None, **headers):
        """Status, headers and content of an answer."""
        link = http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=120)
        with contextlib.closing(link):
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            link.request(method, path, sent, headers)
            answer = link.getresponse()
            return answer.status, answer.headers, answer.read()

    def ask(self, verb, **body):
        status, _, content = self.send("POST", f"/{self.token}/{verb}", body)
        assert status == 200, content
        return json.loads(content)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("review") / "run", 40)


@pytest.fixture(scope="module")
def server(run):
    server = Server(run)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from start(tmp_path_factory.mktemp("chromium"))


def lines(run, name=review.LOG):
    if not (run / name).exists():  # before the first decision
        return []
    with contextlib.closing(sqlite3.connect(run / name)) as db:
        return db.execute("SELECT request, row, action, label FROM decisions").fetchall()


# ---- nothing is lost, nothing is doubled ---------------------------------------------------------


class Client(threading.Thread):
    """A tab that decides until nothing is left, and repeats what was not answered."""

    def __init__(self, number, servers):
        super().__init__()
        self.tab, self.servers, self.done = f"tab{number}", servers, {}
        self.random = random.Random(number)

    def ask(self, verb, body):
        while True:
            try:
                return self.servers[-1].ask(verb, tab=self.tab, kind="open", **body)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)  # it was killed; the next one is on its way

    def run(self):
        item = self.ask("next", {})["item"]
        for number in itertools.count():
            if item is None:
                return
            action = self.random.choice(("accept", "keep", "choose"))
            label = {"accept": item["predicted"], "keep": item["given"], "choose": 3}[action]
            request = f"{self.tab}-{number}"
            told = {"action": action, "label": label, "row": item["row"], "seen": item["seen"]}
            answer = self.ask("decide", {"request": request, **told})
            if "conflict" in answer:
                item = self.ask("next", {})["item"]
            else:
                self.done[request] = (item["row"], action, label)
                item = answer["item"]


def test_500_decisions_of_four_tabs_survive_a_killed_server(tmp_path):
    run = make_run(tmp_path / "run", 500)
    servers = [Server(run)]
    clients = [Client(number, servers) for number in range(4)]
    for client in clients:
        client.start()
    for moment in (150, 350):
        while sum(len(client.done) for client in clients) < moment:
            time.sleep(0.005)
        servers[-1].kill()
        servers.append(Server(run))
    for client in clients:
        client.join(300)
    done = {request: told for client in clients for request, told in client.done.items()}
    servers[-1].kill()
    assert len(done) == 500 and min(len(client.done) for client in clients) > 50
    written = lines(run)
    assert len(written) == len({row for _, row, _, _ in written}) == 500
    assert {request: tuple(told) for request, *told in written} == done
    frame = session(run).labels().set_index("index")
    names = readers.read(str(run / "data.npz")).data.names
    for row, _, label in done.values():
        assert frame.label[row] == names[label]
        assert frame.fixed[row] == (frame.given_label[row] != names[label])
    assert frame.fixed.sum() == sum(frame.given_label[r] != names[k] for r, _, k in done.values())
    assert len(frame) == 1000


@settings(deadline=None, max_examples=25)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["accept", "keep", "choose", "bad", "skip", "undo"]),
            st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 4), st.booleans(),
        ), max_size=12,
    )
)  # fmt: skip
def test_log_is_a_list_with_undo(steps):
    """Against a plain list: undo removes the tab's last entry that still holds for its row."""
    with tempfile.TemporaryDirectory() as folder:
        log, model = review.Log(Path(folder) / "log"), []
        for number, (action, tab, row, label, repeat) in enumerate(steps):
            holds = {entry[0]: entry for entry in model}
            seen = log.current()[row].id if row in holds else 0
            for _ in range(1 + repeat):  # a repeated request changes nothing
                if action == "undo":
                    told = log.undo(f"r{number}", tab)
                else:
                    log.decide(f"r{number}", tab, row, action, label, seen)
            if action == "undo":
                own = [entry for entry in model if entry[1] == tab and holds[entry[0]] is entry]
                assert told == (own[-1][0] if own else None)
                model = [entry for entry in model if not own or entry is not own[-1]]
            else:
                model.append((row, tab, action, label))
            expected = {entry[0]: entry for entry in model}
            found = {d.row: (d.row, d.tab, d.action, d.label) for d in log.current().values()}
            assert found == expected


def decided(path, number=40):
    """A log of decisions on 23 rows, some taken back."""
    log = review.Log(path)
    for k in range(number):
        held = log.current().get(k % 23)
        action = ("accept", "keep", "choose", "skip")[k % 4]
        log.decide(f"request {k}", "ab"[k % 2], k % 23, action, k % 5, held.id if held else 0)
        if k % 7 == 6:
            log.undo(f"undo {k}", "b")
    return {row: (d.action, d.label) for row, d in log.current().items()}


def without_digests(path, lines):
    """A log as ytilde 0.1 wrote it."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(OLDER[0][0])
        db.executemany(
            "INSERT INTO decisions (request, tab, row, action, label) VALUES (?,?,?,?,?)", lines
        )
        db.commit()


def test_a_damaged_log_is_refused_in_one_sentence_or_still_right(tmp_path):
    """Of 600 changed bytes 25 gave tracebacks, and 4 other labels without a word."""
    expected = decided(tmp_path / "log")
    content, chance = (tmp_path / "log").read_bytes(), random.Random(0)
    said = []
    for number in range(400):
        place = chance.randrange(len(content) if number % 2 else 200)
        damaged = bytearray(content)
        damaged[place] ^= chance.randrange(1, 256)
        path = tmp_path / f"{number}"
        path.write_bytes(damaged)
        try:
            held = review.Log(path).current()
        except BadInput as error:
            said.append(str(error))
        else:
            assert {row: (d.action, d.label) for row, d in held.items()} == expected, place
    assert len(said) > 50
    assert all(text.startswith(str(tmp_path)) and len(text) < 600 for text in said)


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE decisions SET label = 4 WHERE id = 9",
        "UPDATE decisions SET row = 22 WHERE id = 9",
        "UPDATE decisions SET digest = NULL WHERE id = 9",
        "DELETE FROM decisions WHERE id = 9",
        "DELETE FROM decisions WHERE id = (SELECT MAX(id) FROM decisions)",
        "DELETE FROM decisions",
        "DROP TABLE decisions",
        "CREATE TRIGGER t AFTER INSERT ON decisions BEGIN DELETE FROM decisions; END",
    ],
)
def test_a_decision_cannot_change_or_vanish_unseen(tmp_path, harm):
    decided(tmp_path / "log")
    with contextlib.closing(sqlite3.connect(tmp_path / "log")) as db:
        db.execute(harm)
        db.commit()
    with pytest.raises(BadInput, match=r"log is damaged .* put a copy of it back"):
        review.Log(tmp_path / "log")


@pytest.mark.parametrize("left", [0, 1, 100, 5000])
def test_an_export_of_a_log_that_was_cut_says_so(tmp_path, monkeypatch, capsys, left):
    """An empty file exported "0 changed"."""
    run = make_run(tmp_path / "run", 10, kind="table")
    view = session(run)
    for number, issue in enumerate(view.issues):
        view.log.decide(f"{number}", "a", issue["index"], "accept", issue["predicted"], 0)
    content = (run / review.LOG).read_bytes()
    (run / review.LOG).write_bytes(content[:left])
    out = tmp_path / "labels.csv"
    monkeypatch.setattr(sys, "argv", ["ytilde", "review", str(run), "--export", str(out)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2 and not out.exists()
    assert "review.sqlite is damaged" in capsys.readouterr().err


def test_a_log_without_digests_still_opens_and_gets_them(tmp_path):
    path = tmp_path / "log"
    without_digests(path, [(f"r{k}", "a", k % 7, "keep", k) for k in range(20)])
    log = review.Log(path)
    assert {d.row: d.label for d in log.current().values()} == {k % 7: k for k in range(20)}
    assert log.undo("back", "a") == 19 % 7
    assert review.Log(path).current()[19 % 7].label == 12
    assert [file.name for file in tmp_path.iterdir()] == ["log"]  # nothing of it is elsewhere
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE decisions SET label = 3 WHERE id = 2")
        db.commit()
    with pytest.raises(BadInput, match="decision 2 is not as it was written"):
        review.Log(path)


def before_bad_items(path):
    """A log as it was between: with digests, but no action `bad` and one row a request."""
    held = decided(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        lines = db.execute("SELECT * FROM decisions").fetchall()
        db.execute("DROP TABLE decisions")
        for statement in OLDER[1]:
            db.execute(statement)
        db.executemany("INSERT INTO decisions VALUES (?,?,?,?,?,?,?,?,?)", lines)
        db.commit()
    return held, lines


def test_a_log_from_before_bad_items_still_opens_and_takes_them(tmp_path):
    path = tmp_path / "log"
    held, lines = before_bad_items(path)
    log = review.Log(path)
    assert {row: (d.action, d.label) for row, d in log.current().items()} == held
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM decisions").fetchall() == lines  # digests too
    log.decide("new", "a", 99, "bad", None, 0)
    assert review.Log(path).current()[99].action == "bad"
    assert log.undo("back", "a") == 99 and 99 not in review.Log(path).current()
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE decisions SET label = 4 WHERE id = 9",
        "UPDATE decisions SET digest = NULL WHERE id = 9",
        "DELETE FROM decisions WHERE id = (SELECT MAX(id) FROM decisions)",
        "DELETE FROM decisions",
    ],
)
def test_a_damaged_older_log_is_not_made_a_new_one(tmp_path, harm):
    before_bad_items(tmp_path / "log")
    with contextlib.closing(sqlite3.connect(tmp_path / "log")) as db:
        db.execute(harm)
        db.commit()
    for _ in range(2):  # nor is it taken for whole the second time
        with pytest.raises(BadInput, match="log is damaged"):
            review.Log(tmp_path / "log")


def test_many_decisions_are_one_step(tmp_path):
    log = review.Log(tmp_path / "log")
    log.decide("1", "a", 0, "keep", 1, 0)
    log.decide("2", "b", 1, "keep", 1, 0)
    choices = [review.Choice(row, "accept", 2) for row in range(2, 7)]
    for _ in range(2):  # asked twice, written once
        log.decide_all("3", "a", choices)
    assert len(lines(tmp_path, "log")) == 7
    with pytest.raises(review.Conflict):  # all or none
        log.decide_all("4", "a", [review.Choice(9, "accept", 2), review.Choice(1, "accept", 2)])
    assert 9 not in log.current()
    log.decide("5", "b", 3, "keep", 0, log.current()[3].id)  # one of them is decided anew
    for _ in range(2):
        assert log.undo("6", "a") == 2
    assert log.rows_of("6") == [2, 4, 5, 6]
    for again in (log, review.Log(tmp_path / "log")):
        assert {row: d.label for row, d in again.current().items()} == {0: 1, 1: 1, 3: 0}
    assert log.undo("7", "a") == 0 and log.undo("8", "a") is None
    log.undo("9", "b")  # row 3 again as it was accepted with the others
    assert log.current()[3].label == 2 and log.undo("10", "a") == 3


def test_a_decision_takes_no_longer_after_50_000(tmp_path):
    """It took 455 ms, and grew with the log."""
    run = make_run(tmp_path / "run", 2000)
    rows = [issue["index"] for issue in session(run).issues]
    median = []
    for before in (1900, 50_000):
        for path in run.glob(f"{review.LOG}*"):
            path.unlink()
        without_digests(run / review.LOG, [(f"r{k}", "t", rows[k % 1900], "keep", 1)
                                           for k in range(before)])  # fmt: skip
        view, seconds = session(run), []
        item = view.next("t")["item"]
        for number in range(40):
            began = time.process_time()
            answer = view.decide({"request": f"new {number}", "tab": "t", "kind": "open",
                                  "row": item["row"], "seen": 0, "action": "accept"})  # fmt: skip
            seconds.append(time.process_time() - began)
            item = answer["item"]
        assert answer["progress"]["accept"] == 40 and answer["progress"]["open"] == 60
        median.append(sorted(seconds)[20])
    assert median[1] < 5 * median[0], median


def size_of_an_empty_log(folder):
    with contextlib.closing(sqlite3.connect(folder / "empty.sqlite")) as db:
        db.execute(review.log.SCHEMA)
    return (folder / "empty.sqlite").stat().st_size


def test_on_a_full_disk_the_page_is_told_and_nothing_is_lost(tmp_path):
    run = make_run(tmp_path / "run", 60)
    server = Server(run, largest=size_of_an_empty_log(tmp_path))
    done = 0
    try:
        item = server.ask("next", tab="t", kind="open")["item"]
        for number in range(60):
            body = {"request": f"{number}", "tab": "t", "kind": "open", "row": item["row"],
                    "seen": 0, "action": "choose", "label": 1}  # fmt: skip
            status, _, content = server.send("POST", f"/{server.token}/decide", body)
            if status != 200:
                break
            done, item = done + 1, json.loads(content)["item"]
        assert status == 507
        told = json.loads(content)["error"]
        assert told.startswith("This decision is not saved:") and "Make room" in told
        assert server.ask("next", tab="t", kind="open")["item"]["row"] == item["row"]
    finally:
        server.kill()
    view = session(run)
    assert len(view.log.current()) == done
    view.log.decide("later", "t", item["row"], "keep", 1, 0)
    assert len(session(run).log.current()) == done + 1


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_review(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(BadInput, match="no folder that can be written to"):
        review.Log(tmp_path / "log")
    assert not list(tmp_path.iterdir())


def test_two_tabs_cannot_overrule_each_other_unseen(tmp_path):
    log = review.Log(tmp_path / "log")
    log.decide("1", "a", 7, "accept", 2, 0)
    with pytest.raises(review.Conflict):
        log.decide("2", "b", 7, "keep", 1, 0)
    assert log.current()[7].label == 2
    log.decide("3", "b", 7, "keep", 1, log.current()[7].id)
    assert log.current()[7].label == 1
    assert log.undo("4", "a") is None  # a's decision holds no more
    assert log.undo("5", "b") == 7
    assert log.current()[7].label == 2


def test_tabs_are_offered_different_items(run):
    view = session(run)
    rows = [view.next(tab)["item"]["row"] for tab in ("a", "b", "a", "c")]
    assert rows[0] == rows[2] and len(set(rows)) == 3


def test_items_come_worst_first_and_skipped_ones_again(tmp_path):
    view = session(make_run(tmp_path / "run", 5))
    worst = [issue["p_wrong"] for issue in view.issues]
    assert worst == sorted(worst, reverse=True)
    told = json.loads((view.run / "audit.json").read_text())["issues"]
    assert [issue["index"] for issue in view.issues] == [row["index"] for row in told]
    shown = []
    for number in range(5):
        item = view.next("a")["item"]
        shown.append(item["row"])
        action = "skip" if number % 2 else "accept"
        view.decide({"request": str(number), "tab": "a", "kind": "open", "row": item["row"],
                     "seen": 0, "action": action})  # fmt: skip
    assert shown == [issue["index"] for issue in view.issues]
    end = view.next("a")
    assert end["item"] is None
    assert end["progress"] == {
        "accept": 3, "keep": 0, "choose": 0, "bad": 0, "skip": 2, "total": 5, "open": 0,
    }  # fmt: skip
    again = view.next("a", "skipped")["item"]
    assert again["row"] == shown[1] and again["action"] == "skip"
    assert view.at(99)["item"]["row"] == shown[4] and view.at(0)["item"]["row"] == shown[0]


def pair_of(view, position=0):
    issue = view.issues[position]
    return [issue["given"], issue["predicted"]]


def of_pair(view, pair):
    return [i["index"] for i in view.issues if [i["given"], i["predicted"]] == pair]


def test_one_pair_of_classes_is_shown_alone(tmp_path):
    view = session(make_run(tmp_path / "run", 40))
    pair = pair_of(view)
    rows = of_pair(view, pair)
    told = view.pairs()["pairs"]
    assert sum(each["total"] for each in told) == 40
    assert [each["total"] for each in told] == sorted((e["total"] for e in told), reverse=True)
    assert {"pair": tuple(pair), "total": len(rows), "open": len(rows)} in told
    shown = []
    while (answer := view.next("a", "open", tuple(pair)))["item"]:
        item = answer["item"]
        assert answer["filter"] == tuple(pair) and item["position"] == len(shown)
        assert answer["pair"]["open"] == len(rows) - len(shown)
        shown.append(item["row"])
        body = {"request": str(len(shown)), "tab": "a", "kind": "open", "row": item["row"]}
        view.decide(body | {"seen": 0, "action": "keep", "pair": pair})
    assert shown == rows  # the worst first
    assert answer["progress"]["open"] == 40 - len(rows)
    assert view.at(1, tuple(pair))["item"]["row"] == rows[1]
    back = view.undo({"request": "u", "tab": "a", "kind": "open", "pair": pair})
    assert back["item"]["row"] == rows[-1] and back["filter"] == tuple(pair)
    other = next(each["pair"] for each in told if each["pair"] != tuple(pair))
    view.decide({"request": "v", "tab": "a", "kind": "open", "row": rows[-1], "seen": 0,
                 "action": "keep", "pair": None})  # fmt: skip
    back = view.undo({"request": "w", "tab": "a", "kind": "open", "pair": list(other)})
    assert back["item"]["row"] == rows[-1] and back["filter"] is None  # it is not of that pair


def test_a_pair_is_accepted_at_once_and_taken_back_at_once(tmp_path):
    run = make_run(tmp_path / "run", 40)
    view = session(run)
    pair = pair_of(view)
    rows = of_pair(view, pair)
    skipped, later = rows[0], rows[1:]
    view.decide({"request": "s", "tab": "a", "kind": "open", "row": skipped, "seen": 0,
                 "action": "skip"})  # fmt: skip
    body = {"request": "all", "tab": "a", "kind": "open", "pair": pair, "open": len(later)}
    for _ in range(2):  # a repeated request changes nothing
        answer = view.accept_pair(body)
        assert answer["decided"] == len(later) and "conflict" not in answer
        assert answer["progress"]["accept"] == len(later)
    held = view.log.current()
    assert {held[row].label for row in later} == {pair[1]}
    assert held[skipped].action == "skip"  # somebody was not sure of it
    assert len(lines(run)) == len(rows)
    answer = view.undo({"request": "u", "tab": "a", "kind": "open"})
    assert answer["undone"] == len(later) and answer["item"]["row"] == later[0]
    assert session(run).progress()["open"] == 39


def test_a_pair_that_another_tab_decides_on_meanwhile_is_not_accepted(tmp_path):
    run = make_run(tmp_path / "run", 40)
    view, other = session(run), session(run)
    pair = pair_of(view)
    rows = of_pair(view, pair)
    other.decide({"request": "o", "tab": "b", "kind": "open", "row": rows[2], "seen": 0,
                  "action": "bad"})  # fmt: skip
    body = {"request": "all", "tab": "a", "kind": "open", "pair": pair, "open": len(rows)}
    answer = view.accept_pair(body)
    assert answer["conflict"] and answer["pair"]["open"] == len(rows) - 1
    assert len(lines(run)) == 1
    answer = view.accept_pair(body | {"request": "again", "open": len(rows) - 1})
    assert answer["decided"] == len(rows) - 1 and view.log.current()[rows[2]].action == "bad"


def test_similar_rows_have_the_labels_and_are_not_suspected(tmp_path):
    run = make_run(tmp_path / "run", 40, kind="table", features=True, ids=10**17)
    view = session(run)
    assert view.next("a")["item"]["similar"]
    suspects = set(view.position)
    for issue in view.issues:
        found = view.similar(issue["index"])
        for key in ("given", "predicted"):
            assert 1 <= len(found[key]) <= 3
            for near in found[key]:
                assert near["row"] not in suspects
                assert int(view.data.y[near["row"]]) == issue[key]
                assert near["id"] == str(10**17 + near["row"])
                assert dict(near["values"])["weight"] == str(near["row"] / 4)
    with pytest.raises(BadInput, match="not among the suspects"):
        view.similar(next(row for row in range(80) if row not in suspects))
    told = json.loads((run / "audit.json").read_text())
    del told["digest"]  # as an earlier version wrote it
    told["issues"][0]["similar"]["given"] = [10**6]
    (run / "audit.json").write_text(json.dumps(told))
    with pytest.raises(BadInput, match="a similar row that does not exist"):
        session(run)
    for issue in told["issues"]:  # as an earlier version wrote it
        del issue["similar"]
    (run / "audit.json").write_text(json.dumps(told))
    assert not session(run).next("a")["item"]["similar"]


# ---- what comes out ------------------------------------------------------------------------------


def test_export_has_the_columns_of_audit(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", 10, kind="table")
    before = (run / "data.csv").read_bytes()
    view = session(run)
    rows = [issue["index"] for issue in view.issues]
    view.log.decide("1", "a", rows[0], "accept", view.issues[0]["predicted"], 0)
    view.log.decide("2", "a", rows[1], "keep", view.issues[1]["given"], 0)
    view.log.decide("3", "a", rows[2], "skip", None, 0)
    view.log.decide("4", "a", rows[3], "choose", view.names.index("=cmd()"), 0)
    words = ["ytilde", "review", str(run), "--export", str(tmp_path / "labels.csv")]
    monkeypatch.setattr(sys, "argv", words)
    cli.main()
    frame = pd.read_csv(tmp_path / "labels.csv").set_index("index", drop=False)
    y = readers.read(str(run / "data.csv")).data.y
    other = audit(np.eye(2)[[0, 1]] * 0.8 + 0.1, [0, 1]).fixed_labels(0.9)
    assert list(frame.columns) == list(other.columns)
    assert len(frame) == 20 and (run / "data.csv").read_bytes() == before
    given = [view.names[k] for k in y]
    harmless = [f"'{name}" if name[0] == "=" else name for name in given]
    assert frame.given_label.tolist() == harmless
    assert frame.label[rows[3]] == "'=cmd()"
    assert frame.fixed[rows[0]] and not frame.fixed[rows[1]] and not frame.fixed[rows[2]]
    changed = frame[frame.label != frame.given_label]
    assert set(changed["index"]) == set(frame[frame.fixed]["index"]) <= {rows[0], rows[3]}


def test_bad_items_have_no_label_and_are_left_out_of_the_table(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run", 10, kind="table")
    view, source = session(run), run / "data.csv"
    rows = [issue["index"] for issue in view.issues]
    view.log.decide("1", "a", rows[0], "accept", view.issues[0]["predicted"], 0)
    view.log.decide("2", "a", rows[1], "bad", None, 0)
    view.log.decide("3", "a", rows[2], "skip", None, 0)
    labels, fixed = tmp_path / "labels.csv", tmp_path / "fixed.csv"
    for words in (["review", str(run), "--export", str(labels)],
                  ["review", str(run), "--export", str(labels)],  # it knows its own file again
                  ["relabel", str(source), str(labels), "--out", str(fixed)]):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["ytilde", *words])
        cli.main()
    said = capsys.readouterr().out
    assert "1 of them changed by hand" in said and "1 bad item: the label is left empty" in said
    assert "1 of 20 labels changed, 1 bad item left out" in said
    frame = pd.read_csv(labels, keep_default_na=False).set_index("index")
    assert frame.label[rows[1]] == "" and frame.fixed[rows[1]] and len(frame) == 20
    assert frame.label[rows[2]] == frame.given_label[rows[2]]
    lines = source.read_text().splitlines(keepends=True)
    after = fixed.read_text().splitlines(keepends=True)
    assert len(after) == 20 and lines[rows[1] + 1] not in after
    old = [line for k, line in enumerate(lines) if k not in (rows[0] + 1, rows[1] + 1)]
    assert set(old) <= set(after)


@pytest.mark.parametrize(("row", "label"), [(10**6, 0), (0, 10**6)])
def test_the_review_of_another_run_is_not_exported(row, label, tmp_path):
    view = session(make_run(tmp_path / "run", 10, kind="table"))
    view.log.decide("1", "a", row, "choose", label, 0)
    with pytest.raises(BadInput, match="is the review of another run"):
        view.labels()


def test_rows_of_a_table_have_their_columns(tmp_path):
    view = session(make_run(tmp_path / "run", 10, kind="table"))
    item = view.at(2)["item"]
    colour = ["red", "<b>blue</b>"][item["row"] % 2]
    assert item["values"] == [("weight", str(item["row"] / 4)), ("colour", colour)]  # as written
    assert item["id"] == ""


def test_what_cannot_be_reviewed_says_so(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", 4)
    view = session(run)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(BadInput, match=r'pip install "ytilde\[app\]"'):
        review.serve(view, 0, print)
    told = json.loads((run / "audit.json").read_text())
    del told["digest"]
    told["issues"][0]["given_label"] = told["issues"][0]["predicted_label"]
    (run / "audit.json").write_text(json.dumps(told))
    with pytest.raises(BadInput, match="other labels"):
        session(run)
    (run / "audit.json").write_text("{}")
    with pytest.raises(BadInput, match="again"):
        session(run)
    (run / "audit.json").unlink()
    with pytest.raises(BadInput, match="not audited yet"):
        session(run)


def test_a_damaged_table_definition_is_one_sentence(tmp_path):
    """sqlite3 quotes it in its message, which is then no text."""
    run = make_run(tmp_path / "run", 4)
    item = session(run).next("a")["item"]
    asked = {"request": "r", "tab": "a", "kind": "open", "row": item["row"], "seen": 0}
    session(run).decide(asked | {"action": "keep"})
    log = run / review.LOG
    log.write_bytes(log.read_bytes().replace(b"CREATE TABLE dec", b"CR\xc5ATE TABLE dec"))
    with pytest.raises(BadInput, match="is damaged") as told:
        session(run)
    assert "\n" not in str(told.value)


def test_a_sample_is_not_shown_from_a_changed_table(tmp_path):
    run = make_run(tmp_path / "run", 4)
    assert session(run, sample=3).sample
    path = run / "issues.csv"
    header, first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([header, first[:-2] + f"{(int(first[-2]) + 1) % 10}\n", *rest]))
    with pytest.raises(BadInput, match=r"issues.csv cannot be read .*changed since"):
        session(run, sample=3)


# ---- who gets in ---------------------------------------------------------------------------------


def test_without_the_token_nothing_is_told(server, run):
    right = server.send("GET", f"/{server.token}/")
    assert right[0] == 200 and b"Is this label right?" in right[2]
    before = lines(run)
    row = session(run).issues[0]["index"]
    body = {"request": "x", "tab": "t", "kind": "open", "row": row, "seen": 0, "action": "keep"}
    for token in ("", "wrong", server.token[:-1], server.token + "x", "%00", "..", "%C3%A9"):
        for path in (f"/{token}/", f"/{token}/picture/{row}", f"/{token}/overview"):
            assert server.send("GET", path)[0] == 403
        assert server.send("POST", f"/{token}/decide", body)[0] == 403
    assert lines(run) == before


def test_foreign_host_and_origin_are_refused(server, run):
    before = lines(run)
    row = session(run).issues[0]["index"]
    body = {"request": "y", "tab": "t", "kind": "open", "row": row, "seen": 0, "action": "keep"}
    here = f"127.0.0.1:{server.port}"
    for headers in (
        {"Host": "evil.example"}, {"Host": f"evil.example:{server.port}"}, {"Host": "127.0.0.1"},
        {"Host": here, "Origin": "http://evil.example"}, {"Host": here, "Origin": "null"},
        {"Host": here, "Origin": "http://127.0.0.1:1"}, {"Host": here, "Origin": f"https://{here}"},
    ):  # fmt: skip
        assert server.send("POST", f"/{server.token}/decide", body, **headers)[0] == 403, headers
        assert server.send("GET", f"/{server.token}/", **headers)[0] == 403, headers
    assert lines(run) == before
    own = {"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}"}
    assert server.send("GET", f"/{server.token}/", **own)[0] == 200


def test_policy_lets_nothing_in_from_outside(server):
    for path in (f"/{server.token}/", "/"):
        headers = server.send("GET", path)[1]
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        allowed = {word for words in policy.values() for word in words.split()}
        assert {w for w in allowed if "sha256-" not in w} == {"'self'", "'none'", "data:"}
        assert "self" not in policy["script-src"] + policy["style-src"]
        assert (
            headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
        )


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells the open ports here")
def test_only_this_machine_is_served(server):
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = {line[1] for line in table if line[3] == "0A"}  # listening
    port = f"{int(server.port):04X}"
    assert {address for address in local if address.endswith(port)} == {f"0100007F:{port}"}


@pytest.mark.parametrize(
    "change",
    [
        {"row": 10**6}, {"row": -1}, {"row": "0"}, {"row": True}, {"action": "delete"},
        {"seen": ""}, {"action": "choose", "label": 99}, {"action": "choose"}, {"tab": ""},
        {"request": "x" * 65}, {"request": 7}, {"note": "x" * 5000},
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_not_written(server, run, change):
    before = lines(run)
    row = session(run).issues[0]["index"]
    body = {"request": "z", "tab": "t", "kind": "open", "row": row, "seen": 0, "action": "keep"}
    status, _, content = server.send("POST", f"/{server.token}/decide", body | change)
    assert status == 400 and json.loads(content)["error"]
    deep = (b"[" * 4000, b'{"a":' * 800, b'{"row": ' + b"[" * 2000 + b"]" * 2000 + b"}")
    plain = (b"", b"[]", b"\xff", b"nul", b'{"row": 1e999}', b'{"row": 1%s}' % (b"0" * 4000))
    for junk in plain + deep:
        assert server.send("POST", f"/{server.token}/decide", junk)[0] == 400
    assert server.send("POST", f"/{server.token}/unheard", {})[0] == 400
    assert server.send("GET", f"/{server.token}/picture/{row + 1}")[0] == 404  # not a suspect
    assert server.send("GET", f"/{server.token}/picture/x")[0] == 404
    for digits in (17, 5000):
        assert server.send("GET", f"/{server.token}/picture/{'9' * digits}")[0] == 400
    assert lines(run) == before


@pytest.mark.parametrize(
    "change",
    [
        {"pair": None}, {"pair": [0]}, {"pair": [0, 0]}, {"pair": [0, 99]}, {"pair": ["0", "1"]},
        {"pair": [True, 1]}, {"pair": "01"}, {"pair": {"0": 1}}, {"only": 7}, {"open": 0},
        {"open": -1}, {"open": "5"}, {"request": ""}, {"request": "x" * 65}, {"tab": None},
    ],
)  # fmt: skip
def test_nonsense_about_pairs_is_refused_and_not_written(server, run, change):
    before, view = lines(run), session(run)
    pair = pair_of(view)
    body = {"request": "n", "tab": "t", "kind": "open", "pair": pair, "open": len(view.issues)}
    status, _, content = server.send("POST", f"/{server.token}/accept-pair", body | change)
    assert status == 400 and json.loads(content)["error"]
    for verb in ("next", "at", "undo", "decide"):
        body = {"request": "m", "tab": "t", "kind": "open", "position": 0, "pair": [0, 0]}
        body |= {"row": view.issues[0]["index"], "seen": 0, "action": "keep"}
        assert server.send("POST", f"/{server.token}/{verb}", body)[0] == 400
    for row in (-1, 10**6, view.issues[0]["index"] + 1, "0", None):
        assert server.send("POST", f"/{server.token}/similar", {"row": row})[0] == 400
    assert lines(run) == before


def test_only_pictures_of_suspects_and_of_similar_rows_are_shown(tmp_path):
    run = make_run(tmp_path / "run", 10, features=True)
    view = session(run)
    server = Server(run)
    try:
        for row in range(20):
            for size in ("", "/small", "/page", "/full"):
                status, headers, content = server.send(
                    "GET", f"/{server.token}/picture/{row}{size}"
                )
                assert status == (200 if row in view.visible else 404)
                if status == 200:
                    assert headers["Content-Type"] == "image/png"
                    assert Image.open(io.BytesIO(content)).size == (8, 8)
        row = view.issues[0]["index"]
        assert server.send("GET", f"/{server.token}/picture/{row}/huge")[0] == 404
        assert server.send("GET", f"/{server.token}/picture/{row}/full/x")[0] == 404
    finally:
        server.kill()


def test_a_picture_opens_at_the_size_of_its_file(tmp_path):
    """Training sees 32 pixels of it; who decides may want all."""
    view = session(make_run(tmp_path / "run", 4))
    shape = {row: (900, 700) if row % 2 else (1600, 900) for row in range(8)}
    for row, size in shape.items():
        Image.new("RGB", size, (row, 0, 0)).save(tmp_path / f"{row}.jpeg")
    view.paths = [str(tmp_path / f"{row}.jpeg") for row in range(8)]
    for row in view.position:
        content, kind = view.picture(row, "full")
        assert Image.open(io.BytesIO(content)).size == shape[row]
        assert kind == ("png" if row % 2 else "jpeg")  # a large PNG takes seconds
        assert Image.open(io.BytesIO(view.picture(row)[0])).size == (8, 8)
    Path(view.paths[row]).unlink()  # what training saw is still there
    assert Image.open(io.BytesIO(view.picture(row, "full")[0])).size == (8, 8)


def test_command_serves_until_ctrl_c(run):
    command = [sys.executable, "-m", "ytilde", "review", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w-]{32}/)", process.stdout.readline())
        link = http.client.HTTPConnection("127.0.0.1", int(url[1]), timeout=120)
        link.request("GET", url[2])
        assert link.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        assert "of 40 decided, and all decisions are saved" in process.stdout.read()
        assert process.wait(120) == 0


# ---- in a browser --------------------------------------------------------------------------------

PLACE = "document.getElementById('place').textContent"


def press(browser, key):
    """Press a key and wait until another item, or the end, is shown."""
    before = browser.eval(PLACE)
    browser.press(key)
    browser.until(f"{PLACE} !== {json.dumps(before)} || !document.getElementById('end').hidden")


def test_in_a_browser_with_the_keyboard(tmp_path, browser):
    run = make_run(tmp_path / "run", 8)
    view, server = session(run), Server(run)
    rows = [issue["index"] for issue in view.issues]
    try:
        browser.open(server.url)
        browser.until("document.getElementById('picture').naturalWidth === 8")
        assert browser.eval("document.getElementById('given').textContent").startswith(
            text_of(view.names[view.issues[0]["given"]])
        )
        press(browser, "a")
        press(browser, "k")
        press(browser, "s")
        press(browser, "r")
        browser.press("c")
        browser.until("document.getElementById('choose').open")
        for letter in "cmd":
            browser.press(letter)
        press(browser, "Enter")
        press(browser, "Enter")
        held = view.log.current()
        assert [held[row].action for row in rows[:6]] == [
            "accept", "keep", "skip", "choose", "choose", "accept"]  # fmt: skip
        assert held[rows[0]].label == view.issues[0]["predicted"]
        assert held[rows[1]].label == view.issues[1]["given"]
        assert held[rows[3]].label == view.issues[3]["runner_up"]
        assert held[rows[4]].label == view.names.index("=cmd()")
        press(browser, "u")  # back to the sixth
        assert rows[5] not in view.log.current() and "6 of 8" in browser.eval(PLACE)
        press(browser, "ArrowLeft")
        assert browser.eval("document.getElementById('decision').textContent") == "=cmd()"
        press(browser, "k")  # another decision in its place
        assert view.log.current()[rows[4]].action == "keep"
        assert "6 of 8" in browser.eval(PLACE)

        # another tab decides on the same item first: this one hears of it
        server.ask("decide", request="other", tab="other", kind="open", row=rows[5], seen=0,
                   action="accept")  # fmt: skip
        browser.press("k")
        browser.until("document.getElementById('notice').textContent.includes('Another tab')")
        assert view.log.current()[rows[5]].action == "accept"
        press(browser, "k")
        assert view.log.current()[rows[5]].action == "keep"
        press(browser, "a")
        press(browser, "a")
        browser.until("!document.getElementById('end').hidden")
        assert "1 skipped" in browser.eval("document.getElementById('sum').textContent")
        browser.eval("document.getElementById('again').click()")
        browser.until("!document.getElementById('item').hidden")
        press(browser, "k")
        assert len(view.log.current()) == 8 and view.progress()["skip"] == 0
        browser.open(server.url)  # loaded again, this tab can still undo
        browser.until("!document.getElementById('end').hidden")
        browser.press("u")
        browser.until("!document.getElementById('item').hidden")
        assert view.log.current()[rows[2]].action == "skip"
    finally:
        server.kill()


COUNTS = "document.getElementById('counts').textContent"
NOTICE = "document.getElementById('notice').textContent"


def test_in_a_browser_a_pair_is_accepted_and_taken_back(tmp_path, browser):
    run = make_run(tmp_path / "run", 60, names=("cat", "dog", "bird"))
    view, server = session(run), Server(run)
    pair = pair_of(view, 7)
    rows = of_pair(view, pair)
    words = " → ".join(view.names[k] for k in pair)
    try:
        browser.open(server.url)
        browser.until(PLACE)
        browser.press("f")
        browser.until("document.getElementById('choose').open")
        options = "[...document.querySelectorAll('#classes button')].map((b) => b.textContent)"
        assert len(browser.eval(options)) == 4  # all, and the three pairs
        for letter in words:
            browser.press(letter)
        browser.until(f"{options}.length === 1")
        assert browser.eval(options) == [f"{words}{len(rows)} of {len(rows)} open"]
        browser.press("Enter")
        browser.until(f"{PLACE} === '1 of {len(rows)}, row {rows[0]}'")
        assert words in browser.eval("document.getElementById('filter').textContent")
        press(browser, "b")  # the first is of no class
        assert view.log.current()[rows[0]].action == "bad"
        browser.press("p")
        browser.until("document.getElementById('confirm').open")
        told = browser.eval("document.getElementById('confirm').textContent")
        assert f"all {len(rows) - 1} open items" in told and len(view.log.current()) == 1
        browser.press("Escape")  # thought better of it
        browser.until("!document.getElementById('confirm').open")
        browser.press("p")
        browser.until("document.getElementById('confirm').open")
        browser.press("Enter")
        browser.until("!document.getElementById('end').hidden")
        assert "Nothing is left of this pair" in browser.eval("document.body.innerText")
        held = view.log.current()
        assert [held[row].action for row in rows] == ["bad"] + ["accept"] * (len(rows) - 1)
        assert f"{len(rows) - 1} accepted" in browser.eval(NOTICE)
        browser.press("u")
        browser.until(f"{NOTICE} === '{len(rows) - 1} decisions are taken back.'")
        assert list(view.log.current()) == rows[:1] and "1 bad" in browser.eval(COUNTS)
        browser.press("u")
        browser.until(f"{NOTICE} === 'The last decision is taken back.'")
        assert not view.log.current()
        # another tab decides on one of them while this page asks
        server.ask("decide", request="o", tab="o", kind="open", row=rows[3], seen=0, action="keep")
        browser.press("p")
        browser.until("document.getElementById('confirm').open")
        browser.press("Enter")
        browser.until(f"{NOTICE} === 'Another tab decided on some of them in the meantime.'")
        assert list(view.log.current()) == [rows[3]]
        browser.press("f")
        browser.until("document.getElementById('choose').open")
        browser.press("Enter")  # all pairs again
        browser.until(f"{PLACE}.includes(' of 60,')")
    finally:
        server.kill()


def test_in_a_browser_ten_thousand_suspects_with_ids_of_18_digits(tmp_path, browser):
    names = tuple(f"class {k}" for k in range(12))
    run = make_run(tmp_path / "run", 10_000, names, "table", features=True, ids=9 * 10**17)
    view, server = session(run), Server(run)
    try:
        browser.open(server.url)
        browser.until(PLACE)
        for position in range(3):
            row = view.issues[position]["index"]
            assert browser.eval(PLACE) == f"{position + 1} of 10000, row {row}, id"
            shown = browser.eval("document.getElementById('id').textContent")
            assert shown == str(9 * 10**17 + row)  # a float would say ...000
            browser.until(f"document.getElementById('beside').dataset.row === '{row}'")
            near = view.similar(row)
            heads = browser.eval("[...document.querySelectorAll('#beside th[scope=col]')]"
                                 ".map((h) => h.textContent)")  # fmt: skip
            assert heads == ["this item", *(
                f"{view.names[view.issues[position][key]]}row {each['row']}, id {each['id']}"
                for key in ("given", "predicted") for each in near[key]
            )]  # fmt: skip
            assert len(heads) == 7
            press(browser, "a")
        pair = pair_of(view, 3)
        rows = of_pair(view, pair)
        open_rows = [row for row in rows if row not in view.log.current()]
        began = time.monotonic()
        browser.press("p")
        browser.until("document.getElementById('confirm').open")
        browser.press("Enter")
        browser.until(f"{NOTICE} === '{len(open_rows)} accepted; one undo takes them back.'")
        assert len(open_rows) > 500 and time.monotonic() - began < 10
        assert view.progress()["accept"] == 3 + len(open_rows)
        browser.press("u")
        browser.until(f"{NOTICE} === '{len(open_rows)} decisions are taken back.'")
        assert view.progress()["accept"] == 3
    finally:
        server.kill()


def test_in_a_browser_pictures_open_and_have_similar_ones_beside(tmp_path, browser):
    run = make_run(tmp_path / "run", 30, features=True)
    view, server = session(run), Server(run)
    try:
        browser.open(server.url)
        row = view.issues[0]["index"]
        browser.until(f"document.getElementById('beside').dataset.row === '{row}'")
        near = view.similar(row)
        alts = browser.eval("[...document.querySelectorAll('#beside img')].map((i) => i.alt)")
        assert alts == [f"row {each['row']}, labelled {text_of(view.names[view.issues[0][key]])}"
                        for key in ("given", "predicted") for each in near[key]]  # fmt: skip
        browser.until("[...document.querySelectorAll('#beside img')].every((i) => i.naturalWidth)")
        browser.press("z")
        browser.until(
            "document.getElementById('large-size').textContent.startsWith('8 × 8 pixels')"
        )
        assert browser.eval("document.getElementById('large-picture').offsetWidth") == 384
        browser.press("a")  # the picture is looked at: no decision
        browser.press("Escape")
        browser.until("!document.getElementById('large').open")
        assert not view.log.current()
        browser.press("n")
        browser.until("document.getElementById('beside').hidden")
        press(browser, "a")
        browser.press("n")
        other = view.issues[1]["index"]
        browser.until(f"document.getElementById('beside').dataset.row === '{other}'")
        # Enter presses a button that has the focus, instead of accepting
        browser.eval("document.querySelector('[data-do=skip]').focus()")
        press(browser, "Enter")
        assert view.log.current()[other].action == "skip"
    finally:
        server.kill()


def test_in_a_browser_hostile_names_are_text(run, server, browser):
    browser.open("about:blank")  # what an earlier page still asks for is over
    browser.open(server.url)
    browser.until("document.getElementById('picture').naturalWidth")
    # no line through the given label: a struck-out -1 looked like 1
    given = "getComputedStyle(document.querySelector('.given')).textDecorationLine"
    assert browser.eval(given) == "none"
    browser.press("c")
    browser.until("document.getElementById('choose').open")
    shown = browser.eval(
        "[...document.querySelectorAll('#classes button')].map(b => b.textContent)"
    )
    assert shown == [text_of(name) for name in session(run).names]
    assert "\u202e" not in "".join(shown)
    assert browser.eval("document.title").startswith("Review: ")
    assert browser.eval("document.scripts.length") == 1
    urls = {p["request"]["url"] for p in browser.said("Network.requestWillBeSent")}
    assert all(url.startswith((server.url, "data:,")) for url in urls)
    entries = [p["entry"] for p in browser.said("Log.entryAdded")]
    # the page of an earlier test may still ask a server that was killed on purpose
    own = [e for e in entries if e.get("url", server.url).startswith(server.url)]
    errors = [e for e in own if e["level"] == "error"]
    assert not errors and not browser.said("Runtime.exceptionThrown")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_in_a_browser_nothing_sticks_out(server, browser, width):
    browser.resize(width, 800)
    try:
        browser.open(server.url)
        browser.until("document.getElementById('picture').naturalWidth")
        assert browser.eval("document.documentElement.scrollWidth") <= width
        heights = browser.eval("""[...document.querySelectorAll('button')]
            .map((b) => b.getBoundingClientRect().height).filter((h) => h)""")
        assert len(heights) == 12 and min(heights) >= 40  # a finger's width
    finally:
        browser.resize(1000, 900)


def test_in_a_browser_a_stopped_server_is_told(tmp_path, browser):
    run = make_run(tmp_path / "run", 4)
    server = Server(run)
    browser.open(server.url)
    browser.until(PLACE)
    press(browser, "a")
    server.kill()
    browser.press("a")
    browser.until("document.getElementById('notice').textContent.includes('not saved yet')")
    assert "2 of 4" in browser.eval(PLACE)  # it waits instead of going on
    assert len(session(run).log.current()) == 1


def test_in_a_browser_a_full_disk_is_told(tmp_path, browser):
    run = make_run(tmp_path / "run", 60)
    server = Server(run, largest=size_of_an_empty_log(tmp_path))
    notice = "document.getElementById('notice').textContent"
    try:
        browser.open(server.url)
        browser.until(PLACE)
        for _ in range(60):
            before = browser.eval(PLACE)
            browser.press("a")
            browser.until(f"{notice} || {PLACE} !== {json.dumps(before)}")
            if browser.eval(notice):
                break
        assert browser.eval(notice).startswith("This decision is not saved:")
        assert browser.eval(PLACE) == before  # the item waits
    finally:
        server.kill()
