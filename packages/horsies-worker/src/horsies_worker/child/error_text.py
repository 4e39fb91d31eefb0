"""Texts of exceptions: bounded, storable, and safe even when an exception's `__str__` raises. Pure."""

import traceback
from pathlib import Path
from typing import Final

import horsies
from horsies.codec.failure import clean

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 12_000
_MAX_FRAMES = 60
_OUR_FILES: Final = tuple(str(Path(__file__).with_name(name)) for name in ("around.py", "execute.py", "run.py"))
_OUR_FOLDERS: Final = tuple(str(Path(horsies.__file__).parent / name) for name in ("contrib", "testing"))


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
    except BaseException as failure:  # user code, which may call sys.exit()
        return f"<its __str__ raised {type(failure).__name__}>"


def exception_text(exc: BaseException) -> str:
    """Return one line for `error_message`, such as `ValueError: bad order`."""
    message = exception_message(exc)
    return f"{exception_type(exc)}: {message}" if message else exception_type(exc)


def exception_data(exc: BaseException) -> dict[str, str]:
    """Return type, message and traceback for the `data` of a TaskError."""
    try:
        found = traceback.TracebackException(type(exc), exc, exc.__traceback__, limit=_MAX_FRAMES)
        _leave_out_our_frames(found)
        text = short("".join(found.format()), MAX_TRACEBACK)
    except BaseException as failure:
        text = f"<the traceback could not be formatted: {type(failure).__name__}>"
    return {"type": exception_type(exc), "message": exception_message(exc), "traceback": text}


def _leave_out_our_frames(found: traceback.TracebackException) -> None:
    """Keep the frames of user code: the task, and middleware, between whose layers there are frames of ours."""
    todo: list[traceback.TracebackException | None] = [found]
    while todo:
        one = todo.pop()
        if one is not None:
            kept = [frame for frame in one.stack if not frame.filename.startswith((*_OUR_FILES, *_OUR_FOLDERS))]
            if kept:  # otherwise the error is ours, and the frames are all there is to see
                one.stack[:] = kept
            todo += (one.__cause__, one.__context__, *(one.exceptions or ()))
