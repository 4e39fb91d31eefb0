"""RetryPolicy: which errors are tried again, how often and when. Pure arithmetic, no clock, no database.

A policy travels in the task's row (`task_options`), so that the worker honours what the sender
wrote. A row is hostile input: `from_json` trusts nothing, and no policy can overflow or wait for ever.
"""

import builtins
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self, cast

from horsies._checks import Checks, shown
from horsies.errors import BUILT_IN_CODES, BuiltInCode, ConfigurationError, OutcomeCode, RetrievalCode

MAX_RETRIES: Final = 1_000
MAX_DELAY_MS: Final = 30 * 24 * 3_600_000
"""30 days. Longer waits are a schedule, not a retry."""
_MAX_LIST: Final = 1_000
_FIX_SECONDS: Final = "give seconds from 0 (exponential: 0.001) to 2_592_000 (30 days)"


class RetryStrategy(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"
    INTERVALS = "intervals"


class Jitter(StrEnum):
    """How far chance moves a delay `d`. Tasks that failed together should not come back together."""

    NONE = "none"
    """Exactly `d`."""
    FULL = "full"
    """Anywhere in 0..d: spreads best, but a retry may follow at once."""
    EQUAL = "equal"
    """Anywhere in d/2..d: half of the wait is certain, so a broken service gets its pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Build one with `fixed`, `exponential` or `intervals`. Retry n (1-based) follows failed attempt n."""

    strategy: RetryStrategy
    max_retries: int
    """Retries after the first attempt. 0 to 1,000."""

    auto_retry_for: Sequence[str | BuiltInCode]
    """Error codes that are retried. An error code that is not listed ends the task."""

    delays_ms: Sequence[int]
    """One delay (fixed), the first one (exponential), or all (intervals: the last one repeats)."""

    factor: float = 2.0
    """Exponential only: each delay is this many times the one before."""

    cap_ms: int = 3_600_000
    """Exponential only: no delay is longer."""

    jitter: Jitter = Jitter.NONE

    @classmethod
    def fixed(
        cls,
        seconds: float,
        max_retries: int,
        *,
        auto_retry_for: Sequence[str | BuiltInCode] = (),
        jitter: Jitter | str = Jitter.NONE,
    ) -> Self:
        """The same wait before every retry."""
        return cls._build(RetryStrategy.FIXED, {"seconds": seconds}, max_retries, auto_retry_for, jitter)

    @classmethod
    def exponential(
        cls,
        base_seconds: float,
        max_retries: int,
        *,
        factor: float = 2.0,
        cap_seconds: float = 3_600.0,
        auto_retry_for: Sequence[str | BuiltInCode] = (),
        jitter: Jitter | str = Jitter.EQUAL,
    ) -> Self:
        """`base_seconds`, then each wait `factor` times longer, up to `cap_seconds`."""
        return cls._build(
            RetryStrategy.EXPONENTIAL,
            {"base_seconds": base_seconds},
            max_retries,
            auto_retry_for,
            jitter,
            factor=factor,
            cap_seconds=cap_seconds,
        )

    @classmethod
    def intervals(
        cls,
        seconds: Sequence[float],
        *,
        max_retries: int | None = None,
        auto_retry_for: Sequence[str | BuiltInCode] = (),
        jitter: Jitter | str = Jitter.NONE,
    ) -> Self:
        """One wait per retry, as listed. With a larger `max_retries` the last one repeats."""
        checks = Checks("RetryPolicy")
        items = _items(checks, "intervals", seconds, "write intervals([1, 5, 30])")
        if not 0 < len(items) <= _MAX_LIST and not checks.problems:
            checks.add("intervals", f"has {len(items)} entries", f"list 1 to {_MAX_LIST:_} waits in seconds")
        checks.finish()
        listed = {f"intervals[{at}]": value for at, value in enumerate(items)}
        count = len(listed) if max_retries is None else max_retries
        return cls._build(RetryStrategy.INTERVALS, listed, count, auto_retry_for, jitter)

    @classmethod
    def _build(
        cls,
        strategy: RetryStrategy,
        seconds: Mapping[str, object],
        max_retries: int,
        auto_retry_for: Sequence[str | BuiltInCode],
        jitter: Jitter | str,
        *,
        factor: float = 2.0,
        cap_seconds: object = 3_600.0,
    ) -> Self:
        """Seconds to milliseconds; what cannot be converted is reported beside everything else."""
        checks = Checks("RetryPolicy")
        # Nothing times a factor stays nothing: an exponential policy without a first wait is a hot loop.
        lowest = 1 if strategy is RetryStrategy.EXPONENTIAL else 0
        delays = [_milliseconds(checks, name, value, lowest) for name, value in seconds.items()]
        cap = _milliseconds(checks, "cap_seconds", cap_seconds, 1)
        settings: dict[str, Any] = {"strategy": strategy, "max_retries": max_retries, "factor": factor, "cap_ms": cap}
        settings |= {"auto_retry_for": auto_retry_for, "delays_ms": delays, "jitter": jitter}
        try:
            policy = cls(**settings)
        except ConfigurationError as error:
            raise ConfigurationError([*checks.problems, *error.problems], subject=checks.subject) from None
        checks.finish()
        return policy

    def __post_init__(self) -> None:
        checks = Checks("RetryPolicy")
        if checks.word("strategy", self.strategy, tuple(RetryStrategy)):
            object.__setattr__(self, "strategy", RetryStrategy(self.strategy))
        if checks.word("jitter", self.jitter, tuple(Jitter)):
            object.__setattr__(self, "jitter", Jitter(self.jitter))
        retries_ok = checks.integer("max_retries", self.max_retries, 0, MAX_RETRIES)
        codes = _items(checks, "auto_retry_for", self.auto_retry_for, 'write auto_retry_for=["SMTP_DOWN"]')
        for at, code in enumerate(codes):
            if isinstance(code, type) and issubclass(code, BaseException):
                fix = f'map it, AppConfig(exception_mapper={{{code.__name__}: "SOME_CODE"}}), and list the code here'
                checks.add(f"auto_retry_for[{at}]", f"{code.__name__} is an exception, not an error code", fix)
            else:
                checks.text(f"auto_retry_for[{at}]", cast("object", code))
        object.__setattr__(self, "auto_retry_for", tuple(str(code) for code in codes))
        if retries_ok and self.max_retries > 0 and not codes and not _named(checks, "auto_retry_for"):
            why = f"is empty, so none of the {self.max_retries} retries could ever happen"
            checks.add("auto_retry_for", why, 'list error codes, such as ["SMTP_DOWN", "WORKER_CRASHED"]')
        delays = _items(checks, "delays_ms", self.delays_ms, "give a list of milliseconds")
        object.__setattr__(self, "delays_ms", delays)
        one_only = self.strategy != RetryStrategy.INTERVALS
        if not 0 < len(delays) <= (1 if one_only else _MAX_LIST) and not _named(checks, "delays_ms"):
            wanted = "exactly one delay" if one_only else f"1 to {_MAX_LIST:_} delays"
            checks.add("delays_ms", f"has {len(delays)} entries", f"{self.strategy} takes {wanted}")
        lowest = 1 if self.strategy == RetryStrategy.EXPONENTIAL else 0
        for at, delay in enumerate(delays):
            checks.integer(f"delays_ms[{at}]", delay, lowest, MAX_DELAY_MS, unit="ms")
        if not _is_number(self.factor) or not 1 <= self.factor <= 100:
            checks.add("factor", f"must be a number from 1 to 100, got {shown(self.factor)}", "2 doubles every wait")
        else:
            # 3 and 3.0 must be stored alike: the text of a policy is part of a send's fingerprint.
            object.__setattr__(self, "factor", float(self.factor))
        checks.integer("cap_ms", self.cap_ms, 1, MAX_DELAY_MS, unit="ms")
        checks.finish()

    def allows(self, error_code: str | BuiltInCode) -> bool:
        """Is this error one that is tried again? Says nothing about the retries that are left."""
        return str(error_code) in self.auto_retry_for

    def check_codes(self, checks: Checks, mapper: Mapping[type[BaseException], str], default_code: str) -> None:
        """Add every listed code that no attempt can end with in an app with this mapping of exceptions.

        Not a part of the policy's own checks: a row may hold such a list, and then it only matches nothing.
        """
        possible = {*mapper.values(), default_code}
        mapped = {exception.__name__: code for exception, code in mapper.items()}
        for code in self.auto_retry_for:
            name = code.rpartition(".")[2]
            if code in possible:
                continue
            if name in mapped:
                why = f"{code!r} is the name of an exception; its error code is {mapped[name]!r}"
                checks.add("retry_policy", f"auto_retry_for: {why}", f"list {mapped[name]!r}")
            elif _is_exception_name(code):
                why = f"{code!r} is the name of an exception, not an error code, and can never match"
                fix = f'map it, AppConfig(exception_mapper={{{name}: "SOME_CODE"}}), and list that code'
                unmapped = f"an exception that is not mapped has the code {default_code!r}"
                checks.add("retry_policy", f"auto_retry_for: {why}", f"{fix}; {unmapped}")
            elif BUILT_IN_CODES.get(code) in _NEVER_OF_AN_ATTEMPT:
                why = f"no attempt ends with {code}, so it can never match"
                checks.add("retry_policy", f"auto_retry_for: {why}", "remove it")

    def delay_ms(self, retry_number: int, random: Callable[[], float]) -> int:
        """Wait before retry `retry_number` (1 is the first). `random` gives numbers in [0, 1)."""
        if retry_number < 1:
            raise ValueError(f"retries are counted from 1, got {retry_number}")
        delay = self._full_delay_ms(retry_number)
        match self.jitter:
            case Jitter.NONE:
                return delay
            case Jitter.FULL:
                return int(delay * random())
            case Jitter.EQUAL:
                half = delay // 2
                return delay - half + int(half * random())

    def _full_delay_ms(self, retry_number: int) -> int:
        if self.strategy is not RetryStrategy.EXPONENTIAL:
            return self.delays_ms[min(retry_number, len(self.delays_ms)) - 1]
        base = self.delays_ms[0]
        # By logarithm first: 2.0 ** 1100 is an OverflowError, not infinity.
        steps = min(retry_number, 10**9) - 1
        if steps * math.log(self.factor) >= math.log(self.cap_ms / base):
            return self.cap_ms
        return min(self.cap_ms, round(base * self.factor**steps))

    def to_json(self) -> dict[str, Any]:
        """Compact and in a fixed order, so that equal policies make equal text (and an equal `enqueue_sha`)."""
        data: dict[str, Any] = {
            "strategy": self.strategy.value,
            "max_retries": self.max_retries,
            "auto_retry_for": list(self.auto_retry_for),
            "delays_ms": list(self.delays_ms),
            "jitter": self.jitter.value,
        }
        if self.strategy is RetryStrategy.EXPONENTIAL:
            data |= {"factor": self.factor, "cap_ms": self.cap_ms}
        return data

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read what `to_json` wrote; anything else is a ValueError."""
        if not isinstance(data, Mapping):
            raise ValueError(f"a retry policy is a JSON object, got {shown(data)}")
        fields = dict(cast("Mapping[object, object]", data))
        wanted = {"strategy", "max_retries", "auto_retry_for", "delays_ms", "jitter"}
        if fields.get("strategy") == RetryStrategy.EXPONENTIAL:
            wanted |= {"factor", "cap_ms"}
        if fields.keys() != wanted:
            missing, unknown = wanted - fields.keys(), fields.keys() - wanted
            raise ValueError(
                f"a retry policy lacks {sorted(missing)} and does not know {shown(sorted(map(str, unknown)))}"
            )
        return cls(**cast("dict[str, Any]", fields))


_NEVER_OF_AN_ATTEMPT: Final = frozenset({*RetrievalCode, *OutcomeCode} - {OutcomeCode.TASK_TIMEOUT})
"""They say what became of a task or a workflow, or of the look for its result; a retry follows an attempt."""


def _is_exception_name(code: str) -> bool:
    """`TimeoutError`, `asyncio.TimeoutError`, `requests.ConnectionError`."""
    module, _, name = code.rpartition(".")
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return True
    return bool(module) and name.isidentifier() and name.endswith(("Error", "Exception"))


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    # Not through isfinite: an int beyond 10**308 would raise there.
    return isinstance(value, int) and not isinstance(value, bool)


def _milliseconds(checks: Checks, field: str, value: object, lowest: int) -> int:
    """1 after a problem: a stand-in that passes the later checks, so that one slip is reported once."""
    if not _is_number(value):
        checks.add(field, f"must be a number of seconds, got {shown(value)}", _FIX_SECONDS)
        return 1
    seconds = cast("float", value)
    if not 0 <= seconds <= MAX_DELAY_MS / 1000 or round(seconds * 1000) < lowest:
        checks.add(field, f"{shown(seconds)} seconds is out of range", _FIX_SECONDS)
        return 1
    return round(seconds * 1000)


def _items(checks: Checks, field: str, value: object, fix: str) -> tuple[Any, ...]:
    """A list's items; a lone string would otherwise count as a list of letters."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        checks.add(field, f"must be a list, got {shown(cast('object', value))}", fix)
        return ()
    return tuple(cast("Iterable[Any]", value))


def _named(checks: Checks, field: str) -> bool:
    return any(problem.where == f"{checks.subject}.{field}" for problem in checks.problems)
