"""Many pieces of work: in order, on all cores, on a real cluster, and continued after a real kill."""

from __future__ import annotations

import json
import math
import os
import pty
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dpmerge.errors import JobError, RecordError
from dpmerge.jobs import Finished, mapping, run_all

ROOT = Path(__file__).parent.parent
LONG = 60.0  # seconds that a slow machine may take for what takes a fast one a moment
KEYS = [f"piece-{index}" for index in range(8)]


# What the workers run.


def square(item: int) -> int:
    return item * item


def slower_at_first(item: int) -> int:
    time.sleep(0.3 / (1 + item))
    return item


def process(_: int) -> int:
    return os.getpid()


def environment(name: str, _: int) -> str | None:
    return os.environ.get(name)


def noted(folder: Path, item: int) -> list[float]:
    """Leave a mark of every call."""
    (folder / f"{item} {uuid4()}").touch()
    return [item / 3, math.inf]


def refused(item: int) -> int:
    if item == 3:
        raise RecordError(f"item {item} is refused")
    return item


def divided(item: int) -> float:
    return 1 / (item - 3)


class AwkwardError(Exception):
    """An error that does not survive pickling, as many a library's."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def awkward(_: int) -> int:
    raise AwkwardError("this", "that")


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def stuck_from_3_on(folder: Path, item: int) -> list[float]:
    result = noted(folder, item)
    if item >= 3:
        wait_until((folder / "released").exists)
    return result


def killed_at_3(store: Path, item: int) -> int:
    if item == 3:
        wait_until(lambda: store.read_bytes().count(b"\n") > 0)
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def killed(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def meet(folder: Path, _: int) -> int:
    """Return only when two processes have come here."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    return os.getpid()


def calls(folder: Path) -> Counter[int]:
    return Counter(int(mark.name.split()[0]) for mark in folder.iterdir() if " " in mark.name)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


# Order, values, errors.


@pytest.mark.parametrize("jobs", [1, 2, -1])
def test_results_are_in_the_order_of_the_items(jobs: int) -> None:
    assert run_all(square, range(20), jobs=jobs) == [item * item for item in range(20)]
    assert run_all(slower_at_first, range(6), jobs=jobs) == list(range(6))
    assert run_all(square, [], jobs=jobs) == []


def test_one_process_or_one_item_stays_in_this_process() -> None:
    here = os.getpid()
    assert run_all(process, range(3), jobs=1) == [here] * 3
    assert run_all(process, [0]) == [here]
    assert here not in run_all(process, range(3), jobs=2)
    with pytest.raises(JobError, match="`jobs` is 0"):
        run_all(process, range(3), jobs=0)


def test_workers_use_one_thread_each() -> None:
    assert set(run_all(partial(environment, "OMP_NUM_THREADS"), range(4), jobs=2)) == {"1"}


