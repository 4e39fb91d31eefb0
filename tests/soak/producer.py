"""A producer: a process of its own that sends on a steady beat and logs every send and its answer.

    python -m tests.soak.producer '{"url": ..., "number": 0, "seed": 7, "seconds": 60, "rate": 6}'

A send whose answer is an error that may be repeated is repeated; what stays unknown is logged as unknown. It ends by
itself when its time is over, or on SIGTERM, after the sends that are under way.
"""

import asyncio
import json
import random
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg

from horsies import BrokerError, ConfigurationError, TaskSendError, UsageError
from tests.soak import flows, workload
from tests.soak.app import build_all
from tests.soak.ledger import note_send
from tests.soak.settings import WORKFLOW_EVERY_S

MOST_AT_ONCE = 60
PATIENCE_S = 40.0
NAMESPACE = uuid.UUID("b2a4ac1e-6a41-4a1c-9df4-5b0bb4f9f6a2")
KEYS = 1_000_000
"""Each producer has this many keys of its own."""


async def insist(work: Callable[[], Awaitable[Any]], seconds: float = PATIENCE_S) -> Any:
    """Repeat until it succeeds; the error when its time is over, or when it may not be repeated."""
    until = time.monotonic() + seconds
    while True:
        try:
            return await work()
        except TaskSendError as error:
            if not error.retryable or time.monotonic() > until:
                raise
            work = error.retry_async
        except BrokerError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.2)


