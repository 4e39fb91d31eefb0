"""`OutputlessWorkflow`: a workflow whose runs give the results of its last nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horsies.workflow.spec import WorkflowSpec

if TYPE_CHECKING:
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.run_options import Moment
    from horsies.workflow.terminal import TerminalResults


class OutputlessWorkflow(WorkflowSpec[None]):
    """A workflow without an output: `app.workflow(name, tasks)`. `get()` of its handle gives the results of its last
    nodes. As a node of another workflow it has no value."""

    if TYPE_CHECKING:  # the handle of a run is not that of a workflow that returns None

        def start(  # pyright: ignore[reportIncompatibleMethodOverride]
            self,
            *,
            workflow_id: str | None = None,
            connection: Any = None,
            metadata: Mapping[str, Any] | None = None,
            group: str | None = None,
            priority: int | None = None,
            unique_key: str | None = None,
            start_at: Moment | None = None,
            deadline: Moment | None = None,
        ) -> WorkflowHandle[TerminalResults]: ...

        async def start_async(  # pyright: ignore[reportIncompatibleMethodOverride]
            self,
            *,
            workflow_id: str | None = None,
            connection: Any = None,
            metadata: Mapping[str, Any] | None = None,
            group: str | None = None,
            priority: int | None = None,
            unique_key: str | None = None,
            start_at: Moment | None = None,
            deadline: Moment | None = None,
        ) -> WorkflowHandle[TerminalResults]: ...
