"""Imports the modules of the synchronous methods on the caller's thread, before the background thread needs them.

asyncio, asyncpg and these modules are imported at the first use, because defining tasks needs none of them. If a signal
handler interrupted that import and sent a task, the background thread would wait for the import lock, which the
interrupted frame holds. So signals are blocked during the import. Where that is impossible (another thread took the
signal), or a finalizer interrupts the import, the call raises UsageError.
"""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from horsies.errors import UsageError

CODEC: Final = ("horsies.codec",)
_VERBS: Final = (
    "ssl", "asyncio", "encodings.idna", "importlib.resources", "uuid", "asyncpg",
    *CODEC, "horsies._pg.pool", "horsies._pg.statements", "horsies.operate.broker", "horsies.workflow.control",
    "horsies.workflow.batch_reading",
    "horsies.workflow.handle", "horsies.workflow.diagram", "horsies.sync",
)  # fmt: skip
_loaded: Final[set[str]] = set()


def load_verbs(verb: str) -> None:
    """Import everything that the `_async` twin of a synchronous method may import."""
    if "horsies.sync" not in _loaded:
        load(verb, _VERBS)


def load(verb: str, names: tuple[str, ...]) -> None:
    """Import these modules, or raise UsageError when this thread is in the middle of one of the imports."""
    try:
        with _signals_blocked():
            for name in names:
                import_module(name)
    except Exception as error:
        if (half := _half_imported(names)) is None:
            raise
        raise _interrupted(verb, half) from error
    # The import has waited for other threads: a module that is still initializing is imported by this thread.
    if (half := _half_imported(names)) is not None:
        raise _interrupted(verb, half)
    _loaded.update(names)


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Block signals on the main thread, where Python runs signal handlers."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _half_imported(names: tuple[str, ...]) -> str | None:
    specs = ((name, getattr(sys.modules.get(name), "__spec__", None)) for name in names)
    return next((name for name, spec in specs if getattr(spec, "_initializing", False)), None)


def _interrupted(verb: str, module: str) -> UsageError:
    return UsageError(
        f"{verb}() was called by a signal handler or a finalizer that interrupted the import of {module!r}, and "
        "cannot work before that is over: call it again later, or use horsies once before the handler is installed"
    )
