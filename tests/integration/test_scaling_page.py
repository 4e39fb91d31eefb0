"""docs/operations/scaling.md: its table of SQL features is what the SQL uses."""

from pathlib import Path

from tests.support.sql_features import ROOT, table, uses

PAGE = ROOT / "docs" / "operations" / "scaling.md"


def test_the_page_lists_what_our_sql_uses() -> None:
    text = PAGE.read_text()
    shown = text.split("<!-- sql features -->\n")[1].split("<!-- end -->")[0].strip().splitlines()
    assert shown == table(), "write it anew: python -m tests.support.sql_features"


def test_every_feature_is_found_somewhere() -> None:
    assert [name for name, where in uses().items() if not where] == []
    assert "`horsies_task_notify_trigger`" in uses()["statement triggers with a transition table"]
    assert "`database/claim.sql`" in uses()["`SKIP LOCKED`"]


def test_files_that_the_page_names_exist() -> None:
    for name in ("horsies/_pg/listener.py", "horsies_worker/claim/duty.py"):
        assert name in PAGE.read_text()
        assert [*Path(ROOT / "packages").glob(f"*/src/{name}")]
