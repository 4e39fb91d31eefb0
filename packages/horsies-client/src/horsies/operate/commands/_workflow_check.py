"""`horsies workflows check APP`: the work, and how its result is printed."""

from typing import Final

from horsies.operate.commands._common import OK, PROBLEMS, Command, Desk, at_least_one
from horsies.operate.commands._print import one_line, plural, say, say_json, short
from horsies.operate.workflow_check import MAX_RUNS, WorkflowCheck, WorkflowProblem

_SHOWN: Final = 5
"""How many nodes of a problem are printed; `--json` has more."""
_WHAT: Final = 400
"""The length of a problem's sentence, which may repeat a stored value."""


def add_check(command: Command) -> None:
    about = "before a deploy: live runs that need a task or a signature that this code no longer has"
    check = command.add("check", about, _check, app="APP")
    check.add_argument(
        "--limit", type=at_least_one, default=MAX_RUNS, help=f"how many runs, the oldest first (default {MAX_RUNS})"
    )


async def _check(desk: Desk) -> int:
    app = desk.given_app
    assert app is not None  # APP is a required argument
    found = await desk.broker.check_workflows(app.registry, app.workflows.fingerprints(), desk.options.limit)
    if desk.options.json:
        say_json(found)
    else:
        for problem in found.problems:
            _say_problem(problem)
        say(_summary(found))
    return OK if found.is_fine else PROBLEMS


def _say_problem(problem: WorkflowProblem) -> None:
    say(short(one_line(problem.what), _WHAT))
    say(f"  {plural(len(problem.workflow_ids), 'run')}, {plural(problem.nodes, 'node')}:")
    for place in problem.places[:_SHOWN]:
        release = f", release {place.release}" if place.release else ""
        say(f"    {place.workflow_id}  {one_line(f'{place.node} of {place.workflow_name}{release}')}")
    if problem.nodes > _SHOWN:
        say(f"    and {problem.nodes - _SHOWN} more; --json lists them")
    say(f"  fix: {problem.fix}\n")


def _summary(found: WorkflowCheck) -> str:
    if not found.runs:
        return "there is no live run"
    same = f", {found.unchanged} of them with an unchanged definition" if found.unchanged else ""
    verdict = "this code can go on with them" if found.is_fine else plural(len(found.problems), "problem")
    more = f"; there are more than {found.runs} live runs, and the newer ones were not looked at: raise --limit"
    return f"{plural(found.runs, 'live run')} checked{same}: {verdict}{'' if found.is_complete else more}"
