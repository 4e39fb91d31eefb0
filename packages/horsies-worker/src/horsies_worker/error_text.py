"""Texts from exceptions: bounded, storable, and never raising, whatever an exception's `__str__` does. Pure."""

from __future__ import annotations

import traceback

from horsies.codec.failure import clean

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 12_000
_MAX_FRAMES = 60


def short(text: str, limit: int = MAX_MESSAGE) -> str:
    """Storable and bounded. Both ends matter: the head says where, the tail says what."""
    if len(text) > limit:
        head = limit // 4
        text = f"{text[:head]}\n... {len(text) - limit} characters left out ...\n{text[head - limit :]}"
    return clean(text)


def exception_type(exc: BaseException) -> str:
    cls = type(exc)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def exception_message(exc: BaseException) -> str:
    try:
        return short(str(exc))
    except Exception as failure:
        return f"<its __str__ raised {type(failure).__name__}>"


def exception_text(exc: BaseException) -> str:
    """`ValueError: bad order`: one line for `error_message`."""
    message = exception_message(exc)
    return f"{exception_type(exc)}: {message}" if message else exception_type(exc)


def exception_data(exc: BaseException) -> dict[str, str]:
    """What a TaskError's `data` keeps of an exception."""
    try:
        # The first frame is ours (execute.py); the rest is the user's.
        trace = exc.__traceback__
        if trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        text = short("".join(traceback.format_exception(type(exc), exc, trace, limit=_MAX_FRAMES)), MAX_TRACEBACK)
    except Exception as failure:
        text = f"<the traceback could not be formatted: {type(failure).__name__}>"
    return {"type": exception_type(exc), "message": exception_message(exc), "traceback": text}
