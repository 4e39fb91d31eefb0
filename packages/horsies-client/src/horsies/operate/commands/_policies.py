"""What `horsies queues` and `horsies limits` share: rates and policies as they are typed and printed."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from horsies._text import short, span
from horsies.config.limits import HEAVIEST, LONGEST_WINDOW_S, Rate
from horsies.errors import ConfigurationError
from horsies.operate.commands._common import Refused, duration
from horsies.operate.policies import Policy, QueuePolicy, SharedLimit

NONE: Final = "none"
_EXAMPLE: Final = "write LIMIT/SECONDS, such as 100/60 for 100 starts in any minute, or none"
_COUNT: Final = "a whole number from 1 to 1,000,000, or none"


# -- options -------------------------------------------------------------------------------------


def add_limits(to: argparse.ArgumentParser, whose: str) -> None:
    """Add the options that override the limits of a policy; what is not given stays as it is."""
    to.add_argument(
        "--max-concurrency", type=_count, metavar="N|none", default=argparse.SUPPRESS,
        help=f"how many tasks {whose} may be in flight in the whole cluster",
    )  # fmt: skip
    to.add_argument(
        "--rate", type=_rate, metavar="LIMIT/SECONDS|none", default=argparse.SUPPRESS,
        help=f"how many tasks {whose} may start in so many seconds, such as 100/60",
    )  # fmt: skip
    to.add_argument(
        "--burst", type=_count, metavar="N", default=argparse.SUPPRESS,
        help="how many of them may start at one moment (default: a tenth of LIMIT); with --rate",
    )  # fmt: skip


def changes(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that the options override; raises Refused."""
    given = vars(options)
    found = {name: given[name] for name in names if name in given}
    rate, burst = found.get("rate"), given.get("burst")
    if burst is not None and "rate" in found and rate is None:
        raise Refused("--burst is a part of a rate, and --rate none takes the rate away: leave out one of them")
    if burst is not None and rate is None:
        raise Refused(f"--burst is a part of a rate: give --rate as well ({_EXAMPLE})")
    if rate is not None:
        try:
            found["rate"] = Rate(rate[0], rate[1], burst=burst)
        except ConfigurationError as error:
            raise Refused("; ".join(f"{one.where} {one.why}: {one.fix}" for one in error.problems)) from None
    if not found:
        given_as = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise Refused(f"nothing to override: give one of {given_as}")
    return found


def add_fields(to: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add the fields of a policy as arguments."""

    def field(text: str) -> str:
        name = text.replace("-", "_")
        if name not in names:
            raise argparse.ArgumentTypeError(f"{short(text)!r} is not one of {', '.join(names)}")
        return name

    to.add_argument("fields", nargs="*", type=field, metavar="FIELD", help=f"of {', '.join(names)} (default: all)")


def unset_text(whose: str, fields: Sequence[str], overridden: Collection[str]) -> str:
    """What an `unset` of these fields has done, or of all; `overridden` are those that were overridden before it."""
    done = ", ".join(name for name in fields if name in overridden) or ", ".join(fields) or "the override"
    others = [name for name in fields if name not in overridden] if overridden else []
    rest = f"; there was no override of {', '.join(others)}" if others else ""
    return f"unset {done} of {whose}{rest}"


def not_overridden(whose: str, fields: Sequence[str]) -> str:
    """Why an `unset` has done nothing."""
    of = f" of {', '.join(fields)}" if fields else ""
    return f"{whose} has no override{of}: there is nothing to unset"


def weight_of(text: str) -> int | None:
    """Parse a weight or `none`, for argparse."""
    if text == NONE:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= HEAVIEST:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not a whole number from 1 to {HEAVIEST:,}, or none")
    return int(text)


def ageing_of(text: str) -> float | None:
    """Parse `90s`, `15m`, a plain number of seconds or `none`, for argparse."""
    if text == NONE:
        return None
    seconds = duration(f"{text}s" if text.isdecimal() else text).total_seconds()
    if not 0.1 <= seconds <= LONGEST_WINDOW_S:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is out of range: choose 100ms to 31d, or none")
    return seconds


def names_of(text: str) -> tuple[str, ...]:
    """Parse `stripe,mailgun` or `none`, for argparse."""
    names = tuple(filter(None, text.split(",")))
    if not names or (NONE in names and len(names) > 1):
        raise argparse.ArgumentTypeError(f"{short(text)!r} names no limits: give NAME,NAME, or {NONE} for none of them")
    return () if text == NONE else names


def _count(text: str) -> int | None:
    if text == NONE:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not {_COUNT}")
    return int(text)


def _rate(text: str) -> tuple[int, float] | None:
    if text == NONE:
        return None
    limit, slash, seconds = text.partition("/")
    try:
        if slash:
            return int(limit), float(seconds)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{short(text)!r} is not a rate: {_EXAMPLE}")


# -- words ---------------------------------------------------------------------------------------


def field_text(name: str, policy: Mapping[str, Any] | None) -> str:
    """A field of one part of a policy; a dash when that part does not name it."""
    if not policy or name not in policy:
        return "-"
    value: Any = policy[name]
    if name == "limits":
        return ", ".join(value) or NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return NONE
    return _shown(name, Rate(**value) if name == "rate" else value)


def holds_text(name: str, policy: Policy) -> str:
    """A field as it holds."""
    value = getattr(policy, name)
    if name == "limits":
        return ", ".join(policy.limits) or NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NONE if value is None else _shown(name, value)


def _shown(name: str, value: object) -> str:
    return f"{value:g} s" if name == "ageing_seconds" and isinstance(value, int | float) else str(value)


def overridden_text(one: QueuePolicy | SharedLimit) -> str:
    """Which fields an operator has overridden, and when that was last changed."""
    if not one.overridden or one.override_for is None:
        return "no"
    return f"{', '.join(one.overridden)} ({span(one.override_for)} ago)"
