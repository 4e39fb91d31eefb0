"""`horsies workflows [list]`, `show`, `check`, `waiting`, `signal`, `pause`, `resume`, `cancel` and `retry`."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from horsies._text import error_in
from horsies.errors import BrokerError, HorsiesError, UsageError
from horsies.operate.commands._common import OK, PROBLEMS, USAGE, Command, Desk, add_decode, at_least_one, row_id
from horsies.operate.commands._print import complain, one_line, say, say_json, say_table
from horsies.operate.commands._workflow_check import add_check
from horsies.operate.encoded import shown_result
from horsies.operate.session import NEEDS_OPERATOR, is_denied
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.batch_reading import BATCH
from horsies.workflow.control import WorkflowControl
from horsies.workflow.diagram import draw
from horsies.workflow.info import WorkflowInfo
from horsies.workflow.retrying import why_not

_VERBS: Final[dict[str, tuple[Callable[..., Awaitable[bool]], str, str, str]]] = {
    "pause": (
        WorkflowControl.pause, "paused", "it is not running", "start nothing more of these runs; what runs goes on",
    ),
    "resume": (WorkflowControl.resume, "resumed", "it is not paused", "go on with paused runs"),
    "cancel": (WorkflowControl.cancel, "cancelled", "it has ended", "end these runs: what runs is asked to stop"),
    "retry": (
        WorkflowControl.retry, "retried", "there is nothing to retry",
        "run again what failed, and what was skipped for it",
    ),
}  # fmt: skip
"""For each verb: its work, its past tense, the reason when it does nothing, and its help."""


_REFUSED: Final = {
    "WORKFLOW_ENDED": "the run has ended",
    "WORKFLOW_NOT_FOUND": "there is no such run",
    "NODE_NOT_FOUND": "there is no such path",
    "NOT_STARTED": "the workflow at the path has not started",
}
"""Why a signal was not sent."""
_MORE: Final = "\nthere are more: --limit shows more"
_T = TypeVar("_T")


def build() -> Command:
    command = Command(
        "workflows", "Runs of workflows: list, show, check, signal, pause, resume, cancel, retry them.", default="list"
    )
    listed = command.add("list", "list runs, live ones first (this is what `workflows` alone does)", _list)
    listed.add_argument(
        "--status", action="append", type=_status, metavar="STATUS",
        choices=[status.value for status in WorkflowStatus],
        help=f"only runs in this state: one of {', '.join(WorkflowStatus)}; given twice it means either",
    )  # fmt: skip
    listed.add_argument("--limit", type=at_least_one, default=50, help="how many (default 50)")
    show = command.add("show", "draw a run with the state of every node", _show)
    show.add_argument("id", metavar="ID", type=row_id, help="the run's id")
    show.add_argument("--path", help="the workflow inside the run at this path, such as outer/inner or orders/item[3]")
    add_decode(show)
    show.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart, for documents")
    add_check(command)
    waiting = command.add("waiting", "list nodes that wait for a signal, the longest wait first", _waiting)
    waiting.add_argument("--signal", metavar="NAME", help="only those that wait for this signal")
    waiting.add_argument("--limit", type=at_least_one, default=50, help="how many (default 50)")
    signal = command.add("signal", "send a signal to a run: an approval, for example", _signal)
    signal.add_argument("id", metavar="ID", type=row_id, help="the run's id")
    signal.add_argument("name", metavar="NAME", help="the name of the signal")
    signal.add_argument("value", metavar="JSON", nargs="?", default="null", help="its value as JSON (default null)")
    signal.add_argument("--signal-id", help="an id of your own: a second signal with it is ignored")
    signal.add_argument("--path", help="to the workflow inside the run at this path")
    for name, (*_, about) in _VERBS.items():
        verb = command.add(name, about, _act)
        verb.add_argument("ids", nargs="+", metavar="ID", type=row_id, help="the run's id")
        if name == "retry":
            verb.add_argument("--node", help="only this failed node (or path), and what was skipped for it")
    return command


def _status(text: str) -> str:
    """A state in upper or lower case."""
    return text.upper() if text.upper() in list(WorkflowStatus) else text


async def _list(desk: Desk) -> int:
    limit, given = desk.options.limit, desk.options.status
    statuses = None if given is None else frozenset(map(WorkflowStatus, given))
    runs, has_more = _page(await desk.reader.workflows.list(statuses, limit + 1), limit)
    empty = "no run matches" if statuses is not None else "no workflow was ever started"
    if desk.has_said({"workflows": runs, "has_more": has_more}, runs, empty):
        return OK
    say_table(
        ["ID", "NAME", "STATUS", "NODES LEFT", "STARTED", "ENDED"],
        [(one.id, one.name, one.status, one.nodes_left, one.started_at, one.completed_at) for one in runs],
        right=("NODES LEFT",),
    )
    if has_more:
        say(_MORE)
    return OK


def _page(found: list[_T], limit: int) -> tuple[list[_T], bool]:
    """The rows that are shown, and whether there are more: one more than the limit was asked for."""
    return found[:limit], len(found) > limit


async def _show(desk: Desk) -> int:
    control, options = desk.broker.workflows, desk.options
    info = await control.info(options.id)
    if info is None:
        complain(f"there is no workflow {options.id}")
        return PROBLEMS
    if options.path is not None:
        try:
            options.id = await control.run_at(options.id, options.path)
        except UsageError as error:
            complain(str(error))
            return PROBLEMS
        info = await control.info(options.id) or info
    if info.definition_key == BATCH:
        return await _show_batch(desk, info)
    nodes = await control.nodes(options.id)
    paused = [] if info.status.is_terminal else await control.paused(options.id)
    if options.json:
        say_json({"workflow": info, "nodes": nodes, "paused": paused})
        return OK
    say(draw(info, nodes, "mermaid" if options.mermaid else "text"))
    if options.mermaid:
        return OK
    _say_facts(info)
    if paused:
        say("")
        for one in paused:
            say(f"{one}")
        say(f"`horsies workflows retry {info.id}` runs again what failed there, `resume` goes on without it")
    await _say_errors(desk, info, [node.node_id for node in nodes if node.status is NodeStatus.FAILED])
    return OK


async def _waiting(desk: Desk) -> int:
    name, limit = desk.options.signal, desk.options.limit
    nodes, has_more = _page(await desk.reader.workflows.waiting(name, limit + 1), limit)
    empty = "no node waits for a signal" if name is None else f"no node waits for the signal {name!r}"
    if desk.has_said({"waiting": nodes, "has_more": has_more}, nodes, empty):
        return OK
    say_table(
        ["WORKFLOW ID", "WORKFLOW", "NODE", "SIGNAL", "SINCE", "UNTIL"],
        [
            (one.workflow_id, one.workflow_name, one.node_id, one.signal_name, one.started_at, one.wake_at)
            for one in nodes
        ],
    )
    if has_more:
        say(_MORE)
    return OK


async def _signal(desk: Desk) -> int:
    control, options = desk.broker.workflows, desk.options
    try:
        json.loads(options.value)
    except ValueError as error:
        complain(f"{options.value!r:.80} is not JSON ({error}); nothing was sent. A text has quotes: '\"yes\"'")
        return USAGE
    values = {"signal_id": options.signal_id, "path": options.path}
    told = await control.signal(options.id, options.name, options.value, **values)
    if options.json:
        say_json({"workflow_id": options.id, "name": options.name, "outcome": told})
        return OK if told in ("DELIVERED", "REPEATED") else PROBLEMS
    target = f"workflow {options.id}" + (f", {options.path}" if options.path else "")
    if told == "DELIVERED":
        run = await control.run_at(options.id, options.path)
        waits = [node.signal_name for node in await control.nodes(run) if node.kind == "signal"]
        kept = "" if options.name in waits else f"; no node of it waits for {options.name!r}, it is kept until one does"
        say(f"sent {options.name!r} to {target}{kept}")
        return OK
    if told == "REPEATED":
        say(f"a signal with the id {options.signal_id!r} was sent before; this one is ignored")
        return OK
    complain(f"{target}: {_REFUSED[told]}; nothing was sent")
    return PROBLEMS


async def _show_batch(desk: Desk, info: WorkflowInfo) -> int:
    """A batch may have 100,000 nodes, which differ in their arguments alone: tell how many are in which state."""
    progress = await desk.broker.batches.progress(info.id)
    then = await desk.broker.batches.state_of_then(info.id)
    if desk.options.json:
        say_json({"workflow": info, "batch": progress, "then": then})
        return OK
    if desk.options.mermaid:
        edge = "" if then is None else f'\n    members --> then["{one_line(then.task_name)}<br/>{then.status}"]'
        say(f'flowchart TD\n    members["{progress}"]{edge}')
        return OK
    say(f"batch {one_line(info.name)} {info.id}: {info.status}")
    say(f"{progress}")
    if then is not None:
        say(f"then {one_line(then.task_name)}: {then.status}")
    _say_facts(info)
    await _say_errors(desk, info, await desk.broker.batches.failures(info.id, 5))
    return OK


def _say_facts(info: WorkflowInfo) -> None:
    if info.release is not None:
        say(f"\nrelease  {one_line(info.release)}")
    if info.metadata:
        say(f"\nmetadata  {one_line(json.dumps(info.metadata, ensure_ascii=False))}")


async def _say_errors(desk: Desk, info: WorkflowInfo, failed: Sequence[str]) -> None:
    if not failed and info.status is not WorkflowStatus.FAILED:
        return
    try:
        errors = await _errors(desk, info.id, failed[:5])
    except BrokerError as error:
        if not is_denied(error):
            raise
        say(f"\nerrors: {NEEDS_OPERATOR}")
    else:
        for node_id, text in errors.items():
            say(f"\n{one_line(node_id)}: {text}")


async def _errors(desk: Desk, workflow_id: str, node_ids: Sequence[str]) -> dict[str, str]:
    """The errors of the run and of these nodes."""
    control, envelopes = desk.broker.workflows, desk.given_app.envelopes if desk.given_app and desk.decodes() else None
    texts = {"the run": own} if (own := await control.error(workflow_id)) else {}
    found: dict[str, str] = {}
    for node_id, stored in {**texts, **await control.results(workflow_id, node_ids)}.items():
        text = shown_result(stored, envelopes)
        error = error_in(text)
        if error is None:
            found[node_id] = (text or "no error is stored")[:500]
            continue
        found[node_id] = f"{error.code}: {error.message}" + (f"\n  {error.raised}" if error.raised else "")
    return found


async def _act(desk: Desk) -> int:
    control, options = desk.broker.workflows, desk.options
    act, past, *_ = _VERBS[options.verb]
    node = [options.node] if options.verb == "retry" else []
    done: list[str] = []
    left: dict[str, str] = {}
    ids = list(dict.fromkeys(options.ids))
    with desk.progress(past, "workflow", len(ids)) as progress:
        for workflow_id in ids:
            if progress.is_stopped:
                break
            try:
                if await act(control, workflow_id, *node):
                    done.append(workflow_id)
                    progress.add(1)
                else:
                    left[workflow_id] = await _reason(control, options.verb, workflow_id, *node)
            except HorsiesError as error:
                left[workflow_id] = str(error)
    return desk.report(
        [f"{past} {workflow_id}" for workflow_id in done],
        [f"workflow {workflow_id} was not {past}: {why}" for workflow_id, why in left.items()],
        done=done,
        not_done=[{"id": workflow_id, "why": why} for workflow_id, why in left.items()],
    )


async def _reason(control: WorkflowControl, verb: str, workflow_id: str, node: str | None = None) -> str:
    known = await control.info(workflow_id)
    if known is None:
        return "there is no such workflow"
    if node is not None and (told := why_not(await control.nodes(workflow_id), node)) is not None:
        return told
    return f"{_VERBS[verb][2]} ({known.status})"
