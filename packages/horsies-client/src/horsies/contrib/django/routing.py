# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Keeps Django's commands away from the tables of horsies.

`dumpdata` and `loaddata` treat every model that the routers allow. A dump is no backup of a queue: loaded again, it
would put ended tasks back to PENDING, and send the tasks of one deployment from another.
"""

from typing import Any

from django.db import router


class HorsiesRouter:
    """The first of the project's routers."""

    def allow_migrate(self, db: str, app_label: str, **_hints: Any) -> bool | None:
        return False if app_label == "horsies" else None


def install() -> None:
    routers: Any = router.routers
    if not any(isinstance(one, HorsiesRouter) for one in routers):
        routers.insert(0, HorsiesRouter())
