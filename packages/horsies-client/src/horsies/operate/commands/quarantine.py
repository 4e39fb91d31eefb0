"""`horsies quarantine`: tasks that crashed as often as the `max_crashes` of their policy allows."""

from collections.abc import Sequence

from horsies.operate.broker import PostgresBroker
from horsies.operate.commands._common import OK, Command, Desk, add_confirmation
from horsies.operate.commands._print import complain, say
from horsies.operate.commands._task_actions import Act, Left, Purge, Retry, act
from horsies.operate.commands._task_filter import add_selection, chosen_filter, searched
from horsies.operate.commands.tasks import PAGE, cursor, say_tasks
from horsies.operate.filters import TaskFilter
from horsies.operate.quarantine import CRASH_LIMIT, in_quarantine
from horsies.operate.views import TaskState


class _Quarantined(Act):
    """The part that both verbs share: only tasks in quarantine."""

    filters = "--task or --queue; --all for every one"

    def scope(self, filter: TaskFilter) -> TaskFilter:
        return in_quarantine(filter)

    def why_not(self, state: TaskState) -> str | None:
        if state.error_code != CRASH_LIMIT:
            ended = f" with {state.error_code}" if state.error_code else ""
            return f"it is not in quarantine: it is {state.status}{ended}"
        return super().why_not(state)

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        states = await broker.get_task_states(ids)
        left = {one: why for one, state in states.items() if (why := self.why_not(state)) is not None}
        done, refused = await super().on_ids(broker, [one for one in ids if one not in left])
        return done, left | refused


class Release(_Quarantined, Retry):
    verb = "release"
    past = "released"


class PurgeQuarantined(_Quarantined, Purge):
    pass


def build() -> Command:
    command = Command(
        "quarantine", "Tasks that crashed as often as the max_crashes of their policy allows (FAILED, CRASH_LIMIT)."
    )
    listing = command.add("list", "list them, the last ended first; `horsies tasks show` says how each crashed", _list)
    add_selection(listing, ids=False, ends=False)
    listing.add_argument("--after", type=cursor, metavar="CURSOR", help="go on where a page ended, as it was printed")
    for how, about in (
        (Release, "run them again under their ids, with their crashes counted anew"),
        (PurgeQuarantined, "delete them and their attempts; never one of a workflow that has not ended"),
    ):
        verb = command.add(how.verb, about, lambda desk, how=how: act(desk, how()))
        add_selection(verb, ends=False)
        verb.add_argument("--all", action="store_true", help="every task in quarantine")
        add_confirmation(verb, "tasks match")
    return command


async def _list(desk: Desk) -> int:
    options, filter = desk.options, await chosen_filter(desk)
    page = await desk.reader.quarantine.list(filter, options.limit or PAGE, options.after)
    document = {"tasks": page.tasks, "next": str(page.next) if page.next else None, "ended_within": filter.window}
    if not desk.has_said(document, page.tasks, "no task is in quarantine"):
        say_tasks(page.tasks)
        if page.next:
            say(f"\nthere may be more: --after {page.next}")
    if not (options.json or page.next) and (told := searched(filter)) is not None:
        complain(told)
    return OK
