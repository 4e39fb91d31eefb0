"""What each kind of fault does. A function ends when the fault is over and what it killed has been started again."""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import psutil
import psycopg

from tests.soak import app as soak_app
from tests.soak.fleet import Fleet, Slot, WorkerSlot, gone_after
from tests.soak.ledger import note_send
from tests.soak.plan import Fault
from tests.soak.server import Server
from tests.support.chaosproxy import Mode, When

OF_WORKER: Final = frozenset(
    {"kill_child", "kill_parent", "kill_worker", "freeze", "restart", "cut_commit", "delay", "freeze_listen",
     "blackhole", "deploy", "freeze_child", "drain_worker"}
)  # fmt: skip
WITHOUT_TARGET: Final = frozenset({"kill_scheduler", "pause_queue", "pause_workflows", "cancel_storm", "terminate"})
"""These may come while the server is struck."""
ORPHANS_S: Final = 5.0
"""Children are gone this long after their parent, on a busy machine; the promise is two seconds."""
WRITES: Final = (r"INSERT INTO horsies_task_attempts", r"UPDATE horsies_tasks", r"^COMMIT")
SENDS: Final = (r"CALL|horsies_send|INSERT INTO horsies_tasks", r"INSERT INTO horsies_workflows|COMMIT")
STORM: Final = 30


class Field(NamedTuple):
    """All that a fault may strike."""

    fleet: Fleet
    server: Server
    older: Sequence[Any]


def _again(slot: Slot, older: Sequence[Any] = ()) -> None:
    slot.start(older)
    slot.process.wait_up()


