"""How many threads a call may use where NumPy computes, and the pool that they share a call in.

Pieces are the same for any number of threads, and so is every bit of the result. NumPy's own BLAS is held at one thread
meanwhile, by its environment or threadpoolctl: where neither does so, or the call is small, there is one thread.

The environment variable MHA_CORE_THREADS, read at the import, or `threads()` chooses. Otherwise there are as many as
the process may use, but no more than OMP_NUM_THREADS, OPENBLAS_NUM_THREADS or MKL_NUM_THREADS allow BLAS, and one in
workers of pytest-xdist or multiprocessing, which share a machine.
"""

import contextlib
import contextvars
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from mha_core.options import Sizes

VARIABLE = "MHA_CORE_THREADS"
OF_BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
WORKER = "PYTEST_XDIST_WORKER"
LARGE = 2**21
"""Logits from which a call is worth a pool: some milliseconds of work."""

T = TypeVar("T")
R = TypeVar("R")


def _checked(wanted: Any, name: str) -> int:
    """A number of threads of at least 1."""
    try:
        number = int(wanted)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(wanted, float | bool):
        raise ValueError(f"{name}={wanted!r} but needs a number of threads of at least 1")
    return number


def _from_environment() -> int | None:
    """The number that the environment asks for; None where it leaves that open."""
    wanted = os.environ.get(VARIABLE)
    return None if wanted is None else _checked(wanted, VARIABLE)


CHOSEN = _from_environment()
_THREADS: contextvars.ContextVar[int | None] = contextvars.ContextVar(VARIABLE, default=CHOSEN)


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Within it calls use at most so many threads, whatever MHA_CORE_THREADS says.

    Args:
        number: at least 1.

    Returns:
        A context manager.

    Raises:
        ValueError: it is not.

    >>> import numpy as np
    >>> from mha_core import scaled_dot_product_attention
    >>> with threads(1):
    ...     scaled_dot_product_attention(*[np.ones((1, 2, 3))] * 3).shape
    (1, 2, 3)
    """
    token = _THREADS.set(_checked(number, "number"))
    try:
        yield
    finally:
        _THREADS.reset(token)


def each(function: Callable[[T], R], items: Sequence[T], sizes: Sizes, where: bool) -> Iterable[R]:
    """`function` of each item, in order; by several threads where that is allowed and the call is large."""
    number = min(len(items), _allowed()) if where and _is_large(sizes) else 1
    held = _blas_held() if number > 1 else None
    if held is None:
        return map(function, items)
    from concurrent.futures import ThreadPoolExecutor

    contexts = [contextvars.copy_context() for _ in items]  # in which floating-point warnings are off
    with held, ThreadPoolExecutor(number) as pool:
        return list(pool.map(lambda context, item: context.run(function, item), contexts, items))


def _is_large(sizes: Sizes) -> bool:
    """Whether a call has enough logits."""
    logits = 1
    for n in sizes.logits:
        logits *= n
    return logits >= LARGE


def _allowed() -> int:
    """The number of threads that the caller or the environment allows."""
    chosen = _THREADS.get()
    return _default() if chosen is None else chosen


@functools.cache
def _default() -> int:
    """As many as the process may use, unless something says that it shares them."""
    from multiprocessing import parent_process

    if WORKER in os.environ or parent_process() is not None:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    cores = os.cpu_count() or 1 if affinity is None else len(affinity(0))
    limits = [int(x) for name in OF_BLAS if (x := os.environ.get(name, "")).isdecimal()]
    return max(1, min([cores, *limits]))


def _blas_held() -> contextlib.AbstractContextManager[Any] | None:
    """What holds BLAS at one thread; None where nothing does."""
    if any(os.environ.get(name) == "1" for name in OF_BLAS):
        return contextlib.nullcontext()
    controller = _controller()
    return None if controller is None else controller.limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    """What sets the threads of libraries; None without threadpoolctl, an optional package."""
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
