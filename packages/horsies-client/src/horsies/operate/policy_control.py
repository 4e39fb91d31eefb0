"""Operations on policies: read them, override fields of them, unset the override. `app.get_broker().policies`.

A change of a limit holds from the next claim on, in every worker: claims read it in the database, and a notification
makes workers that wait for a place or a token claim at once. Weights and ageing times are read with the next heartbeat.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack, cast

from horsies._checks import Checks
from horsies._text import short
from horsies.config.limits import Rate, check_limit_names, check_limits, check_shares
from horsies.errors import UsageError
from horsies.operate import groups, policies
from horsies.operate.groups import QueueGroups
from horsies.operate.policies import LIMIT_FIELDS, QUEUE_FIELDS, QueuePolicy, SharedLimit
from horsies.operate.session import Fetch, OperatorSession

_TIMEOUT_MS: Final = 5_000


class LimitChanges(TypedDict, total=False):
    """What to override; what is not given stays as it is."""

    max_concurrency: int | None
    rate: Rate | None


class QueueChanges(LimitChanges, total=False):
    """What to override; what is not given stays as it is."""

    fair: bool
    limits: Sequence[str] | None
    weight: int | None
    ageing_seconds: float | None


class PolicyControl:
    """The operations on policies, all coroutines."""

    def __init__(self, session: OperatorSession) -> None:
        self._session = session

    # -- reading ---------------------------------------------------------------------------------

    async def queues(self) -> list[QueuePolicy]:
        """Every queue for which a policy was declared or set, by name."""
        found = await self._session.read(policies.queue_policies)
        return [one for one in found if one.declared is not None or one.override is not None]

    async def queue(self, queue_name: str) -> QueuePolicy:
        """The policy of one queue, which may have none."""
        found = await self._session.read(lambda fetch: policies.queue_policies(fetch, _stored(queue_name)))
        return found[0] if found else QueuePolicy.none(queue_name)

    async def limits(self) -> list[SharedLimit]:
        """Every limit that queues can share, by name, and how much of it is used."""
        return await self._session.read(policies.shared_limits)

    async def groups(self, queue_name: str, top: int = groups.TOP) -> QueueGroups:
        """The groups of a queue with the most waiting tasks, among the few hundred that were looked at."""
        checks = Checks("policies")
        checks.integer("top", top, 1, groups.LOOKED)
        checks.finish()
        return await self._session.read(lambda fetch: groups.top_groups(fetch, _stored(queue_name), top))

    # -- overriding ------------------------------------------------------------------------------

    async def set_queue(self, queue_name: str, **changes: Unpack[QueueChanges]) -> QueuePolicy:
        """Override fields of a queue's policy until they are unset; None means no limit. Returns what holds now."""
        checks = Checks("queue")
        checks.queue_name("queue_name", queue_name)
        override = _limits_json(checks, cast("LimitChanges", changes))
        if "fair" in changes and checks.boolean("fair", changes["fair"]):
            override["fair"] = changes["fair"]
        if "limits" in changes:
            override["limits"] = list(check_limit_names(checks, "limits", changes["limits"] or ()))
        check_shares(checks, changes.get("weight"), changes.get("ageing_seconds"))
        override |= {name: value for name, value in changes.items() if name in ("weight", "ageing_seconds")}
        checks.finish()
        _need(override, QUEUE_FIELDS)

        async def change(fetch: Fetch) -> QueuePolicy:
            known = {row["name"] for row in await fetch("limit_names")} if override.get("limits") else set[str]()
            if missing := [name for name in override.get("limits", ()) if name not in known]:
                raise UsageError(_no_limit(missing, known))
            await fetch("override_queue", queue_name, json.dumps(override))
            return (await policies.queue_policies(fetch, queue_name))[0]

        return await self._session.bounded(change, _TIMEOUT_MS)

    async def unset_queue(self, queue_name: str, fields: Collection[str] = ()) -> bool:
        """Take back the override of these fields, or of all; False when none of them is overridden."""
        given = _fields(fields, QUEUE_FIELDS)
        rows = await self._session.bounded(lambda fetch: fetch("unset_queue", _stored(queue_name), given), _TIMEOUT_MS)
        return bool(rows)

    async def set_limit(self, name: str, **changes: Unpack[LimitChanges]) -> SharedLimit:
        """Override fields of a limit that queues share until they are unset; None means no limit."""
        checks = Checks("limit")
        override = _limits_json(checks, changes)
        checks.finish()
        _need(override, LIMIT_FIELDS)

        async def change(fetch: Fetch) -> SharedLimit:
            if not await fetch("override_limit", _stored(name), json.dumps(override)):
                raise UsageError(_no_limit([name], {row["name"] for row in await fetch("limit_names")}))
            await fetch("notify_limit", name)
            return (await policies.shared_limits(fetch, name))[0]

        return await self._session.bounded(change, _TIMEOUT_MS)

    async def unset_limit(self, name: str, fields: Collection[str] = ()) -> bool:
        """Take back the override of these fields, or of all; False when none of them is overridden."""
        given = _fields(fields, LIMIT_FIELDS)

        async def change(fetch: Fetch) -> bool:
            if not await fetch("unset_limit", _stored(name), given):
                return False
            await fetch("notify_limit", name)
            return True

        return await self._session.bounded(change, _TIMEOUT_MS)


def _limits_json(checks: Checks, changes: LimitChanges) -> dict[str, Any]:
    """The given ones of the two limits; None stays, and means no limit."""
    check_limits(checks, changes.get("max_concurrency"), changes.get("rate"))
    override: dict[str, Any] = {}
    if "max_concurrency" in changes:
        override["max_concurrency"] = changes["max_concurrency"]
    if "rate" in changes:
        rate = cast("object", changes["rate"])
        override["rate"] = rate.as_json() if isinstance(rate, Rate) else None
    return override


def _need(override: Mapping[str, Any], fields: Sequence[str]) -> None:
    if not override:
        raise UsageError(f"nothing to override: give one of {', '.join(fields)}")


def _fields(given: Collection[str], known: Sequence[str]) -> list[str]:
    names = [given] if isinstance(given, str) else list(given)
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"a policy has no field {short(str(wrong[0]))!r}: choose from {', '.join(known)}")
    return names or list(known)


def _no_limit(missing: Sequence[str], known: Collection[str]) -> str:
    listed = f"known are {', '.join(sorted(known))}" if known else "none is known"
    names = ", ".join(repr(short(name)) for name in missing)
    return f"there is no limit {names} ({listed}): declare it in AppConfig.limits, and start a worker of that app"


def _stored(name: str) -> str:
    """The name with the characters replaced that the driver cannot encode, so that it matches no row."""
    return name.replace("\0", "").encode(errors="replace").decode()
