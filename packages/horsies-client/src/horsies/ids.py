"""Task ids: UUIDv7 as text. The sender makes them before the row exists, so that a send can be repeated safely.

The last byte of an id is its bucket. A process draws one byte and gives it to all its ids, so that their ends are
announced on one channel, which other processes need not listen to (`_pg/channels.py`).
"""

import os
import struct
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from horsies._checks import shown

ID_LENGTH: Final = 36
"""Characters of the ids that are made here; a sender may give a shorter one of its own."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_last = 0  # the 60 leading bits of the newest id: 48 of milliseconds, 12 of their fraction
_bucket = os.urandom(1)[0]  # the last byte of every id of this process
_tails: list[int] = []  # random, and not yet used
_DRAW: Final = 64
"""Random tails per call of os.urandom: a call for each id was half of the id's cost."""


def new_id() -> str:
    """A new id, greater than every earlier id of this process: ids break ties in the order of the queue."""
    leading = _advance(1)
    while True:
        try:
            return _text(leading, _tails.pop())
        except IndexError:
            _tails.extend(_random(_DRAW))


def new_ids(count: int) -> list[str]:
    """New ids, ascending."""
    return [_text(leading, tail) for leading, tail in enumerate(_random(count), _advance(count))]


def _advance(count: int) -> int:
    """The leading bits of the first of the next `count` ids.

    Without a lock: a signal handler that sends would wait for the lock that the interrupted frame holds. Between the
    read and the write of `_last` there is no call and no loop, and CPython switches to a handler or another thread only
    after those. If it did so in between, the ids would still differ in their tails, and only their order be undefined.
    """
    global _last
    now = (time.time_ns() << 12) // 1_000_000
    first = now if now > _last else _last + 1
    _last = first + count - 1
    return first


def _random(count: int) -> tuple[int, ...]:
    return struct.unpack(f"={count}Q", os.urandom(8 * count))


def _text(leading: int, tail: int) -> str:
    # %-formatting takes 1.0 µs, an f-string 1.6
    return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031
        leading >> 28, leading >> 12 & 0xFFFF, leading & 0xFFF, 0x8000 | tail >> 50,
        tail & 0xFFFF_FFFF_FF00 | _bucket,
    )  # fmt: skip


def is_younger_than(task_id: str, milliseconds: int) -> bool:
    """True if the id was made that recently, by this machine's clock; False for an id that is not a UUIDv7."""
    try:
        made_ms = int(task_id[:8] + task_id[9:13], 16)
    except ValueError:
        return False
    return abs(time.time_ns() // 1_000_000 - made_ms) < milliseconds


def derived_id(moment: datetime, *parts: str) -> str:
    """The id for these words at this moment, the same in every process: a UUIDv7 of that time whose random part is a
    hash of the words. Ids of later moments sort later."""
    from hashlib import sha256

    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    text = "\0".join((moment.astimezone(UTC).isoformat(), *parts))
    draw = int.from_bytes(sha256(text.encode()).digest()[:10])
    tail = 1 << 63 | draw & (1 << 62) - 1
    text = f"{milliseconds:012x}7{draw >> 68:03x}{tail:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


ID_FIX: Final = "leave it out, or give str(uuid.uuid4()), or str(uuid.uuid5(namespace, key)) for a key of your own"


def id_problem(task_id: object) -> str | None:
    """Why this cannot be the id of a task; None when it can."""
    import uuid

    try:
        canonical = str(uuid.UUID(str(task_id)))
    except ValueError:
        return f"{shown(task_id)} is not a UUID"
    if task_id != canonical:
        return f"{shown(task_id)} is not written in the canonical form, {canonical!r}"
    return None


def is_storable_id(task_id: object) -> bool:
    """True if a row can have this id. The driver would raise an error for another one."""
    if not isinstance(task_id, str) or len(task_id) > 36 or "\0" in task_id:
        return False
    try:
        task_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def _after_fork() -> None:
    global _bucket
    _tails.clear()  # the parent uses them
    _bucket = os.urandom(1)[0]


os.register_at_fork(after_in_child=_after_fork)
