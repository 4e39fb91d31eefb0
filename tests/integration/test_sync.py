"""The synchronous verbs: from threads, after fork, around event loops, and at the end of the process."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from horsies import (
    Horsies,
    HorsiesError,
    TaskHandle,
    TaskResult,
    TaskSendError,
    UsageError,
    as_completed,
    gather,
)
from horsies.ids import new_id
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.postgres import Database
from tests.support.waiting import eventually

CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'horsies'"


# -- threads -------------------------------------------------------------------------------------


def loops() -> set[threading.Thread]:
    """The threads of the synchronous methods, of all apps of this process."""
    return {thread for thread in threading.enumerate() if thread.name == "horsies-sync"}


def test_many_threads_share_one_loop_and_a_bounded_pool(db: Database) -> None:
    threads, rounds = 24, 5
    before = loops()
    with app_on(db, broker={"pool_max_size": 4}) as app:
        add = add_task(app)

        def work(number: int) -> list[TaskHandle[int]]:
            return [add.send(number, turn) for turn in range(rounds)]

        with ThreadPoolExecutor(threads) as pool:
            handles = [handle for many in pool.map(work, range(threads)) for handle in many]
            assert db.value(CONNECTED) <= 4
            assert len(loops() - before) == 1
            for handle in handles:
                factories.finish(db, handle.task_id, 1)
            results = list(pool.map(lambda handle: handle.get(timeout_ms=30_000), handles))
    assert len({handle.task_id for handle in handles}) == threads * rounds == factories.count(db)
    assert results == [TaskResult(ok=1)] * threads * rounds


def test_closing_while_others_are_at_work_hangs_nobody(db: Database) -> None:
    app = make_app(db)
    add = add_task(app)
    stop = threading.Event()
    surprises: list[BaseException] = []

    def hammer() -> None:
        while not stop.is_set():
            try:
                add.send(1)
                app.handle(new_id()).get(timeout_ms=1_000)
            except HorsiesError:
                continue
            except BaseException as error:
                surprises.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        app.close()
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    app.close()
    assert surprises == []


def test_closing_ends_a_wait_without_time_out(db: Database) -> None:
    with app_on(db) as app, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(app.handle(factories.task(db)).get)
        eventually(lambda: db.value(CONNECTED) >= 2)
        app.close()
        assert waiting.result(20).err_value.error_code == "BROKER_ERROR"


# -- event loops ---------------------------------------------------------------------------------


def blocking_verbs(app: Horsies) -> dict[str, Callable[[], Any]]:
    add, handle = add_task(app), app.handle(new_id())
    return {
        "send": lambda: add.send(1),
        "schedule": lambda: add.schedule(5, 1),
        "send_many": lambda: add.send_many([(1,)]),
        "get": lambda: handle.get(timeout_ms=0),
        "info": handle.info,
        "attempts": handle.attempts,
        "cancel": handle.cancel,
        "gather": lambda: gather([handle]),
        "as_completed": lambda: next(iter(as_completed([handle]))),
    }


@pytest.mark.parametrize("verb", blocking_verbs(make_app(UNREACHABLE)))
async def test_a_blocking_verb_on_a_running_loop_names_its_twin(verb: str) -> None:
    call = blocking_verbs(make_app(UNREACHABLE))[verb]
    with pytest.raises(UsageError, match=rf"{verb}\(\) blocks .* use `await {verb}_async\(\.\.\.\)` here"):
        call()


async def test_by_name_too_and_nothing_is_sent(db: Database) -> None:
    async with async_app_on(db) as app:
        with pytest.raises(UsageError, match="send_async"):
            app.send("elsewhere")
        handle = await asyncio.to_thread(app.send, "elsewhere")  # a thread has no loop
        assert factories.read(db, handle.task_id)
    assert factories.count(db) == 1


async def test_retry_of_a_failed_send_too() -> None:
    async with async_app_on(UNREACHABLE, resilience={"send_attempts": 1}) as app:
        with pytest.raises(TaskSendError) as raised:
            await add_task(app).send_async(1)
        with pytest.raises(UsageError, match="_async"):
            raised.value.retry()


def test_one_app_on_several_loops_one_after_the_other(db: Database) -> None:
    app = make_app(db)
    add = add_task(app)

    async def send() -> str:
        async with app:
            return (await add.send_async(1)).task_id

    sent = [asyncio.run(send()) for _ in range(3)]
    sent.append(add.send(2).task_id)
    app.close()
    assert len(set(sent)) == factories.count(db) == 4


def test_one_app_on_several_loops_at_once(db: Database) -> None:
    app = make_app(db)
    add = add_task(app)

    async def send(number: int) -> list[str]:
        async with app:
            handles = await asyncio.gather(*(add.send_async(number) for _ in range(10)))
            return [handle.task_id for handle in handles]

    with ThreadPoolExecutor(6) as pool:
        sent = list(pool.map(lambda number: asyncio.run(send(number)), range(12)))
    app.close()
    assert len({task_id for many in sent for task_id in many}) == factories.count(db) == 120


# -- closing -------------------------------------------------------------------------------------


def test_close_may_be_called_twice_and_the_app_used_again(db: Database) -> None:
    before = loops()
    app = make_app(db)
    app.close()  # nothing was opened
    for _ in range(2):
        with app:
            add_task(app).send(1)
            assert db.value(CONNECTED) == 1
        eventually(lambda: db.value(CONNECTED) == 0)
        app.close()
    assert not loops() - before
    assert factories.count(db) == 2


async def test_aclose_closes_this_loop_and_the_background_one(db: Database) -> None:
    app = make_app(db)
    add = add_task(app)
    await add.send_async(1)
    await asyncio.to_thread(add.send, 2)
    await asyncio.to_thread(app.handle(new_id()).get, 100)
    await app.aclose()
    await app.aclose()
    eventually(lambda: db.value(CONNECTED) == 0)
    await add.send_async(3)  # opens again
    await app.aclose()
    assert factories.count(db) == 3


# -- processes -----------------------------------------------------------------------------------

PRELUDE = """
    import asyncio, os, signal, sys, threading, time
    sys.path.insert(0, {root!r})
    from tests.support import factories
    from tests.support.apps import add_task, make_app
    from tests.support.postgres import Database
    db = Database({name!r}, {url!r})
    OURS = " FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'horsies'"
    CONNECTED, BACKENDS = "SELECT count(*)" + OURS, "SELECT array_agg(pid)" + OURS
    app = make_app(db)
    add = add_task(app)
