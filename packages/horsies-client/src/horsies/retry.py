"""`RetryPolicy`: which errors are retried, how often and after which delay. No clock, no database.

A policy is stored in the task's row (`task_options`), so that the worker applies what the sender wrote. A row is
untrusted input: `from_json` checks everything, and no policy can overflow or wait for ever.
"""

import builtins
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any, Final, Self, cast

from horsies._checks import Checks, shown
from horsies._hints import known_settings
from horsies.errors import (
    BUILT_IN_CODES,
    BuiltInCode,
    ConfigurationError,
    ContractCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
)

MAX_RETRIES: Final = 1_000
MAX_CRASHES: Final = 1_000
MAX_DELAY_MS: Final = 30 * 24 * 3_600_000
"""30 days. Use a schedule for longer delays."""
_MAX_LIST: Final = 1_000
_FIX_SECONDS: Final = "give seconds from 0 (exponential: 0.001) to 2_592_000 (30 days)"

Retryable = str | BuiltInCode | type[Exception]
"""What `auto_retry_for` lists."""


class RetryStrategy(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"
    INTERVALS = "intervals"


class Jitter(StrEnum):
    """How a delay `d` is randomized, so that tasks that failed together do not retry together."""

    NONE = "none"
    """Exactly `d`."""
    FULL = "full"
    """A random delay in 0..d: spreads best, but a retry may follow at once."""
    EQUAL = "equal"
    """A random delay in d/2..d: half of the delay is certain, so a broken service gets a pause."""


@known_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Build a policy with `fixed`, `exponential`, `intervals` or `crashes`. Retry n (from 1) follows failed attempt
    n."""

    strategy: RetryStrategy
    """How the delays are made; the constructors set it."""

    max_retries: int
    """Retries after the first attempt. 0 to 1,000."""

    auto_retry_for: Sequence[Retryable]
    """The error codes that are retried, and the classes of exceptions, with their subclasses. Any other error ends the
    task. A task that is registered with the policy has the codes of these classes in their place."""

    delays_ms: Sequence[int]
    """The delay (fixed), the first delay (exponential), or all delays (intervals: the last one repeats)."""

    factor: float = 2.0
    """Exponential only: the factor between two delays."""

    cap_ms: int = 3_600_000
    """Exponential only: the longest delay."""

    jitter: Jitter = Jitter.NONE
    """How each delay is randomized."""

    max_crashes: int | None = None
    """After so many crashes of its process the task ends FAILED with CRASH_LIMIT; until then each one is retried, and
    uses up none of `max_retries`. None: a crash is retried only where `auto_retry_for` lists WORKER_CRASHED."""

    @classmethod
    def fixed(
        cls,
        seconds: float,
        max_retries: int,
        *,
        auto_retry_for: Sequence[Retryable] = (),
        jitter: Jitter | str = Jitter.NONE,
        max_crashes: int | None = None,
    ) -> Self:
        """The same delay before every retry."""
        delays = {"seconds": seconds}
        return cls._build(
            RetryStrategy.FIXED, delays, max_retries, auto_retry_for, jitter, max_crashes=max_crashes
        )  # fmt: skip

    @classmethod
    def crashes(
        cls,
        max_crashes: int,
        *,
        base_seconds: float = 1.0,
        factor: float = 2.0,
        cap_seconds: float = 3_600.0,
        jitter: Jitter | str = Jitter.EQUAL,
    ) -> Self:
        """Retry crashes of the process alone, and no error of the task; delays as in `exponential`."""
        return cls.exponential(
            base_seconds, 0, factor=factor, cap_seconds=cap_seconds, jitter=jitter, max_crashes=max_crashes
        )

    @classmethod
    def exponential(
        cls,
        base_seconds: float,
        max_retries: int,
        *,
        factor: float = 2.0,
        cap_seconds: float = 3_600.0,
        auto_retry_for: Sequence[Retryable] = (),
        jitter: Jitter | str = Jitter.EQUAL,
        max_crashes: int | None = None,
    ) -> Self:
        """`base_seconds`, then each delay `factor` times longer, up to `cap_seconds`."""
        return cls._build(
            RetryStrategy.EXPONENTIAL,
            {"base_seconds": base_seconds},
            max_retries,
            auto_retry_for,
            jitter,
            factor=factor,
            cap_seconds=cap_seconds,
            max_crashes=max_crashes,
        )

    @classmethod
    def intervals(
        cls,
        seconds: Sequence[float],
        *,
        max_retries: int | None = None,
        auto_retry_for: Sequence[Retryable] = (),
        jitter: Jitter | str = Jitter.NONE,
        max_crashes: int | None = None,
    ) -> Self:
        """The listed delays, one per retry. With a larger `max_retries` the last delay repeats."""
        checks = Checks("RetryPolicy")
        items = checks.listed("intervals", seconds, "write intervals([1, 5, 30])") or ()
        if not 0 < len(items) <= _MAX_LIST and not checks.problems:
            checks.add("intervals", f"has {len(items)} entries", f"list 1 to {_MAX_LIST:_} waits in seconds")
        checks.finish()
        listed = {f"intervals[{at}]": value for at, value in enumerate(items)}
        count = len(listed) if max_retries is None else max_retries
        if max_retries is None and max_crashes is not None and not auto_retry_for:
            count = 0  # the delays are those of crashes alone
        return cls._build(
            RetryStrategy.INTERVALS, listed, count, auto_retry_for, jitter, max_crashes=max_crashes
        )  # fmt: skip

    @classmethod
    def _build(
        cls,
        strategy: RetryStrategy,
        seconds: Mapping[str, object],
        max_retries: int,
        auto_retry_for: Sequence[Retryable],
        jitter: Jitter | str,
        *,
        factor: float = 2.0,
        cap_seconds: object = 3_600.0,
        max_crashes: int | None = None,
    ) -> Self:
        """Convert seconds to milliseconds, and report invalid ones together with all other problems."""
        checks = Checks("RetryPolicy")
        # Zero times a factor stays zero: an exponential policy with a base of 0 would be a hot loop.
        lowest = 1 if strategy is RetryStrategy.EXPONENTIAL else 0
        delays = [_milliseconds(checks, name, value, lowest) for name, value in seconds.items()]
        cap = _milliseconds(checks, "cap_seconds", cap_seconds, 1)
        settings: dict[str, Any] = {"strategy": strategy, "max_retries": max_retries, "factor": factor, "cap_ms": cap}
        settings |= {"auto_retry_for": auto_retry_for, "delays_ms": delays, "jitter": jitter}
        settings["max_crashes"] = max_crashes
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
        checks.integer("max_crashes", self.max_crashes, 1, MAX_CRASHES, optional=True)
        codes: tuple[Any, ...] = (
            checks.listed("auto_retry_for", self.auto_retry_for, 'write auto_retry_for=["SMTP_DOWN"]') or ()
        )
        for at, code in enumerate(codes):
            if not isinstance(code, type):
                checks.text(f"auto_retry_for[{at}]", cast("object", code))
            elif not issubclass(code, Exception):
                why = f"{code.__name__} is not a subclass of Exception"
                checks.add(f"auto_retry_for[{at}]", why, "list error codes and exceptions that a task may end with")
        object.__setattr__(
            self, "auto_retry_for", tuple(code if isinstance(code, type) else str(code) for code in codes)
        )
        if retries_ok and self.max_retries > 0 and not codes and not _named(checks, "auto_retry_for"):
            why = f"is empty, so none of the {self.max_retries} retries could ever happen"
            checks.add("auto_retry_for", why, 'list error codes, such as ["SMTP_DOWN", "WORKER_CRASHED"]')
        delays = checks.listed("delays_ms", self.delays_ms, "give a list of milliseconds") or ()
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
            # 3 and 3.0 must be stored alike: the text of a policy was part of older fingerprints.
            object.__setattr__(self, "factor", float(self.factor))
        checks.integer("cap_ms", self.cap_ms, 1, MAX_DELAY_MS, unit="ms")
        checks.finish()

    def allows(self, error_code: str | BuiltInCode) -> bool:
        """True if errors with this code are retried, regardless of the number of retries left."""
        return str(error_code) in self.auto_retry_for

    def may_rerun_crashed(self, attempt: int, budget: int) -> bool:
        """Whether another worker may run the task again when the process of this attempt has died."""
        if self.max_crashes is not None:
            return True
        return attempt <= budget and self.allows(OperationalErrorCode.WORKER_CRASHED)

    def check_codes(
        self, checks: Checks, mapper: Mapping[type[BaseException], str], default_code: str, scope: Mapping[str, object]
    ) -> None:
        """Report every listed code that no attempt can end with in an app with this mapping of exceptions. `scope` has
        the names of the task's module: an exception that the module knows was meant as an exception.

        Not a part of the policy's own checks: in a row such a code does no harm, it only matches nothing.
        """
        possible = {*mapper.values(), default_code}
        mapped = {exception.__name__: code for exception, code in mapper.items()}
        for code in map(str, self.auto_retry_for):
            name = code.rpartition(".")[2]
            if code in possible:
                continue
            if name in mapped:
                why = f"{code!r} is the name of an exception; its error code is {mapped[name]!r}"
                checks.add("retry_policy", f"auto_retry_for: {why}", f"list {mapped[name]!r}")
            elif _is_exception_name(code, scope):
                why = f"{code!r} is the name of an exception, not an error code, and can never match"
                fix = f"list the class itself, {name} without quotes"
                unmapped = f"an exception that is not mapped has the code {default_code!r}"
                checks.add("retry_policy", f"auto_retry_for: {why}", f"{fix}; {unmapped}")
            elif (built_in := BUILT_IN_CODES.get(code)) is not None and built_in not in _OF_ATTEMPTS:
                why = f"no attempt ends with {code}, so it can never match: {_why_never(built_in)}"
                checks.add("retry_policy", f"auto_retry_for: {why}", "remove it")

    def delay_ms(self, retry_number: int, random: Callable[[], float]) -> int:
        """The delay before retry `retry_number` (from 1). `random` returns numbers in [0, 1)."""
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
        # Compare logarithms first: 2.0 ** 1100 raises OverflowError.
        steps = min(retry_number, 10**9) - 1
        if steps * math.log(self.factor) >= math.log(self.cap_ms / base):
            return self.cap_ms
        return min(self.cap_ms, round(base * self.factor**steps))

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON data in a fixed order, so that equal policies have equal text. `TaskOptions`
        stores `max_crashes` beside it: a worker of an older release refuses a policy with a key that it does not know.
        """
        data: dict[str, Any] = {
            "strategy": self.strategy.value,
            "max_retries": self.max_retries,
            "auto_retry_for": list(map(str, self.auto_retry_for)),
            "delays_ms": list(self.delays_ms),
            "jitter": self.jitter.value,
        }
        if self.strategy is RetryStrategy.EXPONENTIAL:
            data |= {"factor": self.factor, "cap_ms": self.cap_ms}
        return data

    @classmethod
    def from_json(cls, data: object, *, max_crashes: Any = None) -> Self:
        """Read the output of `to_json`; raises ValueError for other data."""
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
        return cls(**cast("dict[str, Any]", fields), max_crashes=max_crashes)


_OF_ATTEMPTS: Final = frozenset(
    {
        OperationalErrorCode.UNHANDLED_EXCEPTION,
        OperationalErrorCode.WORKER_CRASHED,
        OperationalErrorCode.COMPLETION_NOT_COMMITTED,
        OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
        OutcomeCode.TASK_TIMEOUT,
        *ContractCode,
    }
)
"""The built-in codes with which an attempt can end so that a retry may follow."""


def _why_never(code: BuiltInCode) -> str:
    match code:
        case OperationalErrorCode.BROKER_ERROR | OperationalErrorCode.RESULT_DESERIALIZATION_ERROR | RetrievalCode():
            return "it says that a reader could not get a result"
        case OperationalErrorCode.WORKER_RESOLUTION_ERROR:
            return "such a task never starts, because no worker knows its name"
        case OperationalErrorCode.CRASH_LIMIT:
            return "a task with it has crashed as often as max_crashes allows"
        case OutcomeCode.TASK_SNOOZED:
            return "a snoozed task runs again by itself, and that is no retry"
        case OutcomeCode.TASK_CANCELLED | OutcomeCode.TASK_EXPIRED:
            return "such a task was ended for good"
        case OperationalErrorCode.TASK_EXCEPTION | OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED:
            return "it is reserved, and nothing ends with it"
        case _:
            return "a workflow or a node without a task ends with it"


def _is_exception_name(code: str, scope: Mapping[str, object]) -> bool:
    """`TimeoutError`, `requests.ConnectionError`; `SMTPException` where the scope or a module in it has that class."""
    module, _, name = code.rpartition(".")
    if module:
        places = [vars(sys.modules[module])] if module in sys.modules else []
        if name.isidentifier() and name.endswith(("Error", "Exception")):
            return True
    else:
        places = [scope, *(vars(known) for known in list(scope.values()) if isinstance(known, ModuleType))]
    known = [place.get(name) for place in (vars(builtins), *places)]
    return any(isinstance(one, type) and issubclass(one, BaseException) for one in known)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    # Not through isfinite: an int beyond 10**308 would raise there.
    return isinstance(value, int) and not isinstance(value, bool)


def _milliseconds(checks: Checks, field: str, value: object, lowest: int) -> int:
    """The value in milliseconds; after a problem 1, which passes the later checks: one report per mistake."""
    if not _is_number(value):
        checks.add(field, f"must be a number of seconds, got {shown(value)}", _FIX_SECONDS)
        return 1
    seconds = cast("float", value)
    if not 0 <= seconds <= MAX_DELAY_MS / 1000 or round(seconds * 1000) < lowest:
        checks.add(field, f"{shown(seconds)} seconds is out of range", _FIX_SECONDS)
        return 1
    return round(seconds * 1000)


def _named(checks: Checks, field: str) -> bool:
    return any(problem.where == f"{checks.subject}.{field}" for problem in checks.problems)
