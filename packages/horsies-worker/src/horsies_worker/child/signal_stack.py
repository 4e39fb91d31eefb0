"""Room for the handlers of many signals that arrive at the same moment.

`faulthandler` gives the main thread an alternate stack, so that it can print the Python stack after a stack overflow.
CPython installs every handler with SA_ONSTACK, so all handlers of the main thread run there. When several signals are
pending, the kernel puts a frame for each of them on that stack before the first handler runs: 3.4 KB with AVX-512,
11 KB with AMX. The stack of `faulthandler` has 16,880 bytes. The fifth signal overwrites the heap beside it, and
the sixth ends the process by SIGSEGV. A supervisor that signals the whole control group is enough for that.
"""

import contextlib
import sys
from typing import Final

_BYTES: Final = 64 * 16 * 1024
"""A signal is blocked while its handler runs, so there is at most one frame for each of the 64 signals. Only pages that
a handler has touched take memory."""
_SS_DISABLE: Final = 2


def enlarge() -> None:
    """Replace a small alternate stack of this thread. A forked process inherits the new one."""
    if sys.platform == "linux":
        # Without ctypes or its symbols the small stack stays, which is enough for four signals at once.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            _replace()


def _replace() -> None:
    import ctypes  # 0.8 MB, which the worker's parent process does not need

    class Stack(ctypes.Structure):
        """`stack_t` of sigaltstack(2)."""

        _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    libc = ctypes.CDLL(None)
    libc.sigaltstack.argtypes = (ctypes.POINTER(Stack), ctypes.POINTER(Stack))
    libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    found = Stack()
    if libc.sigaltstack(None, ctypes.byref(found)) != 0 or found.flags & _SS_DISABLE or found.size >= _BYTES:
        return  # without an alternate stack, handlers run on the thread's own stack, which is large enough
    # Never freed: a signal may arrive until the process is gone. Not an `mmap` object, whose pages a fork would share.
    start = libc.malloc(_BYTES)
    if start:
        libc.sigaltstack(ctypes.byref(Stack(start, 0, _BYTES)), None)
