"""Frames between parent and child: a small struct, then UTF-8 text that is passed through untouched.

Every frame starts with its body's length and a type byte. Three streams per child carry them:
jobs to the child's main thread, commands (async jobs, stops, requests for stacks) to its event
loop's thread, and reports (ready, results, progress, stacks) of both threads back to the parent.
"""

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from horsies.completing import Claimant
from horsies_worker.child.jobs import Job, call_of
from horsies_worker.child.outcome import Outcome, OutcomeKind


class FrameType(IntEnum):
    JOB = 1
    STOP = 2
    READY = 3
    START_FAILED = 4
    RESULT = 5
    PROGRESS = 6
    LATE = 8
    """The child did not start this job: its time (`Job.start_by`) had passed."""
    COMPLETING = 9
    """The task of this job is about to call `complete()`: its end may be in the database from now on."""
    CLAIMANT = 10
    """From the parent, once: in whose name this child completes attempts."""
    STACKS = 7
    """From the parent: a request without a body. From the child: the text."""
    CALL = 11
    """A call of a batch task: the JOB frames of its members, numbered from the call's own number on."""


class BadFrame(ValueError):
    """What arrived is no frame: user code has written to the socket, or the process is broken."""


class StopCode(IntEnum):
    """Why the parent stops an attempt."""

    CANCEL = 1
    TIMEOUT = 2
    SHUTDOWN = 3
    ABANDON = 4


TOKEN_BYTES: Final = 8
MAX_FRAME: Final = 1 << 30
"""Far above the largest payload: a longer frame is garbage, and a reader would wait for the rest of it for ever."""
BROKEN: Final = (struct.error, ValueError, TypeError, IndexError)
"""What reading garbage raises."""
_FRAME_TYPES: Final = frozenset(map(int, FrameType))
_NONE: Final = 0xFFFF_FFFF
_NO_GROUP: Final = 0xFFFF

_HEAD: Final = struct.Struct("<IB")
_JOB: Final = struct.Struct("<IBQqiqHHIIHdIdHH?")
_RESULT: Final = struct.Struct("<IBQBddfIqIIII")
_STOP: Final = struct.Struct("<IBQBB")
_SEQ: Final = struct.Struct("<IBQ")
_READY: Final = struct.Struct("<IBII")

# Plain numbers: packing an enum member costs as much as the rest of the frame.
_TYPE_JOB: Final = int(FrameType.JOB)
_TYPE_RESULT: Final = int(FrameType.RESULT)
_JOB_BODY: Final = _JOB.size - _HEAD.size
_RESULT_BODY: Final = _RESULT.size - _HEAD.size

_KINDS: Final[tuple[OutcomeKind, ...]] = tuple(OutcomeKind)
_KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_OK_NUMBER: Final = _KIND_NUMBERS[OutcomeKind.OK]