class Producer:
    def __init__(self, given: dict[str, Any]) -> None:
        self.number: int = given["number"]
        self._seed = f"{given['seed']}-{self.number}"
        self._chance = random.Random(self._seed)
        self._seconds: float = given["seconds"]
        self._every_s = 1 / given["rate"]
        self._url: str = given["url"]
        self._app, self._tasks, self._flow_tasks = build_all(given["url"])
        self._work: set[asyncio.Task[None]] = set()
        self._next = self.number * KEYS
        self._is_over = asyncio.Event()
        self._replacing = asyncio.Lock()
        """Sends that replace each other go one after the other, so that their order is known."""

    async def run(self) -> None:
        async with self._app:
            await self._produce()

    async def _produce(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._is_over.set)
        beats = [loop.create_task(self._beat(self._every_s, self._send))]
        # workflows and refused sends take turns between the producers
        beats.append(loop.create_task(self._beat(2 * WORKFLOW_EVERY_S, self._workflow)))
        beats.append(loop.create_task(self._beat(6.0, self._hostile)))
        try:
            await asyncio.wait_for(self._is_over.wait(), self._seconds)
        except TimeoutError:
            pass
        for beat in beats:
            beat.cancel()
        await asyncio.gather(*beats, return_exceptions=True)
        if self._work:
            await asyncio.wait(self._work, timeout=PATIENCE_S + 10)

    async def _beat(self, every_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        due = time.monotonic() + random.random() * every_s
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + every_s, time.monotonic())
            if len(self._work) < MOST_AT_ONCE:
                task = asyncio.create_task(work())
                self._work.add(task)
                task.add_done_callback(self._work.discard)

    def _key(self) -> int:
        self._next += 1
        return self._next

    async def _send(self) -> None:
        k = self._key()
        call = workload.draw(self._chance, k, self.number)
        sender = call.sender(self._tasks)
        if k % 2:  # an id of our own, or one that horsies makes
            sender = sender.with_options(task_id=str(uuid.uuid5(NAMESPACE, f"{self._seed}-{k}")))
        note_send(k=k, kind=call.kind, phase="try")
        if "on_conflict" in call.options:
            async with self._replacing:
                await self._send_noted(k, call, sender)
            return
        if call.commits is not None:
            await self._send_in_transaction(k, call, sender)
            return
        await self._send_noted(k, call, sender)

    async def _send_noted(self, k: int, call: workload.Call, sender: Any) -> None:
        try:
            handle = await insist(lambda: sender.send_async(*call.arguments))
        except TaskSendError as error:
            note_send(
                k=k, kind=call.kind, phase="unknown", id=error.task_id, code=str(error.code), **self._key_of(call)
            )
            return
        except Exception as error:
            note_send(k=k, kind=call.kind, phase="unexpected", error=repr(error)[:300])
            return
        note_send(
            k=k, kind=call.kind, phase="ok", id=handle.task_id, duplicate=handle.is_duplicate, **self._key_of(call)
        )
        if call.cancel_after_s is not None:
            await asyncio.sleep(call.cancel_after_s)
            await self._verb(k, "cancel", handle.cancel_async)

    def _key_of(self, call: workload.Call) -> dict[str, str]:
        return {"key": call.options["unique_key"]} if "on_conflict" in call.options else {}

    async def _send_in_transaction(self, k: int, call: workload.Call, sender: Any) -> None:
        """The task must exist exactly if the transaction has committed; a COMMIT without an answer leaves it open."""
        task_id = str(uuid.uuid5(NAMESPACE, f"{self._seed}-{k}"))
        phase = "rolled_back"
        try:
            connection = await asyncpg.connect(self._url, timeout=5, command_timeout=10)
            try:
                transaction = connection.transaction()
                await transaction.start()
                await sender.with_options(connection=connection, task_id=task_id).send_async(*call.arguments)
                if call.commits:
                    phase = "unknown"
                    await transaction.commit()
                    phase = "ok"
                else:
                    await transaction.rollback()
            finally:
                await connection.close(timeout=5)
        except (TaskSendError, BrokerError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            pass
        note_send(k=k, kind=call.kind, phase=phase, id=task_id, duplicate=False)

    async def _verb(self, k: int, verb: str, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            answer = await insist(work)
        except Exception as error:
            note_send(k=k, kind="verb", phase="unexpected", verb=verb, error=repr(error)[:300])
        else:
            note_send(k=k, kind="verb", phase=verb, answer=str(answer)[:100])

    async def _workflow(self) -> None:
        k = self._key()
        names = list(flows.FLOWS)
        name = names[k % len(names)] if self._chance.random() < 0.5 else self._chance.choice(names)
        flow = flows.FLOWS[name](self._flow_tasks, k)
        options: dict[str, Any] = {"workflow_id": str(uuid.uuid5(NAMESPACE, f"{self._seed}-{k}"))}
        if name == "dated":
            options["deadline"] = 4.0
        kind = f"wf:{name}"
        note_send(k=k, kind=kind, phase="try")
        try:
            handle = await insist(lambda: flow.spec.start_async(**options))
        except TaskSendError as error:
            note_send(k=k, kind=kind, phase="unknown", id=options["workflow_id"], code=str(error.code))
            return
        except Exception as error:
            note_send(k=k, kind=kind, phase="unexpected", error=repr(error)[:300])
            return
        note_send(
            k=k,
            kind=kind,
            phase="ok",
            id=options["workflow_id"],
            status=flow.status,
            value=flow.value,
            undone=flow.undone,
        )
        await self._steer(k, name, handle)

    async def _steer(self, k: int, name: str, handle: Any) -> None:
        """Signals, pauses and cancels."""
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        if name == "signalled":
            await self._verb(k, "signal", lambda: handle.signal_async("answer", k, signal_id=f"soak-{k}"))
        elif name == "cancelled":
            await self._verb(k, "cancel", handle.cancel_async)
        elif name in ("diamond", "mapped") and self._chance.random() < 0.5:
            await self._verb(k, "pause", handle.pause_async)
            await asyncio.sleep(self._chance.uniform(0.2, 2.0))
            await self._verb(k, "resume", handle.resume_async)

    async def _hostile(self) -> None:
        what = self._chance.choice(list(workload.HOSTILE))
        task, arguments, options = workload.HOSTILE[what]
        try:
            await getattr(self._tasks, task).with_options(**options).send_async(*arguments)
        except (TaskSendError, ConfigurationError, UsageError, TypeError) as error:
            note_send(k=0, kind="hostile", phase="refused", what=what, error=type(error).__name__)
        except Exception as error:
            note_send(k=0, kind="hostile", phase="unexpected", what=what, error=repr(error)[:300])
        else:
            note_send(k=0, kind="hostile", phase="unexpected", what=what, error="it was taken")


async def main(given: dict[str, Any]) -> None:
    await Producer(given).run()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