def test_a_worker_that_ended_for_want_of_work_is_no_error() -> None:
    """Here warnings are errors; this one, raised in loky's thread, would leave the work waiting for ever."""
    run_all(square, range(4), jobs=2)
    warnings.warn("A worker stopped while some jobs were given to the executor.", UserWarning, stacklevel=1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_arrive_as_what_they_are_and_finished_pieces_are_kept(jobs: int, tmp_path: Path) -> None:
    with Finished(tmp_path / "store") as store:
        with pytest.raises(RecordError, match=r"^item 3 is refused$"):
            run_all(refused, range(8), keys=KEYS, finished=store, jobs=jobs)
        if jobs == 1:
            assert [key in store for key in KEYS] == [True] * 3 + [False] * 5
        with pytest.raises(ZeroDivisionError):
            run_all(divided, range(8), jobs=jobs)
        # What was abandoned does not get into the way of what follows.
        assert run_all(square, range(8), jobs=jobs) == [item * item for item in range(8)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_result_that_is_not_plain_data_is_refused_by_name(jobs: int, tmp_path: Path) -> None:
    with Finished(tmp_path / "store") as store, pytest.raises(JobError, match=r"result of 'piece-\d' cannot be stored"):
        run_all(complex, range(8), keys=KEYS, finished=store, jobs=jobs)


def test_a_killed_worker_is_said_and_what_had_finished_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Finished(path) as store:
        with pytest.raises(JobError, match=r"worker process died.*finished work is stored in .*store"):
            run_all(partial(killed_at_3, path), range(8), keys=KEYS, finished=store, jobs=2)
        assert any(key in store for key in KEYS)
        assert run_all(square, range(4), keys=[f"other-{i}" for i in range(4)], finished=store, jobs=2) == [0, 1, 4, 9]
    with pytest.raises(JobError, match="worker process died") as caught:
        run_all(killed, range(8), jobs=2)
    assert "kept" not in str(caught.value)


# Continuing.


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_second_run_does_only_what_is_missing(jobs: int, marks: Path, tmp_path: Path) -> None:
    work = partial(noted, marks)
    with Finished(tmp_path / "new" / "folder" / "store") as store:
        first = run_all(work, range(3), keys=KEYS[:3], finished=store, jobs=jobs)
    with Finished(tmp_path / "new" / "folder" / "store") as store:
        both = run_all(work, range(8), keys=KEYS, finished=store, jobs=jobs)
        assert run_all(work, range(8), keys=KEYS, finished=store, jobs=jobs) == both
    assert both[:3] == first
    assert both == [[item / 3, math.inf] for item in range(8)]
    assert calls(marks) == dict.fromkeys(range(8), 1)


def test_new_and_kept_results_are_the_same_data(tmp_path: Path) -> None:
    for _ in range(2):
        with Finished(tmp_path / "store") as store:
            assert run_all(divmod_by_3, [7], keys=["7"], finished=store) == [[2, 1]]


def divmod_by_3(item: int) -> Any:
    return divmod(item, 3)


@pytest.mark.parametrize("keys", [None, KEYS[:3], ["same"] * 8])
def test_every_item_needs_a_key_of_its_own(keys: list[str] | None, tmp_path: Path) -> None:
    with Finished(tmp_path / "store") as store, pytest.raises(JobError, match="its own key"):
        run_all(square, range(8), keys=keys, finished=store)


TO_BE_KILLED = """
import sys
from functools import partial
from pathlib import Path

from dpmerge.jobs import Finished, run_all
from tests.test_jobs import KEYS, stuck_from_3_on

path, marks = map(Path, sys.argv[1:3])
with Finished(path) as store:
    run_all(partial(stuck_from_3_on, marks), range(8), keys=KEYS, finished=store, jobs=int(sys.argv[3]))
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_killed_in_the_middle_is_continued(jobs: int, marks: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with (tmp_path / "log").open("wb") as log:
        words = [sys.executable, "-c", TO_BE_KILLED, str(path), str(marks), str(jobs)]
        run = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") == 3 and 3 in calls(marks))
        with pytest.raises(JobError, match="another run is using"):
            Finished(path)
    finally:
        run.kill()
        assert run.wait() == -signal.SIGKILL
    (marks / "released").touch()
    before = calls(marks)
    with Finished(path) as store:
        assert [key in store for key in KEYS] == [True] * 3 + [False] * 5
        results = run_all(partial(stuck_from_3_on, marks), range(8), keys=KEYS, finished=store, jobs=jobs)
    assert results == [[item / 3, math.inf] for item in range(8)]
    # Workers outlive a killed run for a moment and may yet begin a piece of their own; never one that had finished.
    assert all(calls(marks)[item] == 1 for item in range(3))
    assert all(calls(marks)[item] > before[item] for item in range(3, 8))
    if jobs == 1:
        assert calls(marks) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}


# The store.


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def test_floats_come_back_exactly(tmp_path: Path) -> None:
    values = [0.1, 1 / 3, 5e-324, sys.float_info.max, -0.0, 1e22, math.inf, -math.inf, math.nan]
    data = {"values": values, "nested": {"ü\n\ud800": [None, True, 2**80, "NaN"]}}
    with Finished(tmp_path / "store") as store:
        store.put("key\n", data)
    with Finished(tmp_path / "store") as store:
        found = store.get("key\n")
        assert [bits(value) for value in found["values"]] == [bits(value) for value in values]
        assert found["nested"] == data["nested"]
        assert "other" not in store
        with pytest.raises(KeyError):
            store.get("other")


def test_of_two_results_the_later_counts(tmp_path: Path) -> None:
    with Finished(tmp_path / "store") as store:
        store.put("a", 1)
        store.put("a", 2)
        assert store.get("a") == 2
    with Finished(tmp_path / "store") as store:
        assert store.get("a") == 2


@pytest.mark.parametrize("kept", [1, 10, -2, -1])
def test_a_torn_last_line_is_ignored_and_does_not_spoil_the_next(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Finished(path) as store:
        store.put("a", 1.5)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.replace(b'"a"', b'"b"')[:kept])
    with Finished(path) as store:
        assert store.get("a") == 1.5
        assert "b" not in store
        store.put("c", 2.5)
    with Finished(path) as store:
        assert (store.get("a"), store.get("c")) == (1.5, 2.5)
        assert "b" not in store


def test_a_line_that_only_lacks_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Finished(path) as store:
        store.put("a", 1)
    path.write_bytes(path.read_bytes().rstrip())
    with Finished(path) as store:
        store.put("b", 2)
    with Finished(path) as store:
        assert (store.get("a"), store.get("b")) == (1, 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b"2.5", b"2.6"),
        lambda line: line.replace(b'"b"', b'"c"'),
        lambda line: b"\x00" * len(line),
        lambda line: b"\xff" + line,
        lambda line: b"[" * 100_000,
        lambda line: b"[1]",
        lambda line: b'{"key": ["b"], "result": 1, "sum": "0"}',
        lambda line: b"",
    ],
)
def test_a_damaged_line_in_the_middle_is_ignored(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Finished(path) as store:
        for key, value in [("a", 1.5), ("b", 2.5), ("d", 3.5)]:
            store.put(key, value)
    first, second, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage(second), third, b""]))
    with Finished(path) as store:
        assert [key in store for key in "abcd"] == [True, False, False, True]
        assert (store.get("a"), store.get("d")) == (1.5, 3.5)


def test_a_file_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    script = "import sys; from pathlib import Path; from dpmerge.jobs import Finished\n"
    script += "store = Finished(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(path)], **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JobError, match=r"another run is using .*store"):
            Finished(path)
        holder.communicate()
    with Finished(path) as store:
        store.put("a", 1)


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "store"):
        with pytest.raises(JobError, match=rf"^{path}: finished work cannot be stored there"):
            Finished(path)


def test_a_full_disk_is_said_and_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Finished(path) as store:
        store.put("a", 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
        try:
            with pytest.raises(JobError, match="cannot be stored there"):
                store.put("b", 2)
            assert "b" not in store
            store.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with Finished(path) as store:
        assert store.get("a") == 1
        assert "b" not in store
        store.put("b", 3)
    with Finished(path) as store:
        assert store.get("b") == 3


# Progress.


class Told:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def start(self, total: int, label: str) -> None:
        self.said.append(f"start {total} {label}")

    def advance(self) -> None:
        self.said.append("advance")

    def finish(self) -> None:
        self.said.append("finish")


def test_progress_is_told_of_every_piece_and_of_the_end(tmp_path: Path) -> None:
    told = Told()
    with Finished(tmp_path / "store") as store:
        run_all(square, range(3), keys=KEYS[:3], finished=store, progress=told)
        run_all(square, range(5), keys=KEYS[:5], finished=store, progress=told, jobs=2)
    with pytest.raises(RecordError):
        run_all(refused, range(8), progress=told, jobs=1)
    step = ["advance"]
    assert told.said == (
        ["start 3 ", *step * 3, "finish", "start 2 (3 finished before)", *step * 2, "finish", "start 8 ", *step * 3, "finish"]
    )


BAR = """
from dpmerge.jobs import ProgressBar, run_all
bar = ProgressBar("Squares")
bar.start(4, "(2 finished before)")
for _ in range(3):
    bar.advance()
print("result")
bar.advance()
bar.finish()
bar.advance()
"""


def test_the_bar_is_drawn_on_a_terminal_and_leaves_stdout_alone() -> None:
    ours, theirs = pty.openpty()
    terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with open(ours, "rb", buffering=0) as screen:
        with open(theirs, "wb", buffering=0) as stderr:
            done = subprocess.run(
                [sys.executable, "-c", BAR], stdout=subprocess.PIPE, stderr=stderr, env=terminal, check=True, timeout=LONG
            )
        drawn = b""
        with suppress(OSError):  # how a terminal says that nobody is left to write to it
            while part := screen.read(1000):
                drawn += part
    assert done.stdout == b"result\n"
    for text in ("Squares (2 finished before)", "0/4", "4/4", "100%"):
        assert text.encode() in drawn


def test_the_bar_is_silent_elsewhere() -> None:
    done = subprocess.run([sys.executable, "-c", BAR], capture_output=True, check=True, timeout=LONG)
    assert (done.stdout, done.stderr) == (b"result\n", b"")


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    script = "import sys, dpmerge.jobs as jobs; jobs.run_all(abs, [1, 2], jobs=1, progress=jobs.ProgressBar())\n"
    script += "assert not {'joblib', 'distributed', 'rich', 'numpy', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG)


# A cluster: a scheduler and workers, each a process of its own.


@contextmanager
def started_cluster(folder: Path, workers: int, **settings: str) -> Iterator[str]:
    """The address of a scheduler on this machine with this many workers of one thread each."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **settings}

    def start(name: str, *command: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("wb") as log:
            words = [sys.executable, "-m", "dask", *command, "--host", "127.0.0.1", "--no-dashboard"]
            return subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)

    with ExitStack() as stack:

        def until_left(process: subprocess.Popen[bytes]) -> None:
            stack.enter_context(process)
            stack.callback(process.kill)

        file = folder / "scheduler.json"
        until_left(start("scheduler", "scheduler", "--port", "0", "--scheduler-file", str(file)))
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        address = str(json.loads(file.read_text())["address"])
        for index in range(workers):
            single = ("--nworkers", "1", "--nthreads", "1", "--no-nanny")
            until_left(start(f"worker-{index}", "worker", address, *single, "--local-directory", str(folder)))
        if workers:
            import distributed

            client: Any = distributed.Client
            with client(address, set_as_default=False) as connection:
                connection.wait_for_workers(workers, timeout=LONG)
        yield address


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("distributed", reason="the cluster extra is not installed")
    with started_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as address:
        yield address


def test_both_workers_of_a_cluster_work(cluster: str, marks: Path) -> None:
    found = run_all(partial(meet, marks), range(8), cluster=cluster)
    assert len(set(found)) == 2
    assert os.getpid() not in found


def test_a_cluster_finds_what_this_machine_finds_and_continues(cluster: str, marks: Path, tmp_path: Path) -> None:
    work = partial(noted, marks)
    told = Told()
    with Finished(tmp_path / "store") as store:
        run_all(work, range(3), keys=KEYS[:3], finished=store, cluster=cluster)
        found = run_all(work, range(8), keys=KEYS, finished=store, cluster=cluster, progress=told)
    assert calls(marks) == dict.fromkeys(range(8), 1)
    assert found == run_all(work, range(8), jobs=1)
    assert told.said == ["start 5 (3 finished before)", *["advance"] * 5, "finish"]
    assert run_all(slower_at_first, range(6), cluster=cluster) == list(range(6))


def test_errors_come_back_from_a_cluster_as_what_they_are(
    cluster: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Finished(tmp_path / "store") as store, pytest.raises(RecordError, match=r"^item 3 is refused$"):
        run_all(refused, range(8), keys=KEYS, finished=store, cluster=cluster)
    with pytest.raises(ZeroDivisionError):
        run_all(divided, range(8), cluster=cluster)
    with pytest.raises(RuntimeError, match=r"^AwkwardError: this and that$"):
        run_all(awkward, range(8), cluster=cluster)
    with pytest.raises(TypeError, match="pickle"):
        run_all(socket.socket, [socket.AF_INET, socket.AF_INET], cluster=cluster)
    assert run_all(square, range(3), cluster=cluster) == [0, 1, 4]
    assert "Traceback" not in capfd.readouterr().err


def test_a_function_that_workers_cannot_import_is_said(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def here(item):\n    return item\n")
    monkeypatch.syspath_prepend(tmp_path)
    here = import_module("only_here").here
    with pytest.raises(JobError, match="No module named 'only_here'"):
        run_all(here, range(3), cluster=cluster)


def test_a_single_worker_is_used_and_its_death_is_said(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the cluster extra is not installed")
    store_path = tmp_path / "store"
    with (
        started_cluster(tmp_path / "cluster", 1, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as address,
        Finished(store_path) as store,
    ):
        (worker,) = set(run_all(process, range(4), cluster=address))
        assert worker != os.getpid()
        with pytest.raises(JobError, match=r"a piece of work could not be done: KilledWorker.*finished work is stored"):
            run_all(partial(killed_at_3, store_path), range(8), keys=KEYS, finished=store, cluster=address)
        assert any(key in store for key in KEYS)


def test_a_cluster_without_workers_is_said(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the cluster extra is not installed")
    with started_cluster(tmp_path / "cluster", 0) as address, pytest.raises(JobError, match=rf"{address} has no workers"):
        run_all(square, range(3), cluster=address)


def test_a_scheduler_that_goes_away_is_said(marks: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the cluster extra is not installed")
    with ExitStack() as cluster:
        address = cluster.enter_context(started_cluster(tmp_path / "cluster", 1))

        def end() -> None:
            wait_until(lambda: 3 in calls(marks))
            cluster.close()

        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(JobError, match=rf"the connection to the scheduler at {address} was lost"):
            run_all(partial(stuck_from_3_on, marks), range(3, 8), cluster=address)
        ending.join()


def test_an_unreachable_scheduler_is_said_soon() -> None:
    pytest.importorskip("distributed", reason="the cluster extra is not installed")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(JobError, match=f"no Dask scheduler answers at {address}"):
            run_all(square, range(3), cluster=address)
        assert time.monotonic() - begin < 10


def test_what_is_no_scheduler_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the cluster extra is not installed")
    monkeypatch.setattr(mapping, "_PATIENCE", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in [f"tcp://127.0.0.1:{silent.getsockname()[1]}", "nonsense", "other://127.0.0.1:1"]:
            begin = time.monotonic()
            with pytest.raises(JobError, match=f"no Dask scheduler answers at {address}"):
                run_all(square, range(3), cluster=address)
            assert time.monotonic() - begin < 10


def test_without_dask_a_cluster_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(JobError, match=r"install dpmerge\[cluster\]"):
        run_all(square, range(3), cluster="tcp://127.0.0.1:1")
    assert run_all(square, [], cluster="tcp://127.0.0.1:1") == []
