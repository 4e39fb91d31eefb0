"""Keeps the number of children: starts the template process and, from it, the children.

After a failed start it waits before the next one, and it gives up after `start_attempts` failures in a row.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Final

from horsies._text import Lines
from horsies.errors import HorsiesError
from horsies_worker.child.jobs import ChildSpec
from horsies_worker.children.child_process import ChildOwner, ChildProcess, State
from horsies_worker.children.size import PoolSize
from horsies_worker.children.template import Template, TemplateProcess, execute_template

logger = logging.getLogger("horsies.worker.pool")

_BACKOFF_S: Final = 0.1
_TEMPLATE_PROVEN_S: Final = 1.0
"""A template that dies sooner counts as a failed start."""
_SILENT_CHECKS: Final = 3
"""A template that has not reported the end of a child in this many checks, a second apart, is stopped or stuck."""


class ChildStartError(HorsiesError):
    """Children cannot be started; the text of the last failure is in the message."""


class ChildStarter:
    def __init__(
        self,
        spec: ChildSpec,
        size: PoolSize,
        children: dict[int, ChildProcess],
        owner: ChildOwner,
        on_fatal: Callable[[str], None],
    ) -> None:
        """New children are added to `children`."""
        self._spec = spec
        self._size = size
        self._children = children
        self._owner = owner
        self._on_fatal = on_fatal
        self._number = 0
        self._adopted: TemplateProcess | None = None
        self._template: Template | None = None
        self._template_since = 0.0
        self._closed_templates: list[Template] = []
        self._preload = spec.preload
        self._is_ended = False
        self._unreported: dict[int, int] = {}
        """For each child that has ended: the number of checks since then in which the template had not reported it."""
        self._retry: asyncio.TimerHandle | None = None
        self.failures = 0
        """Failed starts in a row."""

    @property
    def template_pid(self) -> int | None:
        return None if self._template is None else self._template.pid

    def adopt(self, template: TemplateProcess | None) -> None:
        """Fork children from this template, for as long as it lives. Call it before `start`."""
        self._adopted = template

    async def start(self, output: tuple[int, int]) -> None:
        """Return when the first child is ready; the others follow. Raises ChildStartError when none can be started."""
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._first_ready: asyncio.Future[None] = self._loop.create_future()
        self.fill()
        await self._first_ready

    def fill(self) -> None:
        """Start the children that are missing, unless a failed start still waits for its next try."""
        if self._is_ended or self._retry is not None:
            return
        try:
            if self._template is None:
                self._template_since = time.monotonic()
                started = self._adopted or execute_template(self._spec, self._output, preload=self._preload)
                self._adopted = None
                self._template = Template(started, self)
            if not self._template.ready:
                return
            current = sum(child.state in (State.STARTING, State.READY) for child in self._children.values())
            # Replacements start before the old children leave, up to this number.
            ceiling = 2 * self._size.processes + 2 - len(self._children)
            for _ in range(min(self._size.processes - current, ceiling)):
                self._number += 1
                child = ChildProcess(self._number, self._spec, self._owner, self._template, self._output)
                self._children[self._number] = child
        except OSError as exc:
            self.failed(f"cannot start a process: {exc}")

    def succeeded(self) -> None:
        """A child is ready."""
        self.failures = 0
        self._size.prove(sum(child.state is State.READY for child in self._children.values()))
        if not self._first_ready.done():
            self._first_ready.set_result(None)

    def failed(self, text: str) -> None:
        if self._is_ended or self._retry is not None:
            return  # children that start together fail together, which counts once
        self.failures += 1
        if self.failures >= self._spec.start_attempts and self._size.fall_back():
            self.failures = 0
            logger.error(
                "more children cannot be started, so the worker goes on with %d: %s", self._size.processes, Lines(text)
            )
            return
        if self.failures >= self._spec.start_attempts:
            self._is_ended = True
            message = f"children cannot be started ({self.failures} attempts): {text}"
            if not self._first_ready.done():
                self._first_ready.set_exception(ChildStartError(message))
            self._on_fatal(message)
            return
        wait = _BACKOFF_S * 2 ** (self.failures - 1)
        logger.error("a child could not be started, next try in %.1f s: %s", wait, Lines(text))
        self._retry = self._loop.call_later(wait, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.fill()

    def check_template(self) -> None:
        """Give up a template that does not report the ends of children, such as one that was stopped by a signal."""
        ended = [child.number for child in self._children.values() if child.process.is_unreported]
        self._unreported = {number: self._unreported.get(number, 0) + 1 for number in ended}
        if any(checks >= _SILENT_CHECKS for checks in self._unreported.values()):
            self.give_up_template()

    def give_up_template(self) -> None:
        """Kill a template that does not report, and learn the ends of its children without it."""
        self._unreported = {}
        if self._template is not None:
            text = f"the template process (pid {self._template.pid}) is stopped or stuck, and was killed"
            self.template_lost(text, was_ready=self._template.ready)

    def end(self) -> None:
        """Start no more children."""
        self._is_ended = True
        if self._retry is not None:
            self._retry.cancel()

    async def close(self) -> None:
        """End the template and wait for its process."""
        self._close_template()
        for template in self._closed_templates:
            await template.wait_closed()

    def _close_template(self) -> None:
        if self._template is not None:
            self._template.close()
            # Keep those whose process is not collected yet, so that `close` can wait for them.
            self._closed_templates = [old for old in self._closed_templates if old.running]
            self._closed_templates.append(self._template)
            self._template = None

    # -- reports of the template ---------------------------------------------------------------------

    def template_ready(self, threads: int, sockets: int) -> None:
        if self._preload and (threads or sockets):
            # A fork copies the locks of a thread but not the thread, and all children would share a socket.
            logger.warning(
                "importing %s left %d thread(s) and %d socket(s) open: children will import it themselves, which makes "
                "their start slower. Open them in an on_child_start hook instead.",
                self._spec.app_locator,
                threads,
                sockets,
            )
            self._preload = False
            self._close_template()
        self.fill()

    def template_lost(self, text: str, *, was_ready: bool) -> None:
        self._close_template()
        for child in list(self._children.values()):
            child.orphaned()
        if self._is_ended:
            logger.warning("%s", text)
        elif was_ready and time.monotonic() - self._template_since > _TEMPLATE_PROVEN_S:
            logger.warning("%s; starting another one, its children are replaced as they finish", text)
            self.fill()
        else:
            self.failed(text)

    def child_forked(self, number: int, pid: int, pidfd: int | None) -> None:
        child = self._children.get(number)
        if child is not None:
            child.process.identify(pid, pidfd)
        elif pidfd is not None:
            os.close(pidfd)

    def child_exited(self, number: int, status: int | None, peak_kb: int) -> None:
        child = self._children.get(number)
        if child is not None:
            child.exited(status, peak_kb)

    def fork_failed(self, number: int, text: str) -> None:
        child = self._children.get(number)
        if child is not None:
            child.start_failure = text
            child.exited(None, 0)
