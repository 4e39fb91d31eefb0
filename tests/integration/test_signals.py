"""Synchronous verbs inside signal handlers, finalizers and atexit functions: they work or raise, and never wait
for a lock that the interrupted frame holds. Each case is a program of its own, which can be ended from outside.
"""

import subprocess
import sys

import pytest

from tests.integration.test_sync import program, script
from tests.support import factories
from tests.support.postgres import Database


def ran(db: Database, body: str, *flags: str) -> str:
    run = script(db, body, *flags, timeout=100)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    return run.stdout


def test_a_storm_of_signals_whose_handler_sends(db: Database) -> None:
    """Main thread and handler send at the same time: every send ends, and no id is given twice."""
    sent = ran(
        db,
        """
        import random
        ids = []
        inside = 0
        def handler(*_):
            global inside
            inside += 1
            ids.append(add.send(2).task_id)
            if inside % 5 == 0:
                ids.extend(handle.task_id for handle in add.send_many([(3,), (4,)]))
                add.send(5).cancel()
                ids.append(None)
                app.handle(ids[0]).get(timeout_ms=1)
            arm()
        def arm():
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
        signal.signal(signal.SIGALRM, handler)
        arm()
        while inside < 60:
            ids.append(add.send(1).task_id)
        signal.setitimer(signal.ITIMER_REAL, 0)
        named = [one for one in ids if one is not None]
        assert len(set(named)) == len(named)
        print(len(ids))
        """,
    )
    assert factories.count(db) == int(sent)


EVERY_LINE = """
    nested, FILES = [], {files}
    class Send:
        def __del__(self): nested.append(add.send(2).task_id)
    def handler(*_): nested.append({nested})
    signal.signal(signal.SIGUSR1, handler)
    def interrupted(verb):
        # At one line after the other of the call, also of the standard library: the handler of a signal
        # runs there, on top of the frame and of all the locks that it holds.
        at = 0
        while True:
            at += 1
            seen = 0
            def line(frame, event, arg):
                nonlocal seen
                if not frame.f_code.co_filename.endswith(FILES): return None
                seen += 1
                if seen == at:
                    sys.settrace(None)
                    {interrupt}
                    return None
                return line
            sys.settrace(line)
            try:
                returned = verb()
            finally:
                sys.settrace(None)
            yield returned
            if seen < at:
                return
"""


@pytest.mark.parametrize(
    ("interrupt", "nested"),
    [
        ("signal.raise_signal(signal.SIGUSR1)", "add.send(2).task_id"),
        ("signal.raise_signal(signal.SIGUSR1)", "app.handle(first.task_id).get(timeout_ms=0) and add.send(2).task_id"),
        ("Send()", "None"),
    ],
    ids=["send in a handler", "get in a handler", "send in a finalizer"],
)
def test_at_every_line_of_a_send(db: Database, interrupt: str, nested: str) -> None:
    body = EVERY_LINE.format(interrupt=interrupt, nested=nested, files=(".py",))
    sent = ran(
        db,
        body
        + """
    first = add.send(0)
    outer = [handle.task_id for handle in interrupted(lambda: add.send(1))]
    assert len(nested) == len(outer) - 1 > 30, (len(nested), len(outer))
    assert len({*nested, *outer}) == len(nested) + len(outer)
    print(1 + len(nested) + len(outer))
        """,
    )
    assert factories.count(db) == int(sent)


def test_at_every_line_of_the_first_send_of_an_app(db: Database) -> None:
    """While the background thread is being made; both calls get one, and only one is kept."""
    body = EVERY_LINE.format(
        interrupt="signal.raise_signal(signal.SIGUSR1)",
        nested="send_nested()",
        files=("horsies/app.py", "horsies/sync.py", "/threading.py", "asyncio/unix_events.py"),
    )
    ran(
        db,
        body
        + """
    add.send(0)
    apps = [make_app(db)]
    def send_nested(): return apps[-1].send("x").task_id
    counted = 0
    for _ in interrupted(lambda: apps[-1].send("x")):
        counted += 1
        apps[-1].close()
        apps.append(make_app(db))
        left = [one for one in threading.enumerate() if one.name == "horsies-sync"]
        assert len(left) == 1, (counted, left)
    assert counted > 50
        """,
    )