class FrameReader:
    """Splits a byte stream into frames, and keeps an incomplete frame until the rest arrives."""

    __slots__ = ("_need", "_partial")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._need = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames that are complete now, each as (type, whole frame including its head). Raises BadFrame when
        what arrives cannot be one; after that, nothing in the stream can be trusted."""
        if self._partial:
            self._partial += data
            # An 8 MB frame arrives in some 40 pieces; copy it once, when it is complete.
            if len(self._partial) < self._need:
                return []
            data = bytes(self._partial)
            self._partial = bytearray()
        frames: list[tuple[int, bytes]] = []
        offset, size = 0, len(data)
        head_size, unpack = _HEAD.size, _HEAD.unpack_from
        while size - offset >= head_size:
            length, kind = unpack(data, offset)
            if length > MAX_FRAME or kind not in _FRAME_TYPES:
                raise BadFrame(f"a frame of type {kind} with {length:,} bytes")
            end = offset + head_size + length
            if end > size:
                self._need = end - offset
                break
            frames.append((kind, data[offset:end]))
            offset = end
        else:
            self._need = head_size
        if offset < size:
            self._partial += data[offset:]
        return frames


def encode_job(seq: int, job: Job) -> bytes:
    task_id, name = job.task_id.encode(), job.task_name.encode()
    args = kwargs = b""
    args_size = kwargs_size = _NONE
    if job.args is not None:
        args = job.args.encode()
        args_size = len(args)
    if job.kwargs is not None:
        kwargs = job.kwargs.encode()
        kwargs_size = len(kwargs)
    queue = job.queue_name.encode()
    metadata, metadata_size = b"", _NONE
    if job.metadata is not None:
        metadata = job.metadata.encode()
        metadata_size = len(metadata)
    group, group_size = b"", _NO_GROUP
    if job.group is not None:
        group = job.group.encode()
        group_size = len(group)
    timeout_ms, start_by = job.timeout_ms, job.start_by
    head = _JOB.pack(
        _JOB_BODY + len(task_id) + len(name) + len(args) + len(kwargs) + len(queue) + len(metadata) + len(group),
        _TYPE_JOB,
        seq,
        job.generation,
        job.attempt,
        -1 if timeout_ms is None else timeout_ms,
        len(task_id),
        len(name),
        args_size,
        kwargs_size,
        len(queue),
        job.ready_at,
        metadata_size,
        0.0 if start_by is None else start_by,
        group_size,
        job.snoozes,
        job.stores_result,
    )
    return b"".join((head, task_id, name, args, kwargs, queue, group, metadata))


def decode_job(frame: bytes) -> tuple[int, Job]:
    """Return (seq, job); the parent does not send `is_async` and `run_ahead`."""
    (_, _, seq, generation, attempt, timeout_ms, id_size, name_size, args_size, kwargs_size, queue_size, ready_at,
     metadata_size, start_by, group_size, snoozes,
     stores_result) = _JOB.unpack_from(frame)  # fmt: skip
    at = _JOB.size
    task_id = frame[at : at + id_size].decode()
    at += id_size
    name = frame[at : at + name_size].decode()
    at += name_size
    args = kwargs = None
    if args_size != _NONE:
        args = frame[at : at + args_size].decode()
        at += args_size
    if kwargs_size != _NONE:
        kwargs = frame[at : at + kwargs_size].decode()
        at += kwargs_size
    queue = frame[at : at + queue_size].decode()
    at += queue_size
    group = None
    if group_size != _NO_GROUP:
        group = frame[at : at + group_size].decode()
        at += group_size
    metadata = None if metadata_size == _NONE else frame[at:].decode()
    job = Job(task_id, generation, attempt, name, args, kwargs, None if timeout_ms < 0 else timeout_ms)
    job.queue_name, job.ready_at, job.metadata = queue, ready_at, metadata
    job.group, job.start_by, job.snoozes = group, start_by or None, snoozes
    job.stores_result = stores_result
    return seq, job


def encode_call(seq: int, call: Job) -> bytes:
    body = b"".join(encode_job(seq + at, job) for at, job in enumerate(call.members, 1))
    return _SEQ.pack(_SEQ.size - _HEAD.size + len(body), FrameType.CALL, seq) + body


def decode_call(frame: bytes) -> tuple[int, Job]:
    """Return (seq, call)."""
    seq: int = _SEQ.unpack_from(frame)[2]
    members = [decode_job(member)[1] for _, member in FrameReader().feed(frame[_SEQ.size :])]
    return seq, call_of(members)


def encode_result(seq: int, outcome: Outcome, duration: float, rss_kb: int) -> bytes:
    """`duration` is the attempt's duration without the time during which it waited for a processor."""
    started, finished = outcome.started_mono, outcome.finished_mono
    result = outcome.result.encode()
    size = len(result)
    if outcome.kind is OutcomeKind.OK:
        body, none = _RESULT_BODY + size, _NONE
        return (
            _RESULT.pack(
                body, _TYPE_RESULT, seq, _OK_NUMBER, started, finished, duration, rss_kb, -1, size, none, none, none
            )
            + result
        )
    texts = [result]
    sizes = [_NONE, _NONE, _NONE]
    # Error texts come from user code: characters that UTF-8 cannot encode become question marks.
    for place, text in enumerate((outcome.error_code, outcome.error_message, outcome.failed_reason)):
        if text is not None:
            texts.append(text.encode(errors="replace"))
            sizes[place] = len(texts[-1])
    retry_after = -1 if outcome.retry_after_ms is None else outcome.retry_after_ms
    head = _RESULT.pack(
        _RESULT_BODY + sum(map(len, texts)),
        _TYPE_RESULT,
        seq,
        _KIND_NUMBERS[outcome.kind],
        started,
        finished,
        duration,
        rss_kb,
        retry_after,
        size,
        *sizes,
    )
    return b"".join((head, *texts))


