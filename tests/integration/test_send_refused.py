"""Everything wrong that a producer can give: a typed error that says what and where, and no row.

The tables are the catalogue (FAULTS.md 2.5 and 2.6, by number). What looks dangerous and is fine is at the end.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from horsies import (
    AppConfig,
    ConfigurationError,
    CustomQueueConfig,
    Horsies,
    HorsiesError,
    PostgresConfig,
    QueueMode,
    SendErrorCode,
    TaskDefinitionError,
    TaskError,
    TaskResult,
    TaskSendError,
    UsageError,
)
from tests.support import factories, postgres
from tests.support.apps import UNREACHABLE, async_app_on, make_app
from tests.support.postgres import Database

PAST = datetime(2020, 1, 1, tzinfo=UTC)
NAIVE = datetime(2040, 1, 1)
FAR = datetime(9999, 12, 31, tzinfo=UTC)
NUL, SURROGATE = "a\0b", "a\ud800b"


@pytest.fixture(scope="module")
def shared_db() -> Iterator[Database]:
    """One for the whole catalogue: nothing in it may ever leave a row."""
    with postgres.database() as database:
        yield database


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def looped() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


TWICE = datetime(2040, 10, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
"""The clock shows this time twice."""


class PutBack(tzinfo):
    """A zone whose clock is put back by an hour about now: each time is shown twice, and `now` is the first or the
    second of both."""

    def __init__(self, *, now: int) -> None:
        self.now = now

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1 if moment is not None and moment.fold else 2)

    def fromutc(self, moment: datetime) -> datetime:
        return (moment + timedelta(hours=2 - self.now)).replace(fold=self.now)


class Tasks:
    """What the catalogue sends: `text`, `number`, `data`, and anything by name."""

    def __init__(self, app: Horsies) -> None:
        self.app = app

        @app.task("text")
        def text(value: str) -> TaskResult[None, TaskError]: ...

        @app.task("number")
        def number(value: float, rest: Decimal = Decimal(0)) -> TaskResult[None, TaskError]: ...

        @app.task("data")
        def data(value: Any) -> TaskResult[None, TaskError]: ...

        @app.task("old", good_until=datetime.now(UTC) + timedelta(milliseconds=50))
        def old() -> TaskResult[None, TaskError]: ...

        @app.task("brief", good_until=timedelta(seconds=60))
        def brief() -> TaskResult[None, TaskError]: ...

        self.text, self.number, self.data, self.old, self.brief = text, number, data, old, brief
        self.by_name = app.send_async

    def option(self, **options: Any) -> Awaitable[Any]:
        return self.text.with_options(**options).send_async("x")


Case = Callable[[Tasks], Awaitable[Any]]

SENDS: dict[str, tuple[Case, str]] = {
    # F86: NUL, and the halves of surrogate pairs
    "NUL in a text": (lambda t: t.text.send_async(NUL), "parameter 'value': the text contains the NUL character"),
    "NUL in a key": (lambda t: t.data.send_async({NUL: 1}), "a key contains the NUL character"),
    "NUL deep inside": (lambda t: t.data.send_async({"a": [0, {"b": NUL}]}), r"at value\.a\[1\]\.b: the text"),
    "NUL, by name": (lambda t: t.by_name("unknown", x=NUL), "parameter 'x': the text contains the NUL character"),
    "NUL, among many": (lambda t: t.text.send_many_async([("x",), (NUL,)]), "send_many item 1: "),
    "lone surrogate": (lambda t: t.text.send_async(SURROGATE), "lone surrogate U\\+D800"),
    "lone surrogate, by name": (lambda t: t.by_name("unknown", SURROGATE), "lone surrogate U\\+D800"),
    # F89: numbers that JSON has not
    "NaN": (lambda t: t.number.send_async(float("nan")), "parameter 'value': NaN has no JSON form"),
    "Infinity": (lambda t: t.number.send_async(float("inf")), "parameter 'value': Infinity has no JSON form"),
    "-Infinity in data": (lambda t: t.data.send_async([1, float("-inf")]), r"at value\[1\]: Infinity has no JSON form"),
    "1e400": (lambda t: t.number.send_async(1e400), "Infinity has no JSON form"),
    "Decimal NaN": (lambda t: t.number.send_async(1, Decimal("NaN")), "parameter 'rest'"),
    "NaN, by name": (lambda t: t.by_name("unknown", x={"y": float("nan")}), "at x.y: NaN has no JSON form"),
    "int of 5,000 digits": (lambda t: t.data.send_async(10**5_000), "no reader accepts it"),
    # F90, F91: size and shape
    "over the size limit": (lambda t: t.text.send_async("x" * 9_000_000), "the limit is 8,388,608"),
    "50 MB": (lambda t: t.text.send_async("x" * 50_000_000), "50,000,0.. bytes of JSON in all"),
    "too large, by name": (lambda t: t.by_name("unknown", x="x" * 9_000_000), "the limit is 8,388,608"),
    "800,000 keys": (lambda t: t.data.send_async(dict.fromkeys(map(str, range(800_000)), 1)), "the limit is"),
    "100,000 levels": (lambda t: t.data.send_async(nested(100_000)), "nested deeper than 200 levels"),
    "100,000 levels, by name": (lambda t: t.by_name("unknown", x=nested(100_000)), "nested deeper than 200 levels"),
    "contains itself": (lambda t: t.data.send_async(looped()), "the value contains itself"),
    "key that is no text": (lambda t: t.data.send_async({1: "x"}), "a key is an int; keys of JSON objects are"),
    "no JSON form": (lambda t: t.data.send_async(object()), "it cannot be written as JSON"),
    # arguments that do not fit the signature
    "wrong type": (lambda t: t.text.send_async(5), "parameter 'value'"),  # type: ignore[arg-type]
    "missing": (lambda t: t.text.send_async(), "missing required argument 'value'"),  # type: ignore[call-arg]
    "unexpected": (lambda t: t.text.send_async("x", oops=1), "unexpected keyword argument 'oops'"),  # type: ignore[call-arg]
    "too many": (lambda t: t.text.send_async("x", "y"), "takes 1 positional argument but 2 were given"),  # type: ignore[call-arg]
    "twice": (lambda t: t.text.send_async("x", value="y"), "multiple values for argument 'value'"),  # type: ignore[misc]
    # F96: queue names
    "queue of 53": (lambda t: t.option(queue_name="q" * 53), "is not a queue name"),
    "queue with quotes": (lambda t: t.option(queue_name='x"; DROP TABLE horsies_tasks; --'), "is not a queue name"),
    "queue with newline": (lambda t: t.option(queue_name="default\n"), "is not a queue name"),
    "queue with NUL": (lambda t: t.option(queue_name="default\0"), "is not a queue name"),
    "queue with emoji": (lambda t: t.option(queue_name="🐎"), "is not a queue name"),
    "queue empty": (lambda t: t.option(queue_name=""), "is not a queue name"),
    "queue in upper case": (lambda t: t.option(queue_name="DEFAULT"), "'DEFAULT' is not a queue of this app"),
    "queue of another type": (lambda t: t.option(queue_name=5), "is not a queue name"),
    # F97: names, ids, deadlines
    "name of 256": (lambda t: t.by_name("n" * 256), "task_name: has 256 characters"),
    "name empty": (lambda t: t.by_name(""), "task_name: is empty"),
    "name with NUL": (lambda t: t.by_name(NUL), "task_name: contains a NUL"),
    "name with a surrogate": (lambda t: t.by_name(SURROGATE), "task_name: contains a lone surrogate"),
    "name of a line break": (lambda t: t.by_name("\n"), "task_name: .* is blank or not printable"),
    "name with an escape": (lambda t: t.by_name("a\x1b[2J"), "task_name: .* is blank or not printable"),
    "name of blanks": (lambda t: t.by_name(" "), "task_name: ' ' .*is blank or not printable"),
    "name of another type": (lambda t: t.by_name(["x"]), "task_name: must be a string"),  # type: ignore[arg-type]
    "name that is a task": (lambda t: t.by_name(t.text, "x"), "task_name: must be a string"),  # type: ignore[arg-type]
    "id that is no UUID": (lambda t: t.option(task_id="order-7"), r"(?s)'order-7' .* is not a UUID.*str\(uuid.uuid5\("),
    "id of 37": (lambda t: t.option(task_id=str(uuid.uuid4()) + "0"), "is not a UUID"),
    "id in upper case": (lambda t: t.option(task_id=str(uuid.UUID(int=0xAB)).upper()), "canonical form"),
    "id without dashes": (lambda t: t.option(task_id=uuid.uuid4().hex), "canonical form"),
    "id as UUID": (lambda t: t.option(task_id=uuid.uuid4()), "canonical form"),
    "id of a megabyte": (lambda t: t.option(task_id="f" * 1_000_000), r"'fffff.{60,90}\.\.\. .str. is not a UUID"),
    "deadline naive": (lambda t: t.option(good_until=NAIVE), "good_until: 2040-01-01T00:00:00 has no time zone"),
    "deadline past": (lambda t: t.option(good_until=PAST), "good_until: 2020-01-01T00:00:00.00:00 is in the past"),
    "deadline in year 9999": (lambda t: t.option(good_until=FAR), "good_until: .* is out of range"),
    "deadline 'infinity'": (lambda t: t.option(good_until="infinity"), "good_until: is a str"),
    "deadline now": (lambda t: t.option(good_until=timedelta(0)), "good_until: 0:00:00 is not between 0 and ten years"),
    "deadline in 100 years": (lambda t: t.option(good_until=timedelta(days=36_500)), "good_until: .* ten years"),
    "registered deadline passed": (lambda t: after(0.1, t.old.send_async), "good_until: .* is in the past"),
    # times
    "delay negative": (lambda t: t.text.schedule_async(-5, "x"), "delay: -5 seconds is not between 0 and ten years"),
    "delay NaN": (lambda t: t.text.schedule_async(float("nan"), "x"), "a delay of nan seconds is out of range"),
    "delay endless": (lambda t: t.text.schedule_async(float("inf"), "x"), "a delay of inf seconds is out of range"),
    "delay of 5,000 digits": (lambda t: t.text.schedule_async(10**5_000, "x"), "is out of range"),
    "delay of 100 years": (lambda t: t.text.schedule_async(timedelta(days=36_500), "x"), "delay: .* ten years"),
    "delay of another type": (lambda t: t.text.schedule_async("5", "x"), "a delay is a number of seconds"),  # type: ignore[arg-type]
    "delay True": (lambda t: t.text.schedule_async(True, "x"), "a delay is a number of seconds"),
    "eta naive": (lambda t: t.text.schedule_async(NAIVE, "x"), "eta: .* has no time zone"),
    "eta in year 9999": (lambda t: t.text.schedule_async(FAR, "x"), "eta: .* is out of range"),
    "eta in year 1": (lambda t: t.text.schedule_async(datetime.min.replace(tzinfo=UTC), "x"), "eta: .* out of range"),
    "delay beyond the deadline": (
        lambda t: t.option(delay=60, good_until=timedelta(seconds=60)),
        "good_until: 0:01:00 will have passed when the task may start .0:01:00.: it would expire without a run",
    ),
    "delay beyond a moment": (lambda t: t.option(delay=90, good_until=soon(60)), "it would expire without a run"),
    "eta beyond the deadline": (lambda t: t.option(eta=soon(90), good_until=soon(60)), "it would expire without a run"),
    "eta beyond a span": (
        lambda t: t.option(eta=soon(90), good_until=timedelta(seconds=60)), "it would expire without a run",
    ),
    # in one zone where the clock is put back, the wall clocks of two times say nothing about their order
    "eta in the second hour, deadline in the first": (
        lambda t: t.option(eta=TWICE.replace(fold=1), good_until=TWICE.replace(minute=45)),
        "it would expire without a run",
    ),
    "deadline half an hour ago, before the clock was put back": (
        lambda t: t.option(good_until=(datetime.now(PutBack(now=1)) + timedelta(minutes=30)).replace(fold=0)),
        "good_until: .* is in the past",
    ),
    "schedule beyond the task's own deadline": (lambda t: t.brief.schedule_async(60), "it would expire without a run"),
    "many beyond the deadline": (
        lambda t: t.brief.with_options(delay=60).send_many_async([()]), "it would expire without a run",
    ),
    "by name beyond the deadline": (
        lambda t: t.app.with_options(delay=60).send_async("brief"), "it would expire without a run",
    ),
    "eta and delay": (lambda t: t.option(delay=5, eta=FAR.replace(year=2040)), "eta: cannot be combined with delay"),
    # the rest of the options
    "priority 0": (lambda t: t.option(priority=0), "priority: 0 is out of range"),
    "priority 101": (lambda t: t.option(priority=101), "priority: 101 is out of range"),
    "priority True": (lambda t: t.option(priority=True), "priority: must be a whole number"),
    "priority 1.5": (lambda t: t.option(priority=1.5), "priority: must be a whole number"),
    "key empty": (lambda t: t.option(unique_key=""), "unique_key: .* is not a text of 1 to 255 characters"),
    "key empty, remedy": (lambda t: t.option(unique_key=""), "give a text, or None for no key"),
    "key of 256": (lambda t: t.option(unique_key="k" * 256), "unique_key: .* is not a text of 1 to 255 characters"),
    "key of 256, remedy": (lambda t: t.option(unique_key="k" * 256), "use a shorter key, or its hash"),
    "key with NUL": (lambda t: t.option(unique_key=NUL), "unique_key: holds a character that PostgreSQL cannot"),
    "key with NUL, remedy": (lambda t: t.option(unique_key=NUL), "leave that character out, or use a hash"),
    "key with a surrogate": (lambda t: t.option(unique_key=SURROGATE), "unique_key: holds a character"),
    "key of another type": (lambda t: t.option(unique_key=5), "unique_key: 5 is not a text"),
    "key of another type, remedy": (lambda t: t.option(unique_key=5), r"give a text, such as str\(...\)"),
    "everything at once": (lambda t: t.option(priority=0, good_until=PAST, unique_key="", task_id="x"), "4 problems"),
    # many
    "many that are one number": (lambda t: t.text.send_many_async(5), "not an int: give a list of calls"),  # type: ignore[arg-type]
    "many that are None": (lambda t: t.text.send_many_async(None), "not None: give a list of calls"),  # type: ignore[arg-type]
    "many that are one call": (lambda t: t.text.send_many_async(t.text.call("x")), "give a list of calls"),  # type: ignore[arg-type]
    "an item that is no call": (lambda t: t.text.send_many_async(["x"]), "item 0 is a str: give task.call"),  # type: ignore[list-item]
    "an item with a wrong value": (lambda t: t.text.send_many_async([("x",), {"value": 5}]), "send_many item 1: "),
    "many with one key": (
        lambda t: t.text.with_options(unique_key="k").send_many_async([("x",), ("y",)]),
        "send_many cannot give several tasks one task_id or unique_key",
    ),
    "one of many with a key": (
        lambda t: t.text.with_options(unique_key="k").send_many_async([("x",)]),
        "send_many cannot give several tasks one task_id or unique_key",
    ),
    "many with one id": (
        lambda t: t.text.with_options(task_id=str(uuid.uuid4())).send_many_async([("x",)]),
        "send_many cannot give several tasks one task_id or unique_key",
    ),
}  # fmt: skip


async def after(seconds: float, work: Callable[[], Awaitable[Any]]) -> Any:
    await asyncio.sleep(seconds)
    return await work()


@pytest.mark.parametrize("name", SENDS)
async def test_a_bad_send_is_refused_and_writes_nothing(shared_db: Database, name: str) -> None:
    send, told = SENDS[name]
    async with async_app_on(shared_db) as app:
        with pytest.raises(TaskSendError, match=told) as raised:
            await send(Tasks(app))
    error = raised.value
    assert error.code is SendErrorCode.VALIDATION_FAILED
    assert str(error).startswith("VALIDATION_FAILED: ")
    assert len(str(error)) < 2_000
    assert not error.retryable
    with pytest.raises(TaskSendError) as again:
        await error.retry_async()
    assert again.value is error
    assert factories.count(shared_db) == 0


async def test_a_deadline_after_its_eta_is_good_whatever_the_wall_clock_shows(db: Database) -> None:
    async with async_app_on(db) as app:
        await Tasks(app).option(eta=TWICE, good_until=TWICE.replace(minute=15, fold=1))
        half_past = (datetime.now(PutBack(now=0)) - timedelta(minutes=30)).replace(fold=1)
        await Tasks(app).option(good_until=half_past)
    assert factories.count(db) == 2


async def test_a_foreign_object_as_connection(shared_db: Database) -> None:
    async with async_app_on(shared_db) as app:
        with pytest.raises(UsageError, match=r"connection= does not understand builtins\.object: give an asyncpg"):
            await Tasks(app).text.with_options(connection=object()).send_async("x")
    assert factories.count(shared_db) == 0


# -- before there is anything to send ------------------------------------------------------------


def returns_none(value: int) -> None: ...
def returns_value(value: int) -> int: ...
def generates(value: int) -> Iterator[int]:
    yield value


def untyped(value, other=1): ...  # type: ignore[no-untyped-def]
def class_argument(value: object) -> TaskResult[None, TaskError]: ...
def handle_argument(value: Callable[[], None]) -> TaskResult[None, TaskError]: ...


def decorated_twice(app: Horsies) -> None:
    @app.task("second")
    @app.task("first")
    def task(value: int) -> TaskResult[None, TaskError]: ...


def decorated_bare(app: Horsies) -> None:
    @app.task  # type: ignore[arg-type]
    def task(value: int) -> TaskResult[None, TaskError]: ...


def declared_bare(app: Horsies) -> None:
    @app.declare  # type: ignore[arg-type]
    def task(value: int) -> TaskResult[None, TaskError]: ...


DEFINITIONS: dict[str, tuple[Callable[[Horsies], Any], str]] = {  # F98, F97, F96
    "returns None": (lambda app: app.task("t")(returns_none), "TaskResult"),  # type: ignore[call-overload]
    "returns a bare value": (lambda app: app.task("t")(returns_value), "TaskResult"),  # type: ignore[call-overload]
    "a generator": (lambda app: app.task("t")(generates), "generator"),  # type: ignore[call-overload]
    "a lambda": (lambda app: app.task("t")(lambda: TaskResult(ok=1)), "a lambda has no annotations"),
    "no annotations": (lambda app: app.task("t")(untyped), "annotation"),
    "an argument that cannot travel": (lambda app: app.task("t")(handle_argument), "parameter 'value'"),
    "not a function": (lambda app: app.task("t")(5), "function"),  # type: ignore[call-overload]
    "decorated twice": (decorated_twice, "it is a task already"),
    "decorated without parentheses": (decorated_bare, r'@app.task needs a name\n    fix: write @app.task\("task"\)'),
    "declared without parentheses": (declared_bare, "@app.declare needs a name"),
    "name of 256": (lambda app: app.task("n" * 256)(class_argument), "has 256 characters"),
    "name empty": (lambda app: app.task("")(class_argument), "name: is empty"),
    "name with NUL": (lambda app: app.task(NUL)(class_argument), "name: contains a NUL"),
    "unknown queue": (lambda app: app.task("t", queue_name="mail")(class_argument), "'mail' is not a queue"),
    "wrong options": (
        lambda app: app.task("t", timeout_ms=0, priority=0, good_until=PAST, run_ahead="no")(class_argument),  # type: ignore[arg-type]
        "priority: .*timeout_ms: .*run_ahead: .*good_until: ",
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_bad_definition_is_refused_with_its_place(name: str) -> None:
    define, told = DEFINITIONS[name]
    app = make_app(UNREACHABLE)
    with pytest.raises(TaskDefinitionError, match=told) as raised:
        define(app)
    assert f"{__file__}:" in str(raised.value) or name == "not a function"
    assert "fix: " in str(raised.value)
    assert {task.name for task in app.registry} <= {"first"}


@pytest.mark.parametrize(
    "queue", ["q" * 53, 'x"; DROP TABLE horsies_tasks; --', "a\n", "a\0", "🐎", "", "a b", None, 5]
)
def test_a_bad_queue_name_is_refused_in_the_configuration(queue: Any) -> None:
    """F96."""
    with pytest.raises(ConfigurationError, match="is not a queue name"):
        AppConfig(
            PostgresConfig(UNREACHABLE), queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name=queue)]
        )


# -- dangerous to look at, and fine --------------------------------------------------------------


INJECTIONS = [
    "'; DROP TABLE horsies_tasks; --", '"; DROP TABLE horsies_tasks; --', "%s %(p1)s {} {0} $1 %", "\\", "_%_",
    "[red]x[/] \x1b[31m \x1b]0;owned\x07", "{\"__class__\": \"os.system\"}", "\u202eevil", "🐎" * 30, "\\u0000",
]  # fmt: skip


@pytest.mark.parametrize("text", INJECTIONS)
async def test_text_is_data_wherever_it_stands(db: Database, text: str) -> None:
    """F99: as argument, as key, as name, as unique key; every value is bound. No task can have a name that is not
    printable."""
    name = text if text.isprintable() else "of another app"
    async with async_app_on(db) as app:
        if name != text:
            with pytest.raises(TaskSendError, match=r"send\.task_name.*not printable"):
                await app.send_async(text)
        handles = [
            await Tasks(app).text.with_options(unique_key=text).send_async(text),
            await app.send_async(name, text, **{text: {text: text}}),
            *await Tasks(app).data.send_many_async([({text: [text]},)]),
        ]
        assert (await handles[0].get_async(timeout_ms=0)).err_value.error_code == "WAIT_TIMEOUT"
    rows = [factories.read(db, handle.task_id) for handle in handles]
    assert (rows[0]["unique_key"], rows[1]["task_name"]) == (text, name)
    assert [db.value("SELECT kwargs::jsonb ->> 'value' FROM horsies_tasks WHERE id = %s", rows[0]["id"])] == [text]
    assert db.value("SELECT args::jsonb ->> 0 FROM horsies_tasks WHERE id = %s", rows[1]["id"]) == text
    assert factories.count(db) == 3


async def test_class_tags_are_inert(db: Database) -> None:
    """F100: what a payload says about its own type is a value like any other."""
    tagged = {"__class__": "os.system", "__reduce__": ["os.system", ["true"]], "py/object": "subprocess.Popen"}
    async with async_app_on(db) as app:
        handle = await Tasks(app).data.send_async(tagged)
        factories.finish(db, handle.task_id, tagged)
        assert (await handle.get_async(timeout_ms=10_000)).is_err()  # its type says None
        assert (await app.handle(handle.task_id).get_async(timeout_ms=0)).is_err()

        @app.task("echo")
        def echo(value: dict[str, Any]) -> TaskResult[dict[str, Any], TaskError]: ...

        echoed = await echo.send_async(tagged)
        factories.finish(db, echoed.task_id, tagged)
        assert (await echoed.get_async(timeout_ms=10_000)).ok_value == tagged


@pytest.mark.parametrize("value", [-0.0, 2**64, 10**400, 0.1, 1e308, 5e-324, "\x7f\x1f", "\U0010ffff", "a" * 1_100_000])
async def test_odd_values_arrive_exactly(db: Database, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    """F89, F90: large numbers are kept exact; a megabyte is taken, with a word in the log."""
    async with async_app_on(db) as app:
        task = Tasks(app).data
        handle = await task.send_async(value)
        row = factories.read(db, handle.task_id)
        codec = app.registry.get("data").codec  # type: ignore[union-attr]
        _, kwargs = codec.decode_call(row["args"], row["kwargs"])
    assert repr(kwargs["value"]) == repr(value)
    assert type(kwargs["value"]) is type(value)


def test_every_refusal_is_one_of_ours() -> None:
    assert issubclass(TaskSendError, HorsiesError)
    assert issubclass(TaskDefinitionError, HorsiesError)
    assert issubclass(ConfigurationError, HorsiesError)