FIRST_IMPORT = """
    from horsies import UsageError
    told, done = [], []
    def call():
        try: add.send(1)
        except UsageError as error: told.append(str(error))
        else: done.append(1)
    class Bye:
        def __del__(self): call()
    signal.signal(signal.SIGUSR1, lambda *_: call())
    class Interrupting:
        def find_spec(self, name, path=None, target=None):
            if name in ("asyncpg.pool", "horsies._pg.waiters", "horsies.operate.session"):
                {interrupt}
    for name in list(sys.modules):
        if name.startswith("asyncpg") or name in ("horsies.sync", "horsies._pg.pool"): del sys.modules[name]
    sys.meta_path.insert(0, Interrupting())
    add.send(2)
"""


def test_a_signal_during_the_first_import_waits_for_its_end(db: Database) -> None:
    body = FIRST_IMPORT.format(interrupt="signal.raise_signal(signal.SIGUSR1)")
    ran(db, body + "\n    assert done and not told, (told, done)")


def test_a_finalizer_during_the_first_import_is_refused(db: Database) -> None:
    """The import that a first send needs cannot be finished by another thread: that is said at once."""
    body = FIRST_IMPORT.format(interrupt="Bye()")
    ran(
        db,
        body
        + """
    assert told and not done, (told, done)
    assert all("interrupted the import of" in one for one in told), told
    call()
    assert done
        """,
    )


def test_a_handler_that_interrupts_the_writing_of_a_log_line(db: Database) -> None:
    """The background thread logs a failed attempt, while the interrupted frame holds the lock of the log handler."""
    ran(
        db,
        """
        import logging
        from horsies import TaskSendError
        from tests.support.apps import UNREACHABLE
        away = make_app(UNREACHABLE, resilience={"send_attempts": 2})
        told, lines = [], []
        def handler(*_):
            try: away.send("x")
            except TaskSendError as error: told.append(error.code)
        signal.signal(signal.SIGUSR1, handler)
        class Interrupted(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())
                if len(lines) == 1: signal.raise_signal(signal.SIGUSR1)
        logging.basicConfig(level=logging.INFO, handlers=[Interrupted()])
        add.send(1)
        logging.info("hello")
        assert told == ["ENQUEUE_FAILED"]
        deadline = time.monotonic() + 30
        while not any("trying again" in line for line in lines):
            assert time.monotonic() < deadline, lines
            time.sleep(0.01)
        """,
    )


def test_a_handler_that_interrupts_the_start_of_a_thread_by_the_executor(db: Database) -> None:
    """A host name is looked up on a thread: its start must not need what an interrupted `submit` holds."""
    ran(
        db,
        """
        import concurrent.futures.thread as module
        with module._global_shutdown_lock:
            named = make_app("postgresql://nobody@localhost:1/nowhere", resilience={"send_attempts": 1})
            try: named.send("x")
            except Exception as error: assert "ENQUEUE_FAILED" in str(error), error
            else: raise AssertionError("sent")
        """,
    )


# -- at the end ----------------------------------------------------------------------------------

ENDS = {
    "registered after the import": """
        import atexit
        add.send(1)
        atexit.register(lambda: add.send(2))
        """,
    "registered before the import": """
        add.send(1)
        BEFORE.append(lambda: add.send(2))
        """,
    "first of all": """
        import atexit
        atexit.register(lambda: (add.send(1), add.send(2)))
        """,
    "first of all, before the import": """
        BEFORE.append(lambda: (add.send(1), add.send(2)))
        """,
    "by an unreferenced object": """
        class Bye:
            def __del__(self): add.send(2)
        add.send(1)
        bye = Bye()
        del bye
        """,
}


@pytest.mark.parametrize("name", ENDS)
def test_sends_while_the_interpreter_exits(db: Database, name: str) -> None:
    code = "import atexit\nBEFORE = []\natexit.register(lambda: [one() for one in BEFORE])\n" + program(db, ENDS[name])
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    said = [line for line in run.stderr.splitlines() if not line.startswith("Executing <")]
    assert (run.returncode, said) == (0, [])
    assert factories.count(db) == 2


def test_a_finalizer_of_the_dying_interpreter_is_refused(db: Database) -> None:
    """No thread runs any more: waiting for one would be for ever."""
    body = """
        class Bye:
            def __init__(self): self.send = add.send
            def __del__(self): self.send(2)
        add.send(1)
        sys.kept = Bye()
        sys.kept.itself = sys.kept
        """
    run = script(db, body)
    assert run.returncode == 0
    assert run.stderr == "" or "UsageError: send() was called after the interpreter began" in run.stderr
    assert factories.count(db) in (1, 2)
