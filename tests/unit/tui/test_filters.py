"""A filter as typed, and what each section of a list makes of it."""

import pytest

from horsies import TaskStatus, WorkflowStatus
from horsies_tui.data.filters import Query


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Query()),
        ("receipt", Query(name="receipt")),
        ("Queue:Mail name:Send error:SMTP id:01AB", Query(queue="Mail", name="send", error="smtp", id="01ab")),
        ("status:failed,run", Query(statuses=frozenset({"FAILED", "RUNNING"}))),
        ("s:waiting is:done", Query(statuses=frozenset({"PENDING", "COMPLETED"}))),
        ("queue:", Query()),
        ("meta:tenant=Acme meta:n=5", Query(meta=(("n", "5"), ("tenant", "Acme")))),
        ('meta:url="a=b c" meta:empty=', Query(meta=(("empty", ""), ("url", "a=b c")))),
        ("a\0b", Query(name="ab")),
    ],
)
def test_what_is_typed_is_what_is_meant(text: str, wanted: Query) -> None:
    assert Query.parse(text) == (wanted, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("colour:red", "colour:"), ("status:gone", "gone"), ("meta:tenant", "write meta:tenant=acme"),
        ("meta:=acme", "write meta:tenant=acme"), ("meta:a=1 meta:a=2", "meta:a has two values"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_told(text: str, problem: str) -> None:
    assert problem in Query.parse(text)[1][0]


@pytest.mark.parametrize(
    "text",
    [
        "queue:mail",
        "status:failed,pending name:x",
        "id:0192 worker:w error:smtp",
        'queue:"a b" x',
        'meta:a=1 meta:"b=x y"',
    ],
)
def test_the_text_of_a_filter_is_the_filter(text: str) -> None:
    query = Query.parse(text)[0]
    assert Query.parse(str(query))[0] == query


def test_states_that_other_conditions_rule_out_are_not_looked_at() -> None:
    assert TaskStatus.PENDING not in Query(worker="w").tasks
    assert Query(error="smtp").tasks <= frozenset(TaskStatus) - {TaskStatus.PENDING, TaskStatus.RUNNING}
    assert Query(statuses=frozenset({"PAUSED"})).tasks == frozenset()
    assert Query(statuses=frozenset({"PAUSED", "FAILED"})).workflows == {WorkflowStatus.PAUSED, WorkflowStatus.FAILED}
    assert Query.parse("status:failed")[0].filter.has_code
    assert not Query().filter.has_code


def test_metadata_is_a_condition_of_the_clients_filter() -> None:
    query = Query.parse("meta:tenant=acme")[0]
    assert query.filter.metadata == {"tenant": "acme"}
    assert query.has_text
    assert not query.is_empty


def test_a_status_is_switched_on_and_off() -> None:
    assert Query().toggled("FAILED").toggled("FAILED") == Query()


def test_a_list_is_narrowed_and_widened_again() -> None:
    narrow = Query(statuses=frozenset({"FAILED"})).narrowed("queue", "mail").narrowed("name", "Send Receipt")
    assert str(narrow) == 'status:failed queue:mail name:"send receipt"'
    assert Query.parse(str(narrow)) == (narrow, [])
    assert narrow.narrowed("name", "Send Receipt").narrowed("queue", "media") == Query(
        statuses=frozenset({"FAILED"}), queue="media"
    )
