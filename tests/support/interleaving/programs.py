"""What meets in a schedule: workers, reapers, operators and user code, each as the statements that it makes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from horsies._pg.statements import load
from horsies.completing import Claimant
from horsies.operate.filters import TaskFilter
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import OutcomeKind
from horsies_worker.database.queries import EXPIRED_RESULT, Hint, NextRequest
from tests.support.hands import Hands, keys_of
from tests.support.interleaving.plays import OWNER, Play, Wrong
from tests.support.interleaving.schedule import Actor

Program = Callable[[Play, Actor], Awaitable[None]]
STALE: Final = timedelta(minutes=5)
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


# -- workers ---------------------------------------------------------------------------------------------


async def claim(play: Play, actor: Actor, *, worker: str = "w2", end: str = "ok") -> None:
    """Claim what is ready, run it, and write the end."""
    hands = play.hands(actor, worker)
    rows = await hands.claim(discover=[play.queue])
    await _run(play, hands, rows, worker, end)


async def claim_next(play: Play, actor: Actor, *, worker: str = "w2") -> None:
    hands = play.hands(actor, worker)
    hint = Hint(play.queue, 100, _LONG_AGO)
    rows = await hands.queries.claim_next(actor, NextRequest(hint, 10, None, ["add"]), pooled=False)
    await _run(play, hands, rows, worker, "ok")


async def claim_capped(play: Play, actor: Actor, *, worker: str = "w2") -> None:
    """Under a cap of one task in the queue."""
    hands = play.hands(actor, worker)
    rows = await hands.claim(discover=[play.queue], queue_caps={play.queue: 1})
    if len(rows) > 1:
        raise Wrong(f"{len(rows)} tasks were claimed under a cap of one")
    await _run(play, hands, rows, worker, "ok")


async def prefetch(play: Play, actor: Actor, *, worker: str = "w2") -> None:
    """Claim ahead of a free place, start, run."""
    hands = play.hands(actor, worker)
    rows = await hands.claim(discover=[play.queue], room_sync=0, prefetch=10)
    _check_pause(play, actor, rows)
    await _start(play, hands, [row for row in rows if row["status"] == "CLAIMED"], worker)


async def start(play: Play, actor: Actor) -> None:
    """The first owner starts what it has claimed."""
    await _start(play, play.hands(actor), play.rows, OWNER)


async def finish(play: Play, actor: Actor, *, end: str = "ok") -> None:
    """The first owner ends what it runs."""
    hands = play.hands(actor)
    for row in play.rows:
        await _finish(play, hands, row, OWNER, end, play.ends[row["id"]].outcome.process_name)


async def finish_batch(play: Play, actor: Actor) -> None:
    """The same for all in one statement."""
    hands = play.hands(actor)
    left = [play.ends[row["id"]] for row in play.rows]
    while left:
        values = await hands.finalize(left)
        for end in left:
            if end.task_id in values:
                play.accept(end.task_id, end.attempt, end.outcome.process_name, values[end.task_id])
                play.over(end.task_id, OWNER)
        left = [end for end in left if end.task_id not in values]
        if left:
            held = await hands.queries.read_owned(actor, [(end.task_id, end.generation) for end in left])
            left = [end for end in left if held.get(end.task_id) == "RUNNING"]
            actor.after_others()


async def stage(play: Play, actor: Actor) -> None:
    """The session of the heartbeats keeps a result that could not be written yet."""
    hands = play.hands(actor)
    staged = await hands.queries.stage(actor, list(play.ends.values()))
    play.staged += [(one, play.ends[one].outcome.process_name) for one in staged]


async def beat(play: Play, actor: Actor) -> None:
    hands = play.hands(actor)
    beats = [(row["id"], row["claim_generation"], "runner", 4712, "child-1") for row in play.rows]
    await hands.queries.beat(actor, beats)
    await hands.queries.renew_claims(actor, keys_of(play.rows), 60_000)


async def hand_back(play: Play, actor: Actor) -> None:
    """The first owner stops before user code has begun."""
    hands = play.hands(actor)
    for task in [task for task, _ in play.runs]:
        play.over(task, OWNER)
    play.runs.clear()
    left = list(play.rows)
    while left:
        moved = await hands.hand_back(left)
        left = [row for row in left if row["id"] not in moved]
        if left:
            held = await hands.queries.read_owned(actor, keys_of(left))
            left = [row for row in left if row["id"] in held]
            actor.after_others()


async def complete(play: Play, actor: Actor, *, commits: bool = True) -> None:
    """User code ends its own task inside its transaction; its worker then looks what became of that."""
    statements = load("horsies._pg", "completing.sql", None)
    row = play.rows[0]
    task_id, token = row["id"], play.ends[row["id"]].outcome.process_name
    claimant = Claimant(play.worker(OWNER), f"key-{OWNER}", 0.0)
    end = play.ends[task_id]
    outcome = ""
    try:
        async with actor.transaction():
            number = await actor.real.fetchval(statements["transaction_id"].sql)
            found = await actor.fetch(
                statements["complete_in_transaction"].sql, task_id, play.worker(OWNER), 1, claimant.token(task_id, 1),
                number, end.result, end.started, end.finished, 4712, token, False,
            )  # fmt: skip
            outcome = found[0]["outcome"]
            if outcome != "COMPLETED" or not commits:
                raise _Undone
    except _Undone:
        if outcome == "COMPLETED":
            await _finish(play, play.hands(actor), row, OWNER, "error", token)
        play.over(task_id, OWNER)
        return
    play.accept(task_id, 1, token, "COMPLETED")
    play.over(task_id, OWNER)
    hands = play.hands(actor)
    if await hands.finalize([end]):
        raise Wrong("an end was written after complete() had committed")
    if not await hands.queries.find_completed(actor, [(task_id, 1)]) and not play.sees_deletion:
        raise Wrong("the worker does not find the end that complete() has committed")


class _Undone(Exception):
    """User code rolls back."""


async def _start(play: Play, hands: Hands, rows: Sequence[Mapping[str, Any]], worker: str) -> None:
    for row in rows:
        status = None
        while status is None:
            status = (await hands.start([row])).get(row["id"])
            if status is None:
                held = await hands.queries.read_owned(hands.connection, keys_of([row]))
                if held.get(row["id"]) != "CLAIMED":
                    break
                hands.connection.after_others()
        if status == "RUNNING":
            token = play.new_token()
            play.began(row["id"], worker, token)
            await _finish(play, hands, row, worker, "ok", token)


def _check_pause(play: Play, actor: Actor, rows: Sequence[Any]) -> None:
    if play.paused_at is not None and actor.began_at > play.paused_at and rows:
        raise Wrong("a claim took tasks of a queue that was paused before it began")


async def _run(play: Play, hands: Hands, rows: Sequence[Mapping[str, Any]], worker: str, end: str) -> None:
    _check_pause(play, hands.connection, rows)
    for row in rows:
        if row["status"] != "RUNNING":
            continue
        token = play.new_token()
        play.began(row["id"], worker, token)
        await _finish(play, hands, row, worker, end, token)


async def _finish(play: Play, hands: Hands, row: Mapping[str, Any], worker: str, end: str, token: str) -> None:
    transition = {
        "ok": lambda: play.ends[row["id"]] if row in play.rows and row["id"] in play.ends else play.end(row, token),
        "error": lambda: play.end(row, token, TaskStatus.FAILED),
        "retry": lambda: play.end(row, token, TaskStatus.PENDING, retry_delay_ms=0),
        "snooze": lambda: play.end(
            row, token, TaskStatus.PENDING, recorded=None, kind=OutcomeKind.SNOOZED, retry_delay_ms=0
        ),
        "crash": lambda: play.end(
            row, token, TaskStatus.PENDING, recorded=AttemptOutcome.WORKER_FAILURE, error_code="WORKER_CRASHED",
            retry_delay_ms=0,
        ),
    }[end]()  # fmt: skip
    assert transition is not None
    while True:
        written = await hands.finalize([transition])
        if row["id"] in written:
            is_counted = transition.recorded is not AttemptOutcome.WORKER_FAILURE
            if is_counted:
                status = "SNOOZED" if transition.recorded is None else written[row["id"]]
                play.accept(row["id"], transition.attempt, token, status)
            break
        held = await hands.queries.read_owned(hands.connection, keys_of([row]))
        if held.get(row["id"]) != "RUNNING":
            break  # CLAIM_LOST
        hands.connection.after_others()
    play.over(row["id"], worker)


# -- recovery --------------------------------------------------------------------------------------------


async def reap(play: Play, actor: Actor) -> None:
    """A sweep of the reaper."""
    hands = play.hands(actor, "reaper")
    queries = hands.queries
    async with actor.transaction():
        await actor.fetch(queries.sql("expire_overdue"), EXPIRED_RESULT, 100)
        play.give_up(await actor.fetch(queries.sql("requeue_silent_claims"), STALE, 100))
        stale = await actor.fetch(queries.sql("stale_running"), STALE, STALE, 100)
        play.give_up(stale)
        await play.recovery(queries).end(actor, stale, "no sign of life")


async def declare_dead(play: Play, actor: Actor) -> None:
    """Another worker declares the first owner dead, and recovers its tasks."""
    hands = play.hands(actor, "judge")
    queries, dead = hands.queries, play.worker(OWNER)
    if await actor.fetchval(queries.sql("declare_dead"), dead, 1, hands.identity.worker_id) is None:
        return
    async with actor.transaction():
        play.give_up(await actor.fetch(queries.sql("requeue_dead_claims"), dead, 100))
        running = await actor.fetch(queries.sql("dead_running"), dead, 100)
        play.give_up(running)
        await play.recovery(queries).end(actor, running, "its worker died")
        await actor.fetchval(queries.sql("mark_recovered"), dead, True)


async def fail_stale(play: Play, actor: Actor) -> None:
    """An operator ends what is silent, by hand."""
    sql = load("horsies._pg", "recover.sql", None)["fail_stale_running"].sql
    error = '{"err":{"error_code":"WORKER_CRASHED","message":"m","data":null}}'
    play.give_up(await actor.fetch(sql, STALE, error, "silent", play.ids))


async def requeue_stale(play: Play, actor: Actor) -> None:
    sql = load("horsies._pg", "recover.sql", None)["requeue_stale_claimed"].sql
    play.give_up(await actor.fetch(sql, STALE, play.ids))


async def requeue(play: Play, actor: Actor) -> None:
    """An operator takes claimed tasks from their worker."""
    play.give_up(await actor.fetch(load("horsies._pg", "control.sql", None)["requeue_claimed_batch"].sql, play.ids))


# -- operators and producers -----------------------------------------------------------------------------


async def cancel(play: Play, actor: Actor) -> None:
    play.cancel(await _cancel(play, actor))


async def _cancel(play: Play, actor: Actor) -> Sequence[Mapping[str, Any]]:
    return await actor.fetch(load("horsies._pg", "control.sql", None)["cancel_tasks"].sql, play.ids)


async def cancel_in_transaction(play: Play, actor: Actor, *, commits: bool = True) -> None:
    """A producer cancels in a transaction of its own."""
    try:
        async with actor.transaction():
            rows = await _cancel(play, actor)
            if not commits:
                raise _Undone
    except _Undone:
        return
    play.cancel(rows)


async def retry(play: Play, actor: Actor, *, from_task: int = 0) -> None:
    """An operator runs ended tasks again."""
    sql = _mutated(play, "retry_batch", load("horsies._pg", "control.sql", None)["retry_batch"].sql)
    play.cancelled -= {row["id"] for row in await actor.fetch(sql, play.ids[from_task:], None)}


async def hold(play: Play, actor: Actor) -> None:
    """A foreign transaction locks the first task for a while."""
    async with actor.transaction():
        await actor.fetch("SELECT id FROM horsies_tasks WHERE id = $1 FOR UPDATE", play.ids[0])


async def prune(play: Play, actor: Actor) -> None:
    play.sees_deletion = True
    hands = play.hands(actor, "pruner")
    await actor.fetch(hands.queries.sql("prune_tasks"), timedelta(days=1), _LONG_AGO, 100)


async def purge(play: Play, actor: Actor) -> None:
    """An operator deletes ended tasks."""
    play.sees_deletion = True
    chosen = TaskFilter(ids=play.ids, statuses=[TaskStatus.FAILED, TaskStatus.COMPLETED])
    name, *values = chosen.call("purge_batch", chosen.ended)
    await actor.fetch(load("horsies._pg", "operate.sql", None)[name].sql, *values, None, 100)


async def pause(play: Play, actor: Actor) -> None:
    await actor.fetchval(load("horsies._pg", "control.sql", None)["pause_queue"].sql, play.queue)
    play.paused_at = actor.now


async def resume(play: Play, actor: Actor) -> None:
    await actor.fetchrow(load("horsies._pg", "control.sql", None)["resume_queue"].sql, play.queue)
    play.paused_at = None


def _mutated(play: Play, name: str, sql: str) -> str:
    for old, new in play.mutants.get(name, ()):
        assert old in sql, f"{name} has no {old!r}"
        sql = sql.replace(old, new)
    return sql


PROGRAMS: Final[Mapping[str, Program]] = {
    "claim": claim, "claim3": partial(claim, worker="w3"), "claim_again": partial(claim, worker=OWNER),
    "claim_retry": partial(claim, end="retry"), "claim_error": partial(claim, end="error"),
    "claim_snooze": partial(claim, end="snooze"), "claim_next": claim_next,
    "claim_capped": claim_capped, "claim_capped3": partial(claim_capped, worker="w3"),
    "prefetch": prefetch, "prefetch3": partial(prefetch, worker="w3"), "start": start,
    "finish": finish, "finish_batch": finish_batch, "finish_retry": partial(finish, end="retry"),
    "finish_error": partial(finish, end="error"), "finish_snooze": partial(finish, end="snooze"),
    "finish_crash": partial(finish, end="crash"),
    "stage": stage, "beat": beat, "hand_back": hand_back,
    "complete": complete, "complete_undone": partial(complete, commits=False),
    "reap": reap, "reap2": reap, "dead": declare_dead, "fail_stale": fail_stale, "requeue_stale": requeue_stale,
    "requeue": requeue, "cancel": cancel, "cancel_tx": cancel_in_transaction,
    "cancel_undone": partial(cancel_in_transaction, commits=False), "retry": retry, "retry2": retry,
    "retry_last": partial(retry, from_task=1), "hold": hold,
    "prune": prune, "purge": purge, "pause": pause, "resume": resume,
}  # fmt: skip