"""


def script(db: Database, body: str, *flags: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program of its own to its end."""
    return subprocess.run(
        [sys.executable, *flags, "-c", program(db, body)], capture_output=True, text=True, timeout=timeout
    )


def program(db: Database, body: str) -> str:
    return textwrap.dedent(PRELUDE).format(
        root=str(Path(__file__).parents[2]), name=db.name, url=db.url
    ) + textwrap.dedent(body)


def test_after_fork_every_process_has_its_own_connections(db: Database) -> None:
    """gunicorn prefork: the parent has used the app, then forks; children send and wait, the parent goes on."""
    run = script(
        db,
        """
        first = add.send(0)
        assert first.get(timeout_ms=100).err_value.error_code == "WAIT_TIMEOUT"  # LISTEN is held, too
        before = set(db.value(BACKENDS))
        def child(number):
            handle = add.send(1, number)
            factories.finish(db, handle.task_id, number)
            assert handle.get(timeout_ms=20_000).ok_value == number
            assert len(add.send_many([(1,), (2,)])) == 2
            assert first.get(timeout_ms=100).err_value.error_code == "WAIT_TIMEOUT"
            if number == 0:
                app.close()
        children = []
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                child(number)
                if number == 1:
                    os._exit(0)  # as gunicorn does; the others with all the cleaning up of an interpreter
                sys.exit(0)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
        assert before <= set(db.value(BACKENDS)), "the parent's sessions live"
        add.send(9)
        factories.finish(db, first.task_id, 7)
        assert first.get(timeout_ms=20_000).ok_value == 7
        app.close()
        """,
        "-W", "ignore::DeprecationWarning",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert factories.count(db) == 1 + 3 * 3 + 1


def test_a_fork_in_the_middle_of_sends(db: Database) -> None:
    """Other threads of the parent hold locks at the moment of the fork; in the child nobody would release them."""
    run = script(
        db,
        """
        add.send(0)  # a fork during somebody's first import is CPython's own trap
        stop = threading.Event()
        def hammer():
            while not stop.is_set():
                add.send(1)
        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads: thread.start()
        statuses = []
        for _ in range(15):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                add.send(2)
                os._exit(0)
            statuses.append(os.waitpid(pid, 0)[1])
        stop.set()
        for thread in threads: thread.join()
        app.close()
        assert statuses == [0] * 15, statuses
        """,
        "-W", "ignore::DeprecationWarning",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


EXITS = {
    "closed": "add.send(1).get(timeout_ms=50)\napp.close()",
    "with": "with app: add.send(1).get(timeout_ms=50)",
    "not closed": "add.send(1).get(timeout_ms=50)",
    "never used": "",
    "async with": """
        async def main():
            async with app:
                await (await add.send_async(1)).get_async(timeout_ms=50)
        asyncio.run(main())
        """,
    "async and sync": """
        async def main():
            async with app:
                await add.send_async(1)
                await asyncio.to_thread(add.send, 2)
        asyncio.run(main())
        add.send(3)
        """,
    "in the middle of a wait": """
        handle = add.send(1)
        threading.Thread(target=handle.get, daemon=True).start()
        while db.value(CONNECTED) < 2: time.sleep(0.02)
        """,
}


@pytest.mark.parametrize("name", EXITS)
def test_nothing_is_left_at_exit(db: Database, name: str) -> None:
    """In development mode with every warning an error: no open socket, no pending task, no hanging thread."""
    run = script(db, EXITS[name], "-X", "dev", "-W", "error")
    # asyncio's debug mode tells callbacks that took 0.1 s: on a busy machine every first import does
    said = [line for line in run.stderr.splitlines() if not line.startswith("Executing <")]
    assert (run.returncode, run.stdout, said) == (0, "", [])


def test_a_loop_that_was_left_without_aclose_still_ends_quietly(db: Database) -> None:
    body = """
        async def main():
            await (await add.send_async(1)).get_async(timeout_ms=50)
        for _ in range(3):
            asyncio.run(main())
        add.send(2)
        """
    run = script(db, body)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert factories.count(db) == 4


def test_exit_with_the_server_away(db: Database) -> None:
    body = f"""
        away = make_app({UNREACHABLE!r}, resilience={{"send_attempts": 1}})
        try: add_task(away).send(1)
        except Exception as error: assert "ENQUEUE_FAILED" in str(error)
        threading.Thread(target=away.handle("x").get, daemon=True).start()
        """
    began = time.monotonic()
    run = script(db, body, "-X", "dev")
    assert run.returncode == 0
    assert time.monotonic() - began < 30
    assert "Traceback" not in run.stderr


def test_ctrl_c_interrupts_a_wait(db: Database) -> None:
    handle_id = factories.task(db)
    body = f"""
        print("ready", flush=True)
        app.handle({handle_id!r}).get()
        """
    process = subprocess.Popen(
        [sys.executable, "-c", program(db, body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    eventually(lambda: db.value(CONNECTED) >= 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
    assert process.returncode != 0
