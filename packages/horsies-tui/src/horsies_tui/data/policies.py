"""Policies as they are typed: `concurrency:2 rate:100/60 burst:20 fair:no limits:stripe,mailgun weight:3 ageing:60`.

`none` lifts a limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from horsies.config.limits import HEAVIEST, LONGEST_WINDOW_S, Rate
from horsies.errors import ConfigurationError
from horsies.operate.policies import LIMIT_FIELDS, QUEUE_FIELDS, Policy, QueuePolicy, SharedLimit

_NONE: Final = "none"
_NO: Final = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_KEYS: Final = {"concurrency": "max_concurrency", "max_concurrency": "max_concurrency", "ageing": "ageing_seconds"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose policy it is: of a queue, or of a limit that queues share."""

    kind: str
    """`queue` or `limit`."""
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @classmethod
    def parse(cls, text: str) -> "Subject":
        return cls(*text.split(" ", 1))

    @property
    def fields(self) -> Sequence[str]:
        return QUEUE_FIELDS if self.kind == "queue" else LIMIT_FIELDS


def state_of(one: QueuePolicy | SharedLimit | None) -> str:
    """The state of a policy that actions expect."""
    return "overridden" if one is not None and one.overridden else "declared"


def typed(policy: Policy, fields: Sequence[str]) -> str:
    """The policy as it could be typed."""
    words = [f"concurrency:{policy.max_concurrency or _NONE}"]
    rate = policy.rate
    words += [f"rate:{rate.limit}/{rate.per_seconds:g}", f"burst:{rate.burst}"] if rate else [f"rate:{_NONE}"]
    if "fair" in fields:
        words += [f"fair:{'yes' if policy.fair else 'no'}", f"limits:{','.join(policy.limits) or _NONE}"]
    if policy.weight is not None:
        words.append(f"weight:{policy.weight}")
    if policy.ageing_seconds is not None:
        words.append(f"ageing:{policy.ageing_seconds:g}")
    return " ".join(words)


def parse(text: str, fields: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The fields that the words give, and the problems of the words that were not understood."""
    found: dict[str, Any] = {}
    problems: list[str] = []
    for word in text.split():
        key, colon, value = word.partition(":")
        name = _KEYS.get(key, key)
        if not colon or name not in (*fields, "burst"):
            problems.append(f"{key} is not one of {', '.join(_shown(fields))}")
            continue
        try:
            found[name] = _value(name, value)
        except ValueError as error:
            problems.append(str(error))
    burst = found.pop("burst", None)
    if found.get("rate") is not None and not problems:
        try:
            found["rate"] = Rate(*found["rate"], burst=burst)
        except ConfigurationError as error:
            problems += [f"{one.where} {one.why}: {one.fix}" for one in error.problems]
    elif burst is not None and not problems:
        problems.append("burst is a part of a rate: write rate:100/60 burst:20")
    return found, problems


def changes(text: str, holds: Policy, fields: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The fields that the words change, and the problems."""
    found, problems = parse(text, fields)
    return {name: value for name, value in found.items() if value != getattr(holds, name)}, problems


def words(change: Mapping[str, Any]) -> str:
    """Fields that `changes` has found, as they could be typed."""
    found: list[str] = []
    for name, value in change.items():
        if isinstance(value, Rate):
            found += [f"rate:{value.limit}/{value.per_seconds:g}", f"burst:{value.burst}"]
        elif isinstance(value, bool):
            found.append(f"{name}:{'yes' if value else 'no'}")
        elif name == "limits":
            found.append(f"limits:{','.join(value) or _NONE}")
        else:
            found.append(f"{name}:{_NONE if value is None else value}")
    return " ".join(found)


def _shown(fields: Sequence[str]) -> list[str]:
    others = {"fair": "fair", "limits": "limits", "weight": "weight", "ageing_seconds": "ageing"}
    return ["concurrency", "rate", "burst", *(others[name] for name in fields if name in others)]


def _value(name: str, text: str) -> Any:
    if name == "limits":
        return () if text == _NONE else tuple(filter(None, text.split(",")))
    if name == "fair":
        if text not in _NO:
            raise ValueError("fair is yes or no")
        return _NO[text]
    if text == _NONE and name != "burst":
        return None
    if name == "rate":
        limit, slash, seconds = text.partition("/")
        try:
            if slash:
                return int(limit), float(seconds)
        except ValueError:
            pass
        raise ValueError("a rate is LIMIT/SECONDS, such as rate:100/60, or none")
    if name == "ageing_seconds":
        try:
            if 0.1 <= (seconds := float(text)) <= LONGEST_WINDOW_S:
                return seconds
        except ValueError:
            pass
        raise ValueError("ageing is a number of seconds from 0.1, or none")
    if name == "weight" and not (text.isdecimal() and 1 <= int(text) <= HEAVIEST):
        raise ValueError(f"weight is a whole number from 1 to {HEAVIEST:,}, or none")
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise ValueError(f"{'concurrency' if name == 'max_concurrency' else name} is a whole number from 1, or none")
    return int(text)
