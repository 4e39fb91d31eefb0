"""Calls of batch tasks in the child: decodes all items, calls the function once, and makes an outcome for each task."""

import asyncio
import inspect
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, cast

from horsies._checks import a_type
from horsies._text import plural
from horsies.context import BatchCall, TaskStopped
from horsies.errors import ContractCode
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind, error_outcome

if TYPE_CHECKING:
    from horsies.registry import TaskDefinition
    from horsies_worker.child.execute import Executor


class _Prepared:
    """The items of a call. A task whose stored item does not fit ends by itself, and the others run without it."""

    __slots__ = ("_executor", "_outcomes", "definition", "items")

    def __init__(self, executor: "Executor", call: Job, context: BatchCall) -> None:
        self._executor = executor
        self._outcomes: list[Outcome | None] = []
        self.definition: TaskDefinition | None = None
        self.items: list[object] = []
        for job in call.members:
            prepared = executor.prepare(job)
            if isinstance(prepared, Outcome):
                self._outcomes.append(prepared)
                continue
            self.definition, args, kwargs = prepared
            self.items.extend((*args, *kwargs.values()))
            self._outcomes.append(None)
        if len(self.items) < len(self._outcomes):
            context.tasks = tuple(
                task for task, refused in zip(context.tasks, self._outcomes, strict=True) if not refused
            )

    def ended(self, outcomes: Sequence[Outcome] = ()) -> Outcome:
        """The outcome of the call: `outcomes` are those of the tasks that were called."""
        called = iter(outcomes)
        members = [one if one is not None else next(called) for one in self._outcomes]
        return Outcome(OutcomeKind.OK, "", members=members)

    def failed(self, error: BaseException) -> Outcome:
        outcome = self._executor.failed(error, self.definition)
        return self.ended([copy(outcome) for _ in self.items])

    def returned(self, definition: "TaskDefinition", value: object) -> Outcome:
        """One outcome for each item, or the same error for all."""
        count = len(self.items)
        if isinstance(value, list | tuple):
            results = cast("Sequence[object]", value)
            if len(results) == count:
                return self.ended([self._executor.conclude(definition, one) for one in results])
            told = plural(len(results), "result")
        else:
            told = a_type(value)
            if inspect.iscoroutine(value):
                value.close()  # otherwise Python warns that it was never awaited
        message = (
            f"the batch task {definition.name!r} returned {told} for {plural(count, 'item')}; return a list with one "
            "TaskResult for each item, in their order"
        )
        return self.ended([error_outcome(ContractCode.RETURN_TYPE_MISMATCH, message) for _ in range(count)])


class BatchCalls:
    """Calls the batch tasks of one app. The outcome of a call has those of its members."""

    def __init__(self, executor: "Executor") -> None:
        self._executor = executor

    def call(self, call: Job, context: BatchCall) -> Outcome:
        """Raises only TaskStopped."""
        prepared = _Prepared(self._executor, call, context)
        definition = prepared.definition
        if definition is None:
            return prepared.ended()
        try:
            value = self._executor.around.call_batch(context, partial(definition.fn, prepared.items.copy()))
        except TaskStopped:
            raise
        except BaseException as error:
            return prepared.failed(error)
        return prepared.returned(definition, value)

    async def call_async(self, call: Job, context: BatchCall) -> Outcome:
        """Raises only CancelledError."""
        prepared = _Prepared(self._executor, call, context)
        definition = prepared.definition
        if definition is None:
            return prepared.ended()
        try:
            made = partial(definition.fn, prepared.items.copy())
            value = await self._executor.around.call_batch_async(context, made)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return prepared.failed(error)
        return prepared.returned(definition, value)
