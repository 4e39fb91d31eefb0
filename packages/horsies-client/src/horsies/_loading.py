"""Imports what the synchronous verbs need: on the caller's thread, before the background thread needs it.

asyncio, asyncpg and the modules behind the verbs are imported at the first use, for defining tasks needs none of
them. A signal handler that interrupted that import could send nothing before it is over: the background thread would
wait for the import's lock, which the interrupted frame holds. So signals wait for the end of the import. Where they
cannot be held back (another thread took the signal), or a finalizer comes in between, that is told as a UsageError.
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
    *CODEC, "horsies._pg.pool", "horsies._pg.statements", "horsies.broker", "horsies.workflow.control",
    "horsies.workflow.handle", "horsies.workflow.diagram", "horsies.sync",
)  # fmt: skip
_loaded: Final[set[str]] = set()


def load_verbs(verb: str) -> None:
    """All that the twin of a synchronous verb may import."""
    if "horsies.sync" not in _loaded:
        load(verb, _VERBS)


def load(verb: str, names: tuple[str, ...]) -> None:
    """Import these modules, or raise UsageError when this very thread is in the middle of one of the imports."""
    try:
        with _signals_held_back():
            for name in names:
                import_module(name)
    except Exception as error:
        if (half := _half_imported(names)) is None:
            raise
        raise _interrupted(verb, half) from error
    # Another thread's import was waited for just now: what is still half imported is this thread's own.
    if (half := _half_imported(names)) is not None:
        raise _interrupted(verb, half)
    _loaded.update(names)


@contextmanager
def _signals_held_back() -> Generator[None]:
    """Python runs signal handlers on the main thread: there, let them come after this."""
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
