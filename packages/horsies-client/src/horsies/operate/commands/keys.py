"""`horsies keys [list]`, `horsies keys release TASK KEY`: the unique keys that are taken."""

from horsies.operate.commands._common import OK, Command, Desk, at_least_one
from horsies.operate.commands._print import one_line, say, say_table
from horsies.operate.unique_keys import MOST


def build() -> Command:
    command = Command(
        "keys", "The unique keys that are taken: which task holds them, and until when; free one.", default="list"
    )
    listing = command.add("list", "list the keys that are taken (this is what `keys` alone does)", _list)
    listing.add_argument("--task", metavar="NAME", help="only those of the task with this name")
    listing.add_argument("--key", metavar="KEY", help="only this one")
    listing.add_argument("--limit", type=at_least_one, default=100, metavar="N", help="at most so many (default: 100)")
    about = "end the time of a key's unique_for: the next send of the key is a task again"
    release = command.add("release", about, _release)
    release.add_argument("task", metavar="TASK", help="the name of the task")
    release.add_argument("key", metavar="KEY", help="the unique key")
    return command


async def _list(desk: Desk) -> int:
    options = desk.options
    limit = min(options.limit, MOST)
    # One more than is shown tells whether there are more; at the most that a list can have, a full one may be cut.
    found = await desk.reader.unique_keys.list(options.task, options.key, min(limit + 1, MOST))
    has_more = len(found) > limit or len(found) == MOST
    found = found[:limit]
    if not desk.has_said({"keys": found, "has_more": has_more}, found, "no unique key is taken"):
        say_table(
            ["TASK", "KEY", "UNTIL", "HELD BY", "STATUS", "SINCE", "REPLACED"],
            [
                (
                    one.task_name, one.key, one.until or "it ends", one.task_id, one.status or "pruned", one.since,
                    one.replaced or None,
                )
                for one in found
            ],
            right=("REPLACED",),
        )  # fmt: skip
        if has_more:
            say(f"\n{_more(limit)}")
    return OK


def _more(limit: int) -> str:
    narrower = "--task and --key choose some of them"
    return f"there may be more: {narrower}" if limit == MOST else f"there are more: --limit shows more, {narrower}"


async def _release(desk: Desk) -> int:
    task, key = desk.options.task, desk.options.key
    result = await desk.broker.unique_keys.release(task, key)
    shown = f"key {one_line(key)} of task {one_line(task)}"
    done = [f"released {shown}"] if result.was_kept else []
    problems = [
        f"{shown} is still held: task {holder} has not ended; cancel it (horsies tasks cancel {holder}) or let it end"
        for holder in result.holders
    ]
    if not done and not problems:
        problems = [f"{shown} is not taken"]
    return desk.report(done, problems, task=task, key=key, released=result.was_kept, holders=result.holders)
