"""Metadata on its way through real workers: to the task, to the tasks that it sends, and to every node of a run."""

from pathlib import Path

from tests.support import seams_app
from tests.support.postgres import Database
from tests.support.workers import ended

LONG_MS = 20_000


def test_it_reaches_tasks_their_children_and_all_nodes(db: Database, tmp_path: Path) -> None:
    process = seams_app.start(db, tmp_path, middleware=[], propagate_metadata=["tenant"])
    with ended(process), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        app = tasks.app
        assert tasks.metadata.send().get(LONG_MS).ok == {"team": "billing", "level": 1}
        sender = tasks.metadata.with_options(metadata={"tenant": "acme", "level": 7})
        assert sender.send().get(LONG_MS).ok == {"team": "billing", "level": 7, "tenant": "acme"}

        parent = tasks.metadata_of_child.with_options(metadata={"tenant": "acme", "secret": 1})
        child = app.handle(parent.send().get(LONG_MS).ok)
        assert child.get(LONG_MS).ok == {"team": "mail", "level": 3, "tenant": "acme"}

        inner = app.workflow("inner", [tasks.metadata.node(node_id="deep")()])
        first = tasks.metadata.node(node_id="first")()
        after = tasks.child.node(node_id="after", waits_for=[first])()
        listed = tasks.spread.node(node_id="listed")(2)
        items = tasks.item_metadata.node(node_id="items").map(listed)
        nested = inner.node(node_id="nested", waits_for=[first])
        spec = app.workflow("all", [first, after, listed, items, nested])
        run = spec.start(metadata={"tenant": "acme", "level": 9})
        run.get(LONG_MS)
        assert run.result_for(first).ok == {"team": "billing", "level": 9, "tenant": "acme"}
        assert run.result_for(after).ok == {"team": "mail", "level": 9, "tenant": "acme"}
        assert run.result_for(items).ok == [{"x": x, "tenant": "acme", "level": 9} for x in (0, 1)]
        deep = db.value("SELECT result::json -> 'ok' FROM horsies_workflow_tasks WHERE node_id = 'deep'")
        assert deep == {"team": "billing", "level": 9, "tenant": "acme"}