def decode_result(frame: bytes) -> tuple[int, Outcome, float, int]:
    """Return (seq, outcome without its process, duration, rss_kb or 0)."""
    (_, _, seq, kind, started, finished, duration, rss_kb, retry_after, size, code_size, message_size, reason_size) = (
        _RESULT.unpack_from(frame)
    )
    at = _RESULT.size
    result = frame[at : at + size].decode()
    if kind == _OK_NUMBER:
        return seq, Outcome(OutcomeKind.OK, result, None, None, None, None, started, finished), duration, rss_kb
    at += size
    texts: list[str | None] = []
    for text_size in (code_size, message_size, reason_size):
        if text_size == _NONE:
            texts.append(None)
        else:
            texts.append(frame[at : at + text_size].decode())
            at += text_size
    retry_after_ms = None if retry_after < 0 else retry_after
    outcome = Outcome(_KINDS[int(kind)], result, texts[0], texts[1], texts[2], retry_after_ms, started, finished)
    return seq, outcome, duration, rss_kb


def encode_stop(seq: int, code: StopCode, *, interrupt: bool) -> bytes:
    """`interrupt`: raise the exception as well, not only the flag."""
    return _STOP.pack(_STOP.size - _HEAD.size, FrameType.STOP, seq, code, interrupt)


def decode_stop(frame: bytes) -> tuple[int, StopCode, bool]:
    _, _, seq, code, interrupt = _STOP.unpack(frame)
    return seq, StopCode(code), bool(interrupt)


def encode_ready(pid: int, rss_kb: int) -> bytes:
    return _READY.pack(_READY.size - _HEAD.size, FrameType.READY, pid, rss_kb)


def decode_ready(frame: bytes) -> tuple[int, int]:
    _, _, pid, rss_kb = _READY.unpack(frame)
    return pid, rss_kb


def encode_progress(seq: int, text: str) -> bytes:
    body = text.encode()
    return _SEQ.pack(_SEQ.size - _HEAD.size + len(body), FrameType.PROGRESS, seq) + body


def decode_progress(frame: bytes) -> tuple[int, str]:
    return _SEQ.unpack_from(frame)[2], frame[_SEQ.size :].decode()


def encode_late(seq: int) -> bytes:
    return _SEQ.pack(_SEQ.size - _HEAD.size, FrameType.LATE, seq)


def decode_late(frame: bytes) -> int:
    seq: int = _SEQ.unpack(frame)[2]
    return seq


def encode_completing(task_id: str, generation: int) -> bytes:
    body = task_id.encode()
    return _SEQ.pack(_SEQ.size - _HEAD.size + len(body), FrameType.COMPLETING, generation) + body


def decode_completing(frame: bytes) -> tuple[str, int]:
    """Return task id and claim generation."""
    return frame[_SEQ.size :].decode(), _SEQ.unpack_from(frame)[2]


def encode_claimant(claimant: Claimant) -> bytes:
    body = json.dumps([claimant.worker_id, claimant.key, claimant.clock_offset, claimant.process_name]).encode()
    return _HEAD.pack(len(body), FrameType.CLAIMANT) + body


def decode_claimant(frame: bytes) -> Claimant:
    return Claimant(*json.loads(frame[_HEAD.size :]))


def encode_start_failed(text: str) -> bytes:
    body = text.encode(errors="replace")
    return _HEAD.pack(len(body), FrameType.START_FAILED) + body


def decode_start_failed(frame: bytes) -> str:
    return frame[_HEAD.size :].decode(errors="replace")


def encode_stacks(text: str = "") -> bytes:
    body = text.encode(errors="backslashreplace")
    return _HEAD.pack(len(body), FrameType.STACKS) + body


def decode_stacks(frame: bytes) -> str:
    return frame[_HEAD.size :].decode()


def pack_tokens(seqs: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(seqs)}Q", *seqs)


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // TOKEN_BYTES}Q", data)
