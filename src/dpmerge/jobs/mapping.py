"""One function over many items: in this process, on all cores, or on a Dask cluster."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from dpmerge.errors import JobError
from dpmerge.jobs.finished import Finished
from dpmerge.jobs.progress import Progress, Silent

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = 5  # seconds for a scheduler to answer, and as many for its first worker to appear
# All cores are busy with pieces: a second BLAS thread in one only gets in the way of the others.
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "NUMBA")}
_ONE_THREAD["VECLIB_MAXIMUM_THREADS"] = "1"


def run_all(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    keys: Sequence[str] | None = None,
    finished: Finished | None = None,
    cluster: str | None = None,
    jobs: int = -1,
    progress: Progress | None = None,
) -> list[R]:
    """The function of every item, in the order of the items.

    `function` is a function of a module, or a `functools.partial` of one: workers import it. It runs in `jobs` processes
    (-1: one for each core; with one process or one item, in this one), or on all workers of the Dask cluster whose
    scheduler listens at `cluster` ("tcp://host:port").

    With `finished`, each result is kept under its key the moment it is there, and items whose key is found there are not
    run again. Results are then plain JSON data, and come back as that whether they are new or were kept.

    An error in a worker is raised here as what it is. What had finished before it stays finished.
    """
    if jobs == 0:
        raise JobError("0 processes do no work; give a number of processes, or -1 for one on each core")
    results: dict[int, R] = {} if finished is None else _kept(finished, keys, items)
    pieces = {index: item for index, item in enumerate(items) if index not in results}
    progress = progress or Silent()
    progress.start(len(pieces), f"({len(results)} finished before)" if results else "")
    try:
        with closing(_completed(function, pieces, cluster, jobs)) as completed:
            for index, result in completed:
                if finished is not None and keys is not None:
                    finished.put(keys[index], result)
                    result = finished.get(keys[index])
                results[index] = result
                progress.advance()
    except _Lost as fault:
        kept = "" if finished is None else f"; what had finished is kept in {finished.path}, and running again does the rest"
        raise JobError(f"{fault}{kept}") from None
    finally:
        progress.finish()
    return [results[index] for index in range(len(items))]


def _kept(finished: Finished, keys: Sequence[str] | None, items: Sequence[T]) -> dict[int, Any]:
    if keys is None or len(keys) != len(items) or len(set(keys)) != len(keys):
        raise JobError("finished work is found again by its key; give every item a key of its own")
    return {index: finished.get(key) for index, key in enumerate(keys) if key in finished}


class _Lost(Exception):
    """Work that will not come back, for reasons that are not its own."""


def _completed(
    function: Callable[[T], R], pieces: dict[int, T], cluster: str | None, jobs: int
) -> Generator[tuple[int, R], None, None]:
    """Results by index as they complete; closing it gives up what has not completed."""
    if not pieces or (cluster is None and (jobs == 1 or len(pieces) == 1)):
        yield from ((index, function(item)) for index, item in pieces.items())
        return
    waiting = iter(pieces.items())
    running: dict[Future[bytes], int] = {}
    done: SimpleQueue[Future[bytes]] = SimpleQueue()
    with _on_cores(jobs, running) if cluster is None else _on_cluster(cluster) as (executor, ahead):
        while True:
            with _faults_of_workers(cluster):
                for index, item in islice(waiting, None if ahead is None else ahead - len(running)):
                    future = executor.submit(_attempt, _dumps((function, item)))
                    running[future] = index
                    future.add_done_callback(done.put)
                if not running:
                    return
                future = done.get()
                packed = future.result()
            result, error = pickle.loads(packed)
            if error is not None:
                raise error
            yield running.pop(future), result


@contextmanager
def _faults_of_workers(cluster: str | None) -> Iterator[None]:
    """A fault that is not a piece's own, which comes back as a result, means that the work is lost."""
    try:
        yield
    except BrokenProcessPool:
        raise _Lost("a worker process died: killed, crashed or out of memory") from None
    except CancelledError:
        raise _Lost(f"the scheduler at {cluster} has gone away") from None
    except Exception as fault:
        raise _Lost(f"a piece of work could not be done: {_in_short(fault.__cause__ or fault)}") from None


def _attempt(packed: bytes) -> bytes:
    """Do one piece in a worker. Its result or error is pickled here, so that one that cannot be pickled is said."""
    function, item = pickle.loads(packed)
    try:
        return _dumps((function(item), None))
    except Exception as error:
        fault = error
    try:
        pickle.loads(attempt := _dumps((None, fault)))
    except Exception:
        return _dumps((None, RuntimeError(f"{type(fault).__name__}: {fault}")))
    return attempt


def _dumps(value: Any) -> bytes:
    """Pickled, also if a script or a notebook defines it."""
    return bytes(import_module("cloudpickle").dumps(value))


@contextmanager
def _on_cores(jobs: int, running: Mapping[Future[bytes], int]) -> Iterator[tuple[Executor, int | None]]:
    """Processes of this machine, kept for the next call; and how many pieces to hand out at a time."""
    joblib, loky = import_module("joblib"), import_module("joblib.externals.loky")
    workers = joblib.effective_n_jobs(jobs)
    # A worker that ends for want of work just when more comes is replaced. As an error, which a user's filters may make of
    # loky's warning, it would end loky's own thread, and the work would never end.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    # Five minutes are joblib's default: the less, the more often a worker ends at that moment, which loky does not always
    # survive. If this process is killed, its workers notice only that they are idle, and end then.
    executor = loky.get_reusable_executor(workers, timeout=300, env=_ONE_THREAD)
    try:
        yield executor, 2 * workers
    finally:
        if running:
            # loky fails when it is shut down with pieces that it has not begun to hand to workers. So few are handed out
            # that it takes each at once: this is a matter of milliseconds, and never more than a second.
            end = time.monotonic() + 1
            while time.monotonic() < end and not all(future.running() or future.done() for future in running):
                time.sleep(0.001)
            executor.shutdown(kill_workers=True)


@contextmanager
def _on_cluster(address: str) -> Iterator[tuple[Executor, int | None]]:
    """All pieces at once: the scheduler has a queue of its own, and workers that join later find work in it.

    Should the cluster lose all its workers, this waits, as Dask does, for others to join it.
    """
    try:
        distributed: Any = import_module("distributed")  # its types are too few for a strict reader
    except ImportError:
        raise JobError("running on a cluster needs Dask; install dpmerge[cluster]") from None

    _greet(distributed, address)
    with distributed.Client(address, timeout=_PATIENCE, set_as_default=False) as client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            raise JobError(f"the cluster at {address} has no workers; start some and connect them to it") from None
        executor = client.get_executor(pure=False)
        try:
            yield executor, None
        finally:
            executor.shutdown(wait=False)


def _greet(distributed: Any, address: str) -> None:
    """Make sure that a scheduler answers: Dask's client waits without end for one that accepts and stays silent."""
    import asyncio

    async def greet() -> None:
        security = distributed.Security().get_connection_args("client")
        comm = await distributed.comm.connect(address, timeout=_PATIENCE, **security)
        await comm.close()

    try:
        # In a thread of its own, because the caller may be inside an event loop, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, asyncio.wait_for(greet(), _PATIENCE)).result()
    except Exception as fault:  # a stranger's answer can be wrong in any way
        raise JobError(f"no Dask scheduler answers at {address} ({_in_short(fault)})") from None


def _in_short(error: BaseException) -> str:
    """Kind and first sentence."""
    return f"{type(error).__name__}: {error}".partition(". ")[0].removesuffix(": ")
