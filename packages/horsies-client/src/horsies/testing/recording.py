"""`recorded`: keeps what is sent, and runs nothing. Needs the client alone."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.testing.modes import Mode, installed
from horsies.testing.sends import Sends

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen


@contextmanager
def recorded(app: Horsies) -> Generator[Sends]:
    """Inside the block, sends of this app are kept instead of written; nothing runs, and no database is used.

    Everything before the database is as in production: arguments are checked and encoded, options and limits apply, and
    middleware sees the sends. A unique key belongs to its first task until the end of the block.
    """
    mode = Recording(app)
    with installed(app, mode):
        yield mode.sends


class Recording(Mode):
    def look(self, sent_id: str, *, is_workflow: bool) -> "Seen | None":
        raise self._nothing_runs("a result")

    def node_texts(self, workflow_id: str, node_ids: Sequence[str] | None) -> Mapping[str, str | None]:
        raise self._nothing_runs("a node's result")

    def refusal(self, what: str) -> UsageError:
        return UsageError(f"inside testing.recorded {what} cannot be used: sends are kept, and no database is asked")

    def _nothing_runs(self, what: str) -> UsageError:
        return UsageError(
            f"inside testing.recorded there is never {what}: sends are kept, and nothing runs them. Run them with "
            "testing.inline(app), or one task with testing.run(task, ...)"
        )
