"""Checks of single nodes while a workflow is wired: joins, items of maps, and times."""

from collections.abc import Callable, Iterable, Sequence as AbstractSequence
from datetime import datetime, timedelta
from typing import Any, Final, cast, get_args

from horsies._checks import Checks
from horsies._text import plural
from horsies.codec import TaskCodec
from horsies.codec.errors import type_name
from horsies.codec.fit import fits
from horsies.codec.signature import Parameter
from horsies.errors import HorsiesError
from horsies.options import MAX_DELAY, check_name
from horsies.workflow.nodes import ITEMS, MapNode, Node, TaskNode
from horsies.workflow.waits import SignalNode, WaitNode

JOINS: Final = ("all", "any", "quorum")
Refuse = Callable[[str, str, str], None]
"""(where, why, fix): report a problem."""


def parameters_of(codec: TaskCodec) -> dict[str, Parameter]:
    signature = codec.signature
    return {parameter.name: parameter for parameter in (*signature.positional_or_keyword, *signature.keyword_only)}


def check_join(node: Node[Any], at: str, count: int, takes_bare: bool, refuse: Refuse) -> None:
    options = node.options
    if options.join not in JOINS:
        refuse(at, f"join={options.join!r} is unknown", f"use one of: {', '.join(JOINS)}")
        return
    if not isinstance(cast("object", options.allow_failed_deps), bool):
        refuse(at, f"allow_failed_deps is {options.allow_failed_deps!r:.60}", "give True or False")
    if options.join == "quorum":
        among = plural(count, "dependency", "dependencies")
        if options.min_success is None and count:
            refuse(at, f'join="quorum" needs min_success, how many of its {among} must complete',
                        f"give min_success=1 to {count}")  # fmt: skip
        elif count and (type(options.min_success) is not int or not 1 <= options.min_success <= count):
            why = f"a quorum of {options.min_success!r:.60} among {among} cannot be met"
            refuse(at, why, f"min_success is 1 to {count}")
    elif options.min_success is not None:
        refuse(at, f"min_success has no meaning with join={options.join!r}", 'use join="quorum"')
    if options.join != "all":
        if not count:
            refuse(at, f"join={options.join!r} without any dependency", "let it wait for something")
        if options.allow_failed_deps:
            why = f"allow_failed_deps waits for all, join={options.join!r} does not"
            refuse(at, why, "choose one of the two")
        if takes_bare:
            refuse(
                at,
                f"with join={options.join!r} an upstream may have failed or not ended, there may be no value",
                "take a TaskResult instead of the bare value",
            )


def check_stored(sources: Iterable[object], at: str, refuse: Refuse) -> None:
    """Refuse to use values that are not stored. None is."""
    for node in dict.fromkeys(cast("TaskNode[Any]", one) for one in sources if isinstance(one, TaskNode)):
        definition = node.definition
        if not definition.options.store_result and definition.codec.signature.result not in (None, type(None)):
            why = f"the value of {node!r} is used, and its task has store_result=False: the value is not stored"
            refuse(at, why, f"remove store_result=False from task {definition.name!r}, or do not use its value")


def check_items(node: MapNode[Any, Any], at: str, refuse: Refuse) -> None:
    """The list that a map goes through, and the parameter that takes its items."""
    if node.item_parameter is None:
        why = f"the item is given by name, and task {node.task.name!r} has no first parameter that takes a name"
        refuse(at, why, "let the task begin with a parameter for the item, such as order_id: int")
        return
    if node.item_parameter in node.kwargs:
        refuse(at, f"parameter {node.item_parameter!r} takes the item, and is given as well", "leave it out")
    if node.surplus > 0:
        refuse(at, f"{node.surplus} positional arguments too many", f"task {node.task.name!r} takes fewer")
    wanted = parameters_of(node.definition.codec)[node.item_parameter].annotation
    if not fits(node.items_from.result_type, AbstractSequence[wanted]):
        refuse(
            at,
            f"it goes through the items of {node.items_from!r}, which returns "
            f"{type_name(node.items_from.result_type)}, and its task takes {type_name(wanted)}",
            "let the upstream return a list of that type",
        )
    _check_width(node, at, refuse)


def check_workflow_items(node: Node[Any], at: str, refuse: Refuse) -> None:
    """The list whose items a workflow is run for."""
    source, _ = node.inputs[ITEMS]
    if not fits(source.result_type, AbstractSequence[Any]) or not get_args(source.result_type):
        refuse(
            at,
            f"it goes through the items of {source!r}, which returns {type_name(source.result_type)}",
            "let the upstream return a list with a type of its items, such as list[Order]",
        )
    _check_width(node, at, refuse)


def _check_width(node: Node[Any], at: str, refuse: Refuse) -> None:
    if type(node.options.max_width) is not int or not 1 <= node.options.max_width <= 100_000:
        refuse(at, f"max_width is {node.options.max_width!r:.60}", "choose 1 to 100000")


def wait_of(node: Node[Any], at: str, refuse: Refuse) -> timedelta | datetime | None:
    """How long a node waits, or until when; None for a node that does not, or a signal without a timeout."""
    if not isinstance(node, WaitNode):
        return None
    waiting: WaitNode[Any] = node
    if isinstance(waiting, SignalNode):
        checks = Checks(at)
        check_name(checks, "name of the signal", waiting.signal_name)
        for problem in checks.problems:
            refuse(at, problem.why, problem.fix)
        try:
            _ = waiting.codec
        except HorsiesError as error:
            refuse(at, f"a signal cannot have this type: {error}", "use plain data: bool, str, a pydantic model")
        if waiting.wait is None:
            return None
    wait = waiting.wait
    what = "timeout" if isinstance(waiting, SignalNode) else "time"
    if isinstance(wait, datetime) and what == "time":
        if wait.tzinfo is None:
            why = f"{wait.isoformat()} has no time zone"
            refuse(at, why, "use datetime.now(timezone.utc) + timedelta(...)")
        return wait
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= MAX_DELAY.total_seconds():
        return timedelta(seconds=wait)
    if isinstance(wait, timedelta) and timedelta(0) <= wait <= MAX_DELAY:
        return wait
    fix = "give seconds or a timedelta, 0 to ten years" + ("" if what == "timeout" else ", or an aware datetime")
    refuse(at, f"its {what} is {wait!r:.60}", fix)
    return None
