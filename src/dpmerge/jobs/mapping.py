"""One function over many items: in this process, on all cores, or on a Dask cluster. Joblib does the work."""

from __future__ import annotations

import logging
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from dpmerge.errors import JobError
from dpmerge.jobs.finished import Finished
from dpmerge.jobs.progress import Progress

T = TypeVar("T")
R = TypeVar("R")
Piece = Callable[[], tuple[int, R]]

_PATIENCE = 5  # seconds for a scheduler to answer, and as many for its first worker to appear


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
    results: dict[int, R] = {}
    keys = () if finished is None else _one_key_each(keys, items)
    if finished is not None:
        results = {index: finished.get(key) for index, key in enumerate(keys) if key in finished}
    pieces = [partial(_piece, function, index, item) for index, item in enumerate(items) if index not in results]
    if progress is not None:
        progress.start(len(pieces), f"({len(results)} finished before)" if results else "")
    try:
        with _started(pieces, cluster, jobs) as completed:
            for index, result in completed:
                if finished is not None:
                    finished.put(keys[index], result)
                    result = finished.get(keys[index])
                results[index] = result
                if progress is not None:
                    progress.advance()
    except _Lost as fault:
        kept = "" if finished is None else f"; what had finished is kept in {finished.path}, and running again does the rest"
        raise JobError(f"{fault}{kept}") from None
    finally:
        if progress is not None:
            progress.finish()
    return [results[index] for index in range(len(items))]


class _Lost(Exception):
    """Work that will not come back, for reasons that are not its own."""


def _piece(function: Callable[[T], R], index: int, item: T) -> tuple[int, R]:
    return index, function(item)


def _one_key_each(keys: Sequence[str] | None, items: Sequence[T]) -> Sequence[str]:
    if keys is None or len(keys) != len(items) or len(set(keys)) != len(keys):
        raise JobError("finished work is found again by its key; give every item a key of its own")
    return keys


def _started(pieces: Sequence[Piece[R]], cluster: str | None, jobs: int) -> AbstractContextManager[Iterator[tuple[int, R]]]:
    """The work under way: results as they complete. Leaving it early gives up what has not completed."""
    if not pieces:
        return nullcontext(iter(()))
    if cluster is not None:
        return _on_cluster(pieces, cluster)
    if jobs == 1 or len(pieces) == 1:
        return nullcontext(piece() for piece in pieces)
    return _on_cores(pieces, jobs)


@contextmanager
def _on_cores(pieces: Sequence[Piece[R]], jobs: int) -> Iterator[Iterator[tuple[int, R]]]:
    from joblib.externals.loky.process_executor import TerminatedWorkerError  # type: ignore[import-untyped, unused-ignore]

    # All cores are busy with pieces: a second BLAS thread in one only gets in the way of the others. And if this process is
    # killed, its workers notice only that they are idle: the default lets them stay for five minutes.
    loky: dict[str, Any] = {"backend": "loky", "n_jobs": jobs, "inner_max_num_threads": 1, "idle_worker_timeout": 10}
    try:
        with _without_its_last_words(), _through_joblib(pieces, **loky) as completed:
            yield completed
    except TerminatedWorkerError:
        raise _Lost("a worker process died: killed, crashed or out of memory") from None


@contextmanager
def _on_cluster(pieces: Sequence[Piece[R]], address: str) -> Iterator[Iterator[tuple[int, R]]]:
    """Should the cluster lose all its workers, this waits, as Dask does, for others to join it."""
    try:
        distributed: Any = import_module("distributed")  # its types are too few for a strict reader
    except ImportError:
        raise JobError("running on a cluster needs Dask; install dpmerge[cluster]") from None

    _greet(distributed, address)
    with _without_its_logs(), distributed.Client(address, timeout=_PATIENCE, set_as_default=False) as client:
        backend = _dask_backend(client)
        try:
            backend.effective_n_jobs(-1)
        except TimeoutError:
            raise JobError(f"the cluster at {address} has no workers; start some and connect them to it") from None
        try:
            packed = [partial(_packed, piece) for piece in pieces]
            # All at once: the scheduler has a queue of its own, and workers that join later find work in it.
            with _through_joblib(packed, pre_dispatch="all", backend=backend) as completed:
                yield map(pickle.loads, completed)
        except CancelledError:
            raise _Lost(f"the scheduler at {address} has gone away") from None


@contextmanager
def _through_joblib(calls: Sequence[Callable[[], R]], pre_dispatch: str = "2*n_jobs", **where: Any) -> Iterator[Iterator[R]]:
    from joblib import Parallel, delayed, parallel_config  # type: ignore[import-untyped, unused-ignore]

    with parallel_config(**where):
        # One piece at a time: joblib's batches would hold back, and on an error lose, results that are there.
        parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch=pre_dispatch)
        completed = parallel(delayed(call)() for call in calls)
    try:
        yield completed
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that results go unused: whoever leaves early knows
            completed.close()


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


@contextmanager
def _without_its_last_words() -> Iterator[None]:
    """Left early, loky's thread now and then stumbles over a piece just given up, and Python would print where."""
    told = threading.excepthook

    def tell(args: threading.ExceptHookArgs) -> None:
        if not (args.exc_type is KeyError and args.thread is not None and args.thread.name == "ExecutorManagerThread"):
            told(args)

    threading.excepthook = tell
    try:
        yield
    finally:
        threading.excepthook = told


@contextmanager
def _without_its_logs() -> Iterator[None]:
    """Left early, Dask's client logs the tracebacks of all it was about to do; the error that ended the work says enough."""
    loggers = [logging.getLogger(name) for name in ("distributed.client", "tornado.application")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _dask_backend(client: Any) -> Any:
    from joblib._dask import DaskDistributedBackend  # type: ignore[import-untyped, unused-ignore]

    class Backend(DaskDistributedBackend):  # type: ignore[misc]
        """Joblib's own, with two faults of joblib 1.6 mended."""

        def effective_n_jobs(self, n_jobs: int) -> int:
            """At least 2: for a cluster of one thread joblib would run everything in this process instead."""
            return max(2, int(super().effective_n_jobs(n_jobs)))

        def submit(self, func: Any, callback: Callable[[Any], None]) -> Future[Any]:
            """Report failure too: joblib waits without end for a piece that no worker could begin, or survived."""

            def report(done: Future[Any]) -> None:
                if fault := done.exception():  # not raised by the piece: joblib brings that back as a result
                    callback(_Lost(f"the cluster could not do a piece of work: {_in_short(fault.__cause__ or fault)}"))

            future: Future[Any] = super().submit(func, callback)
            future.add_done_callback(report)
            return future

    return Backend(client=client, wait_for_workers_timeout=_PATIENCE)


def _packed(piece: Piece[R]) -> bytes:
    """What a piece returns or raises, such that it arrives: for what does not pickle joblib with Dask waits without end."""
    cloudpickle: Any = import_module("cloudpickle")  # which Dask brings: writes pickles of what a script defines, too
    try:
        return bytes(cloudpickle.dumps(piece()))
    except Exception as error:
        fault = error
    try:
        pickle.loads(cloudpickle.dumps(fault))
    except Exception:
        fault = RuntimeError(f"{type(fault).__name__}: {fault}")
    raise fault


def _in_short(error: BaseException) -> str:
    """Kind and first sentence."""
    return f"{type(error).__name__}: {error}".partition(". ")[0].removesuffix(": ")
