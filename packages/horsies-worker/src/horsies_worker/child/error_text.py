"""Texts of exceptions: bounded, storable, and safe even when an exception's `__str__` raises. Pure."""

import traceback

from horsies.codec.failure import clean

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 12_000
_MAX_FRAMES = 60


def short(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return a storable text of at most `limit` characters: its head and, because the error stands there, its tail."""
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
    """Return one line for `error_message`, such as `ValueError: bad order`."""
    message = exception_message(exc)
    return f"{exception_type(exc)}: {message}" if message else exception_type(exc)


def exception_data(exc: BaseException) -> dict[str, str]:
    """Return type, message and traceback for the `data` of a TaskError."""
    try:
        # Skip the first frame: it is in execute.py, the others are user code.
        trace = exc.__traceback__
        if trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        text = short("".join(traceback.format_exception(type(exc), exc, trace, limit=_MAX_FRAMES)), MAX_TRACEBACK)
    except Exception as failure:
        text = f"<the traceback could not be formatted: {type(failure).__name__}>"
    return {"type": exception_type(exc), "message": exception_message(exc), "traceback": text}
