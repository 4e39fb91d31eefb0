"""How a child takes jobs while signal handlers of user code raise. Real pipes and sockets, one process."""

import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

import pytest

from horsies_worker.child import frames, inbox as module
from horsies_worker.child.inbox import Inbox
from horsies_worker.child.jobs import Job

ROUNDS = 300
JOBS = 50


class Left(BaseException):
    """The child would have ended here."""


class Alarms:
    """An alarm that rings all the time, and whose handler raises once whenever `is_armed` is set."""

    def __init__(self) -> None:
        self.is_armed = False
        self.rung = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_armed:
            self.is_armed = False
            self.rung += 1
            raise TimeoutError("too late")

    @contextmanager
    def ringing(self, *, is_armed: bool = False) -> Generator[None]:
        before = signal.signal(signal.SIGALRM, self)
        self.is_armed = is_armed
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
            yield
        finally:
            self.is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextmanager
def stream() -> Generator[tuple[Inbox, socket.socket, int]]:
    """A child's inbox, and the parent's ends."""
    ours, theirs = socket.socketpair()
    tokens_out, tokens_in = os.pipe()
    try:
        yield Inbox(theirs, tokens_out), ours, tokens_in
    finally:
        for one in (ours, theirs):
            one.close()
        os.close(tokens_out)


def a_job(seq: int) -> Job:
    return Job(
        task_id=f"task-{seq}", generation=1, attempt=1, task_name="add", args="[1]", kwargs=None, timeout_ms=None
    )


def send(sock: socket.socket, tokens: int, seqs: range) -> None:
    for seq in seqs:
        sock.sendall(frames.encode_job(seq, a_job(seq)))
        os.write(tokens, frames.pack_tokens([seq]))
    os.close(tokens)


def test_every_token_is_followed_by_its_job_or_by_the_end_of_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises between the read of a token and the line that keeps it would lose a task for ever."""

    def leaves(_error: Exception) -> None:
        raise Left

    monkeypatch.setattr(module, "leave", leaves)
    alarms = Alarms()
    taken = left = 0
    for _ in range(ROUNDS):
        with stream() as (inbox, sock, tokens):
            send(sock, tokens, range(1, JOBS + 1))
            seq = 0
            with alarms.ringing(), suppress(Left):
                while seq < JOBS:
                    try:
                        alarms.is_armed = True
                        found = inbox.take()
                        alarms.is_armed = False
                    except TimeoutError as error:
                        inbox.survive(error)
                        continue
                    assert found is not None, "a token was lost"
                    assert (found[0], found[1].task_id) == (seq + 1, f"task-{seq + 1}"), "a token was lost"
                    seq, taken = found[0], taken + 1
            left += seq < JOBS
    assert alarms.rung


def test_an_alarm_while_the_child_waits_loses_nothing() -> None:
    """For a token, and for the job of a token."""
    alarms = Alarms()
    with stream() as (inbox, sock, tokens):
        for last in (False, True):
            with pytest.raises(TimeoutError) as caught, alarms.ringing(is_armed=True):
                inbox.take()
            inbox.survive(caught.value)
            if last:
                sock.sendall(frames.encode_job(1, a_job(1)))
            else:
                os.write(tokens, frames.pack_tokens([1]))
        found = inbox.take()
        assert found is not None
        assert found[0] == 1
        os.close(tokens)


def test_an_end_of_the_pipe_is_the_end() -> None:
    with stream() as (inbox, sock, tokens):
        send(sock, tokens, range(1, 3))
        first, second = inbox.take(), inbox.take()
        assert first is not None
        assert second is not None
        assert (first[0], second[0]) == (1, 2)
        assert inbox.take() is None


def test_a_job_without_a_token_was_taken_back() -> None:
    with stream() as (inbox, sock, tokens):
        for seq in (1, 2, 3):
            sock.sendall(frames.encode_job(seq, a_job(seq)))
        os.write(tokens, frames.pack_tokens([3]))
        found = inbox.take()
        assert found is not None
        assert found[0] == 3
        os.close(tokens)