def kill_child(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    children = slot.process.children()
    if not children:
        return {"pid": None}
    victim = random.Random(fault.at).choice(sorted(children, key=lambda process: process.pid))
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        pass
    return {"pid": victim.pid}


def freeze_child(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    """Alone, for longer than the threshold: its parent vouches for it, so its task must not be taken for lost."""
    children = slot.process.children()
    if not children:
        return {"pid": None}
    victim = random.Random(fault.at).choice(sorted(children, key=lambda process: process.pid))
    try:
        victim.suspend()
        time.sleep(fault.seconds)
        victim.resume()
    except psutil.NoSuchProcess:
        pass
    return {"pid": victim.pid}


def kill_parent(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    """Its children must go too."""
    left = slot.process.offspring()
    slot.process.kill()
    ended = time.time()
    took = gone_after(left, ORPHANS_S)
    _again(slot)
    return {"children_gone_s": took, "ended": ended}


def kill_worker(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    slot.process.kill_all()
    ended = time.time()
    _again(slot)
    return {"ended": ended}


def freeze(field: Field, fault: Fault, slot: WorkerSlot) -> None:
    slot.process.freeze()
    try:
        time.sleep(fault.seconds)
    finally:
        slot.process.thaw()


def restart(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    code = slot.process.stop(60)
    _again(slot)
    return {"code": code}


def deploy(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    """Another release takes this place; the next start of it brings the present one back."""
    code = slot.process.stop(60)
    _again(slot, field.older)
    return {"code": code}


def cut_commit(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    """The server executes the next write, and its answer never arrives: of the worker, and of a producer."""
    chance = random.Random(fault.at)
    producer = chance.choice(field.fleet.producers)
    proxies = {slot.proxy: chance.choice(WRITES), producer.proxy: chance.choice(SENDS)}
    before = {proxy: proxy.cuts for proxy in proxies}
    for proxy, pattern in proxies.items():
        proxy.cut_at(pattern, chance.choice([When.UNANSWERED, When.UNANSWERED, When.UNSENT]))
    time.sleep(fault.seconds)
    for proxy in proxies:
        proxy.trap = None
    return {"cuts": sum(proxy.cuts - before[proxy] for proxy in proxies), "patterns": list(proxies.values())}


def delay(field: Field, fault: Fault, slot: WorkerSlot) -> None:
    slot.proxy.set(Mode.DELAY, delay_s=0.1)
    time.sleep(fault.seconds)
    slot.proxy.set(Mode.PASS)


def freeze_listen(field: Field, fault: Fault, slot: WorkerSlot) -> None:
    """Every worker's connection that listens: one of them is on duty."""
    for worker in field.fleet.workers:
        worker.proxy.hold(r"LISTEN")
    time.sleep(fault.seconds)
    for worker in field.fleet.workers:
        worker.proxy.hold(None)


def blackhole(field: Field, fault: Fault, slot: WorkerSlot) -> None:
    assert slot.network is not None
    slot.network.blackhole(on=True)
    try:
        time.sleep(fault.seconds)
    finally:
        slot.network.blackhole(on=False)


def terminate(field: Field, fault: Fault, slot: None) -> dict[str, Any]:
    """Five sessions of the fleet in a second."""
    count = 0
    for _ in range(5):
        try:
            found = field.server.db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 1"
            )
            count += len(found)
        except psycopg.Error:
            pass
        time.sleep(fault.seconds / 5)
    return {"sessions": count}


def server_crash(field: Field, fault: Fault, slot: None) -> None:
    field.server.crash()
    time.sleep(fault.seconds)
    field.server.start()
    field.server.wait_up()


def freeze_server(field: Field, fault: Fault, slot: None) -> None:
    """The whole server stands still for longer than the threshold, and no connection ends: a stalled machine."""
    field.server.freeze()
    try:
        time.sleep(fault.seconds)
    finally:
        field.server.thaw()


def hold_connections(field: Field, fault: Fault, slot: None) -> dict[str, Any]:
    """All that the server has left, as a client that leaks them would."""
    held: list[psycopg.Connection[Any]] = []
    try:
        while len(held) < 200:
            held.append(psycopg.connect(field.server.db.url, connect_timeout=3))
    except psycopg.Error:
        pass
    time.sleep(fault.seconds)
    for connection in held:
        connection.close()
    return {"held": len(held)}


def lock(field: Field, fault: Fault, slot: None) -> None:
    with _connected(field) as connection:
        connection.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        time.sleep(fault.seconds)


def disk_full(field: Field, fault: Fault, slot: None) -> None:
    try:
        field.server.fill_disk()
        time.sleep(fault.seconds)
    finally:
        field.server.free_disk()
    field.server.wait_up()


def clock(field: Field, fault: Fault, slot: None) -> None:
    """Forward by less than a threshold, and back: as a correction by NTP."""
    field.server.set_clock(1.5)
    time.sleep(fault.seconds)
    field.server.set_clock(0)


def kill_scheduler(field: Field, fault: Fault, slot: None) -> dict[str, Any]:
    victim = random.Random(fault.at).choice(field.fleet.schedulers)
    with victim.lock:
        victim.process.signal(signal.SIGKILL)
        victim.process.wait(10)
        ended = time.time()
        _again(victim)
    return {"ended": ended}


def pause_queue(field: Field, fault: Fault, slot: None) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with soak_app.build(field.server.db.url) as app:
            broker = app.get_broker()
            await _insist(lambda: broker.pause_queue("main"))
            paused = await _insist(broker.get_time)
            await asyncio.sleep(fault.seconds)
            resumed = await _insist(broker.get_time)
            await _insist(lambda: broker.resume_queue("main"))
            return {"queue": "main", "paused": paused.isoformat(), "resumed": resumed.isoformat()}

    return asyncio.run(work())


def drain_worker(field: Field, fault: Fault, slot: WorkerSlot) -> dict[str, Any]:
    """An operator drains a worker, and lets it go on."""
    worker_id = slot.worker_ids[-1]

    async def work() -> dict[str, Any]:
        async with soak_app.build(field.server.db.url) as app:
            workers = app.get_broker().workers
            asked = await _insist(lambda: workers.drain(worker_id))
            await asyncio.sleep(fault.seconds)
            await _insist(lambda: workers.resume(worker_id))
            return {"asked": len(asked)}

    return asyncio.run(work())


def pause_workflows(field: Field, fault: Fault, slot: None) -> dict[str, Any]:
    """Up to five that run now."""

    async def work() -> dict[str, Any]:
        async with soak_app.build(field.server.db.url) as app:
            found = await _ask(
                field,
                "SELECT id FROM horsies_workflows WHERE status = 'RUNNING' AND depth = 0 ORDER BY random() LIMIT 5",
            )
            handles = [app.workflow_handle(row[0]) for row in found]
            paused = [handle for handle in handles if await _insist(handle.pause_async)]
            await asyncio.sleep(fault.seconds)
            for handle in paused:
                await _insist(handle.resume_async)
            return {"paused": len(paused)}

    return asyncio.run(work())


def cancel_storm(field: Field, fault: Fault, slot: None) -> dict[str, Any]:
    """Many sends, and all of them cancelled at once, as they wait, start or run."""

    async def work() -> dict[str, Any]:
        async with soak_app.build(field.server.db.url) as app:
            steady = soak_app.register(app).steady
            first = int(900_000_000 + fault.at * 1000)
            keys = range(first, first + STORM)
            handles = await _insist(lambda: steady.send_many_async([(k, 0.2) for k in keys]))
            for k, handle in zip(keys, handles, strict=True):
                note_send(k=k, kind="cancelled", phase="ok", id=handle.task_id, duplicate=False)
            answers = await _insist(lambda: app.get_broker().cancel_many([handle.task_id for handle in handles]))
            return {"sent": len(handles), "answers": len(answers)}

    return asyncio.run(work())


async def _insist(work: Callable[[], Any]) -> Any:
    from tests.soak.producer import insist

    return await insist(work)


def _connected(field: Field) -> "psycopg.Connection[Any]":
    """Repeat until the server accepts it: another fault may have stopped it, or may hold all its connections."""
    from tests.soak.producer import PATIENCE_S

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return psycopg.connect(field.server.db.url)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


async def _ask(field: Field, question: str) -> list[Any]:
    """As `_connected`, for one question."""
    from tests.soak.producer import PATIENCE_S

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await asyncio.to_thread(field.server.db.execute, question)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.2)


STRIKES: Final[Mapping[str, Callable[[Field, Fault, Any], dict[str, Any] | None]]] = {
    each.__name__: each
    for each in (
        kill_child, freeze_child, kill_parent, kill_worker, freeze, restart, deploy, cut_commit, delay, freeze_listen,
        blackhole, terminate, server_crash, freeze_server, hold_connections, lock, disk_full, clock, kill_scheduler,
        pause_queue, pause_workflows, cancel_storm, drain_worker,
    )
}  # fmt: skip
