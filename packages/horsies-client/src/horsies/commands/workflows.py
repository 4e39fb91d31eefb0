"""`horsies workflows [list]`, `show ID`, `pause|resume|cancel|retry ID...`."""

import argparse
from collections.abc import Sequence

from horsies._operations import NEEDS_OPERATOR, is_denied
from horsies._text import error_in
from horsies.commands._common import OK, PROBLEMS, Desk, Verbs, at_least_one, parser, run
from horsies.commands._print import complain, one_line, say, say_json, say_table
from horsies.errors import BrokerError, HorsiesError
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.control import WorkflowControl
from horsies.workflow.diagram import draw

_VERBS = {
    "pause": ("paused", "it is not running", "start nothing more of these runs; what runs goes on"),
    "resume": ("resumed", "it is not paused", "go on with paused runs"),
    "cancel": ("cancelled", "it has ended", "end these runs: what runs is asked to stop"),
    "retry": ("retried", "there is nothing to retry", "run again what failed, and what was skipped for it"),
}
"""What each does to a run, and why it may not."""


def main(argv: Sequence[str]) -> int:
    arguments = list(argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "list")
    options = _parser().parse_args(arguments)
    work = {"list": _list, "show": _show}.get(options.verb, _act)
    return run(options, lambda desk: work(desk, options))


def _parser() -> argparse.ArgumentParser:
    found = parser("workflows", "Runs of workflows: list, show, pause, resume, cancel and retry them.")
    verbs = Verbs(found, "list|show|pause|resume|cancel|retry")
    listed = verbs.add("list", "list runs, live ones first (this is what `workflows` alone does)")
    listed.add_argument("--status", choices=[status.value for status in WorkflowStatus], help="only runs in this state")
    listed.add_argument("--limit", type=at_least_one, default=50, help="how many (default 50)")
    show = verbs.add("show", "draw a run with the state of every node")
    show.add_argument("id", metavar="ID")
    show.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart, for documents")
    for name, (_, _, text) in _VERBS.items():
        verb = verbs.add(name, text)
        verb.add_argument("ids", nargs="+", metavar="ID")
        if name == "retry":
            verb.add_argument("--node", help="only this failed node, and what was skipped for it")
    return found


async def _list(desk: Desk, options: argparse.Namespace) -> int:
    status = None if options.status is None else WorkflowStatus(options.status)
    runs = await desk.broker.workflows.list(status, options.limit)
    if options.json:
        say_json({"workflows": runs})
        return OK
    if not runs:
        say("no run matches" if status is not None else "no workflow was ever started")
        return OK
    say_table(
        ["ID", "NAME", "STATUS", "NODES LEFT", "STARTED", "ENDED"],
        [(one.id, one.name, one.status, one.nodes_left, one.started_at, one.completed_at) for one in runs],
        right=("NODES LEFT",),
    )
    return OK


async def _show(desk: Desk, options: argparse.Namespace) -> int:
    control = desk.broker.workflows
    info = await control.info(options.id)
    if info is None:
        complain(f"there is no workflow {options.id}")
        return PROBLEMS
    nodes = await control.nodes(options.id)
    paused = [] if info.status.is_terminal else await control.paused(options.id)
    if options.json:
        say_json({"workflow": info, "nodes": nodes, "paused": paused})
        return OK
    say(draw(info, nodes, "mermaid" if options.mermaid else "text"))
    if paused and not options.mermaid:
        say("")
        for one in paused:
            say(f"{one}")
        say(f"`horsies workflows retry {info.id}` runs again what failed there, `resume` goes on without it")
    failed = [node.node_id for node in nodes if node.status is NodeStatus.FAILED]
    if (failed or info.status is WorkflowStatus.FAILED) and not options.mermaid:
        try:
            errors = await _errors(control, options.id, failed[:5])
        except BrokerError as error:
            if not is_denied(error):
                raise
            say(f"\nerrors: {NEEDS_OPERATOR}")
        else:
            for node_id, text in errors.items():
                say(f"\n{one_line(node_id)}: {text}")
    return OK


async def _errors(control: WorkflowControl, workflow_id: str, node_ids: Sequence[str]) -> dict[str, str]:
    """What the run and these nodes say of their ends."""
    texts = {"the run": own} if (own := await control.error(workflow_id)) else {}
    found: dict[str, str] = {}
    for node_id, text in {**texts, **await control.results(workflow_id, node_ids)}.items():
        error = error_in(text)
        if error is None:
            found[node_id] = (text or "no error is stored")[:500]
            continue
        found[node_id] = f"{error.code}: {error.message}" + (f"\n  {error.raised}" if error.raised else "")
    return found


async def _act(desk: Desk, options: argparse.Namespace) -> int:
    control = desk.broker.workflows
    past, why_not, _ = _VERBS[options.verb]
    done: list[str] = []
    left: dict[str, str] = {}
    for workflow_id in dict.fromkeys(options.ids):
        try:
            if await _done(control, options, workflow_id):
                done.append(workflow_id)
            else:
                known = await control.info(workflow_id)
                left[workflow_id] = "there is no such workflow" if known is None else f"{why_not} ({known.status})"
        except HorsiesError as error:
            left[workflow_id] = str(error)
    if options.json:
        say_json({"verb": options.verb, "done": done, "not_done": [{"id": k, "why": w} for k, w in left.items()]})
    else:
        for workflow_id in done:
            say(f"{past} {workflow_id}")
        for workflow_id, why in left.items():
            complain(f"workflow {workflow_id} was not {past}: {why}")
    return PROBLEMS if left else OK


async def _done(control: WorkflowControl, options: argparse.Namespace, workflow_id: str) -> bool:
    match options.verb:
        case "pause":
            return await control.pause(workflow_id)
        case "resume":
            return await control.resume(workflow_id)
        case "cancel":
            return await control.cancel(workflow_id)
        case _:
            return await control.retry(workflow_id, options.node)
