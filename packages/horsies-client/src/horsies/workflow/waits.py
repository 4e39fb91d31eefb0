"""Nodes that wait and run no task: for a signal from outside, or for a time. While they wait they cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from horsies.workflow.nodes import Node, NodeOptions, listed, result_codec

if TYPE_CHECKING:
    from horsies.codec import TaskCodec
    from horsies.workflow.nodes import Join

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WaitNode(Node[T_co]):
    """The base of nodes that wait."""

    kind = "sleep"

    def __init__(self, options: NodeOptions, wait: object) -> None:
        super().__init__(options)
        self.wait = wait
        """How long, or until when; the validation checks it."""

    @property
    def app(self) -> None:
        return None


class SleepNode(WaitNode[None]):
    """Completes when its time has come; see `sleep`."""

    @property
    def title(self) -> str:
        return "sleep"

    @property
    def codec(self) -> TaskCodec:
        return result_codec("sleep", type(None))


class SignalNode(WaitNode[T]):
    """Completes with the value of a signal; see `wait_for_signal`. Not covariant as other nodes are: a signal with a
    value of another type is a type error."""

    kind = "signal"

    def __init__(self, name: str, type_: Any, timeout: object, options: NodeOptions) -> None:
        super().__init__(options, timeout)
        self.signal_name = name
        self.type = type_

    @property
    def title(self) -> str:
        return self.signal_name if isinstance(cast("object", self.signal_name), str) and self.signal_name else "signal"

    @property
    def codec(self) -> TaskCodec:
        return result_codec(self.title, self.type)


def wait_for_signal(
    name: str,
    type: type[T],
    *,
    timeout: float | timedelta | None = None,
    node_id: str | None = None,
    waits_for: Sequence[Node[Any]] = (),
    join: Join = "all",
    min_success: int | None = None,
    allow_failed_deps: bool = False,
    when: Node[bool] | None = None,
    unless: Node[bool] | None = None,
) -> SignalNode[T]:
    """A node that waits for a signal of this name, an approval for example, and returns its value, which is of `type`.

    `handle.signal(node, value)` sends it: at any time, also before the node waits; then it is kept. `timeout` (seconds
    or a timedelta, from the moment at which the node begins to wait): the node fails with SIGNAL_TIMEOUT."""
    options = NodeOptions(
        node_id=node_id, waits_for=listed(waits_for) or waits_for, join=join, min_success=min_success,
        allow_failed_deps=allow_failed_deps, when=when, unless=unless,
    )  # fmt: skip
    return SignalNode(name, type, timeout, options)


def sleep(
    wait: float | timedelta | datetime,
    *,
    node_id: str | None = None,
    waits_for: Sequence[Node[Any]] = (),
    join: Join = "all",
    min_success: int | None = None,
    allow_failed_deps: bool = False,
    when: Node[bool] | None = None,
    unless: Node[bool] | None = None,
) -> SleepNode:
    """A node that completes after this time (seconds or a timedelta, from the moment at which its dependencies have
    ended) or at this moment (an aware datetime), by the database's clock and never earlier."""
    options = NodeOptions(
        node_id=node_id, waits_for=listed(waits_for) or waits_for, join=join, min_success=min_success,
        allow_failed_deps=allow_failed_deps, when=when, unless=unless,
    )  # fmt: skip
    return SleepNode(options, wait)
