"""One function over many items: in this process, on all cores, or on a Dask cluster."""

from __future__ import annotations

import pickle
import time
import traceback
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

_PATIENCE = 5  # seconds to wait for the scheduler, and again for its first worker
# Every core already has a worker: more BLAS threads would only compete with the other workers.
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
    """Apply the function to every item; results are in the order of the items.

    `function` is a module-level function, or a `functools.partial` of one: workers import it. It runs in `jobs` processes
    (-1: one for each core; with one process or one item, in this process), or on all workers of the Dask cluster whose
    scheduler listens at `cluster` ("tcp://host:port").

    With `finished`, each result is stored under its key as soon as it is complete, and items whose key is already stored are
    not run again. Results must then be JSON data, and are returned as JSON data whether new or stored.

    An error in a worker is raised here unchanged. Results stored before it are kept.
    """
    if jobs == 0:
        raise JobError("`jobs` is 0; give a number of processes, or -1 for one on each core")
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
        kept = "" if finished is None else f"; finished work is stored in {finished.path}: run again to continue"
        raise JobError(f"{fault}{kept}") from None
    finally:
        progress.finish()
    return [results[index] for index in range(len(items))]


def _kept(finished: Finished, keys: Sequence[str] | None, items: Sequence[T]) -> dict[int, Any]:
    if keys is None or len(keys) != len(items) or len(set(keys)) != len(keys):
        raise JobError("finished work is stored by key; give every item its own key")
    return {index: finished.get(key) for index, key in enumerate(keys) if key in finished}


class _InWorker(Exception):
    """The traceback of what caused an error in a worker, as text."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


class _Lost(Exception):
    """Work lost through a failure of the workers, not of the function."""


def _completed(
    function: Callable[[T], R], pieces: dict[int, T], cluster: str | None, jobs: int
) -> Generator[tuple[int, R], None, None]:
    """Yield results by index as they complete; closing the generator cancels the rest."""
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
            result, error, cause = pickle.loads(packed)
            if error is not None:
                raise error from (_InWorker(cause) if cause else None)
            yield running.pop(future), result


@contextmanager
def _faults_of_workers(cluster: str | None) -> Iterator[None]:
    """A fault that is not a piece's own, which comes back as a result, means that the work is lost."""
    try:
        yield
    except BrokenProcessPool:
        raise _Lost("a worker process died: killed, crashed or out of memory") from None
    except CancelledError:
        raise _Lost(f"the connection to the scheduler at {cluster} was lost") from None
    except Exception as fault:
        raise _Lost(f"a piece of work could not be done: {_in_short(fault.__cause__ or fault)}") from None


def _attempt(packed: bytes) -> bytes:
    """Do one piece in a worker. Its result or error is pickled here, so that pickling errors are reported."""
    function, item = pickle.loads(packed)
    try:
        return _dumps((function(item), None, ""))
    except Exception as error:
        fault = error
    # Pickling loses the cause, such as an exception of a user's own code: its traceback travels as text.
    cause = "" if fault.__cause__ is None else "".join(traceback.format_exception(fault.__cause__))
    try:
        pickle.loads(attempt := _dumps((None, fault, cause)))
    except Exception:
        return _dumps((None, RuntimeError(f"{type(fault).__name__}: {fault}"), cause))
    return attempt


def _dumps(value: Any) -> bytes:
    """Pickle the value, also if it is defined in a script or a notebook."""
    return bytes(import_module("cloudpickle").dumps(value))


@contextmanager
def _on_cores(jobs: int, running: Mapping[Future[bytes], int]) -> Iterator[tuple[Executor, int | None]]:
    """Processes of this machine, reused by the next call; and how many pieces to submit at a time."""
    joblib, loky = import_module("joblib"), import_module("joblib.externals.loky")
    workers = joblib.effective_n_jobs(jobs)
    # loky replaces a worker that times out just as new work arrives, and warns. A user's filter may turn this warning into an
    # error, which would kill loky's own thread, and the work would hang.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    # Five minutes is joblib's default. A shorter timeout makes that race more frequent, and loky does not always survive it.
    # If this process is killed, its workers exit after this idle time.
    executor = loky.get_reusable_executor(workers, timeout=300, env=_ONE_THREAD)
    try:
        yield executor, 2 * workers
    finally:
        if running:
            # loky fails if it is shut down while submitted pieces have not reached its workers. Few are submitted at a time, so
            # this wait takes milliseconds, and at most a second.
            end = time.monotonic() + 1
            while time.monotonic() < end and not all(future.running() or future.done() for future in running):
                time.sleep(0.001)
            executor.shutdown(kill_workers=True)


@contextmanager
def _on_cluster(address: str) -> Iterator[tuple[Executor, int | None]]:
    """Submit all pieces at once: the scheduler queues them, so workers that join later also get work.

    If the cluster loses all its workers, this waits for new ones, as Dask does.
    """
    try:
        distributed: Any = import_module("distributed")  # not fully typed
    except ImportError:
        raise JobError("running on a cluster needs Dask; install dpmerge[cluster]") from None

    _greet(distributed, address)
    with distributed.Client(address, timeout=_PATIENCE, set_as_default=False) as client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            raise JobError(f"the cluster at {address} has no workers; start some") from None
        executor = client.get_executor(pure=False)
        try:
            yield executor, None
        finally:
            executor.shutdown(wait=False)


def _greet(distributed: Any, address: str) -> None:
    """Check that a scheduler answers: Dask's client would wait forever for a server that accepts and stays silent."""
    import asyncio

    async def greet() -> None:
        security = distributed.Security().get_connection_args("client")
        comm = await distributed.comm.connect(address, timeout=_PATIENCE, **security)
        await comm.close()

    try:
        # In a separate thread, because the caller may be inside an event loop, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, asyncio.wait_for(greet(), _PATIENCE)).result()
    except Exception as fault:  # another kind of server may answer anything
        raise JobError(f"no Dask scheduler answers at {address} ({_in_short(fault)})") from None


def _in_short(error: BaseException) -> str:
    """Type and first sentence of the error."""
    return f"{type(error).__name__}: {error}".partition(". ")[0].removesuffix(": ")
