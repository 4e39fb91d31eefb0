"""Paths into runs: `outer/inner` is the node `inner` of the workflow in the node `outer`, `orders/item[3]` the fourth
item of the map `orders`."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from horsies._text import short
from horsies.errors import UsageError

ITEM: Final = re.compile(r"item\[(\d+)\]")
"""An item on a path. No node may have such an id: a path would lead past it."""

Find = Callable[[str, str], Awaitable[Sequence[Mapping[str, Any]]]]
"""(run, node id) -> the row of `find_node`, if there is one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node on a path."""

    workflow_id: str
    node_id: str
    child_id: str | None
    """The run inside it, if that has started."""


def refuse_path(path: object) -> None:
    """Refuse what can be no path."""
    if not isinstance(path, str) or not path.strip("/") or "\x00" in path:
        raise UsageError(
            f"{path!r:.60} is no path: name nodes, with slashes between them: 'outer/inner', 'orders/item[3]'"
        )


async def locate(find: Find, workflow_id: str, path: str) -> list[Place]:
    """The nodes along a path, the outermost first. Raises `UsageError` where it leads nowhere."""
    refuse_path(path)
    places: list[Place] = []
    rest = path.strip("/")
    run: str | None = workflow_id
    while rest:
        if run is None:
            where = "/".join(place.node_id for place in places)
            raise UsageError(
                f"there is no {short(path)!r} in workflow {workflow_id}: nothing has started inside {where!r}"
            )
        # the id of a node may have slashes in it
        tried = [rest, *(rest[: at.start()] for at in reversed(list(re.finditer("/", rest))))]
        for name in tried:
            node_id = ITEM.sub(lambda found: f"item-{found[1]}", name) if ITEM.fullmatch(name) else name
            if rows := await find(run, node_id):
                break
        else:
            raise UsageError(f"workflow {run} has no node {short(tried[-1])!r} (path {short(path)!r})")
        places.append(Place(run, node_id, rows[0]["sub_workflow_id"]))
        rest = rest[len(name) :].lstrip("/")
        run = rows[0]["sub_workflow_id"]
    return places
