"""`horsies worker --metrics-port`: the figures equal what happened, and the probes tell the state of the worker."""

import signal
import socket
import sys
import textwrap
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from horsies import gather
from horsies_worker.exit_codes import ExitCode
from horsies_worker.metrics.worker import METRICS, type_of
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.event_app import BLOCK_VARIABLE, SLOW_START_VARIABLE, Observed, observed, tasks_on
from tests.support.exporters import LOCAL, ask
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import describe, ended, start_worker

LONG_MS = 60_000
ENDED = "horsies_worker_attempts_ended_total"


def of(one: Observed, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one metric, by the values of its labels in the order of their names."""
    found = one.scrape()
    return {key[1:]: value for key, value in found.items() if isinstance(key, tuple) and key[0] == name}


def families(one: Observed, accept: str) -> dict[str, Any]:
    """The page as Prometheus asks for it, read by the parser of that format."""
    connection = HTTPConnection(LOCAL, one.port, timeout=20)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    kind = response.headers["Content-Type"]
    assert kind.startswith("application/openmetrics-text" if "openmetrics" in accept else "text/plain")
    reader = openmetrics if "openmetrics" in accept else parser
    return {family.name: family for family in reader.text_string_to_metric_families(text)}


# -- figures -------------------------------------------------------------------------------------


def test_figures_of_every_outcome(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, processes=3) as one:
        many = tasks.add.send_many([(n, n) for n in range(200)])
        others = [
            tasks.odd.send("none"), tasks.sleep_briefly.send(60.0), tasks.die.send(int(signal.SIGKILL)),
            tasks.flaky.send(3), tasks.progress.send(str(tmp_path / "never")),
        ]  # fmt: skip
        # its user code runs: a task that is cancelled before leaves no attempt
        eventually(lambda: others[-1].info().progress is not None)
        others[-1].cancel()
        gather([*many, *others], timeout_ms=LONG_MS)
        eventually(lambda: sum(of(one, ENDED).values()) == 207)
        # labels in the order of their names: outcome, queue, task
        assert of(one, ENDED) == {
            ("ok", "default", "add"): 200, ("error", "default", "odd"): 1, ("timeout", "default", "sleep_briefly"): 1,
            ("crashed", "default", "die"): 1, ("error", "default", "flaky"): 2, ("ok", "default", "flaky"): 1,
            ("cancelled", "default", "progress"): 1,
        }  # fmt: skip
        # the ledger in the database has the same: attempts by outcome
        ledger = dict(db.execute("SELECT outcome, count(*)::int FROM horsies_task_attempts GROUP BY 1"))
        assert ledger == {"COMPLETED": 201, "FAILED": 5, "WORKER_FAILURE": 1}
        assert of(one, "horsies_worker_retries_total") == {("default", "flaky"): 2}
        started = of(one, "horsies_worker_attempts_started_total")
        # a task that came back unstarted was counted then, and again when it ran
        assert 207 <= sum(started.values()) <= 207 + one.scrape()["horsies_worker_returned_tasks_total"]
        found = eventually(lambda: _settled(one))
        assert found["horsies_worker_claimed_tasks_total"] == found["horsies_worker_claim_batch_size_sum"] >= 207
        assert found["horsies_worker_claims_total"] == found["horsies_worker_claim_batch_size_count"]
        assert found["horsies_worker_child_exits_total", "crashed"] == 1
        assert found["horsies_worker_child_exits_total", "start_failed"] == 0  # present from the start
        assert found["horsies_worker_run_seconds_count", "add"] == 200
        assert found["horsies_worker_run_seconds_count", "sleep_briefly"] == 1
        assert found["horsies_worker_run_seconds_sum", "sleep_briefly"] > 0.1
        assert found["horsies_worker_queue_wait_seconds_count", "default"] == 207
        assert found["horsies_worker_unwritten_results"] == found["horsies_worker_running_tasks"] == 0
        assert found["horsies_worker_child_memory_bytes"] > 1 << 20
        assert found["horsies_worker_database_connected"] == 1
        assert found["process_resident_memory_bytes"] > 1 << 20
        assert {value for key, value in found.items() if key[0] == "horsies_worker_info"} == {1}
        _check_page(families(one, "text/plain"))
        _check_page(families(one, "application/openmetrics-text; version=1.0.0"))


def _settled(one: Observed) -> Any:
    """A scrape after the child that died was replaced, and the last result was written."""
    found = one.scrape()
    is_settled = found["horsies_worker_children", "ready"] == 3 and found["horsies_worker_running_tasks"] == 0
    return found if is_settled and found["horsies_worker_unwritten_results"] == 0 else None


def _check_page(found: dict[str, Any]) -> None:
    """Every metric is there with its type and its labels, and histograms are cumulative."""
    for metric in METRICS:
        family = found[metric.name.removesuffix("_total")]
        assert family.type == type_of(metric)
        assert family.documentation == metric.help
        labels = {tuple(sorted(set(sample.labels) - {"le"})) for sample in family.samples}
        assert labels <= {tuple(sorted(metric.labels))}, metric.name
        if family.type != "histogram":
            continue
        series: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        counts: dict[tuple[str, ...], float] = {}
        for sample in family.samples:
            key = tuple(sample.labels[name] for name in metric.labels)
            if sample.name.endswith("_bucket"):
                series.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        assert series
        for key, buckets in series.items():
            assert buckets == sorted(buckets)
            assert [count for _, count in buckets] == sorted(count for _, count in buckets)
            assert buckets[-1] == (float("inf"), counts[key])


def test_labels_are_those_of_registered_tasks(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path) as one:
        db.execute(
            "INSERT INTO horsies_tasks (id, task_name)"
            " SELECT gen_random_uuid(), 'no-' || i FROM generate_series(1, 50) i"
        )
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        eventually(lambda: of(one, ENDED))
        assert set(of(one, ENDED)) == {("ok", "default", "add")}
        assert "no-" not in ask(one.port, "/metrics")[1]
        db.execute("DELETE FROM horsies_tasks WHERE task_name LIKE 'no-%'")


def test_counters_go_on_when_the_process_continues_as_another_worker(db: Database, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"recovery": {"worker_state_interval_ms": 1_000}}
    with (
        tasks_on(db, **quick) as tasks,
        ChaosProxy(db.url) as proxy,
        observed(proxy.url, tmp_path, processes=1, **quick) as one,
    ):
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        first = one.process.worker_id
        eventually(lambda: db.value("SELECT count(lock_key) FROM horsies_worker_instances") == 1)
        with observed(db, tmp_path, processes=1, **quick) as other:
            proxy.set(Mode.CUT)
            other.wait_for("horsies_worker_declared_dead_total", 1)
            proxy.set(Mode.PASS)
            one.process.wait_for_log(" is up", times=2, timeout=40)
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        eventually(lambda: of(one, ENDED) == {("ok", "default", "add"): 2})
        found = one.scrape()
        ((_, _, worker_id),) = [key for key in found if key[0] == "horsies_worker_info"]
        assert worker_id != first
        assert found["horsies_worker_database_connected"] == 1
        assert one.ready() == (200, "ok\n")


# -- probes --------------------------------------------------------------------------------------


def test_probes_from_start_to_stop(db: Database, tmp_path: Path) -> None:
    with ChaosProxy(db.url) as proxy:
        proxy.set(Mode.CUT)
        with tasks_on(db) as tasks, observed(proxy.url, tmp_path, wait=False) as one:
            one.process.wait_for_log("/metrics")
            assert one.ready() == (503, "the worker is starting or stopping\n")
            assert ask(one.port, "/healthz") == (200, "ok\n")
            assert one.scrape()["horsies_worker_database_connected"] == 0
            proxy.set(Mode.PASS)
            one.process.wait_up()
            eventually(lambda: one.ready() == (200, "ok\n"))
            handle = tasks.sleep.send(3.0)
            eventually(lambda: one.scrape()["horsies_worker_running_tasks"] == 1)
            one.process.terminate()
            eventually(lambda: one.ready() == (503, "the worker is starting or stopping\n"))
            assert ask(one.port, "/healthz") == (200, "ok\n")
            assert one.process.wait() == 0
            assert handle.get(LONG_MS).is_ok()


def test_all_idle_workers_are_ready_again_after_an_outage(db: Database, tmp_path: Path) -> None:
    """One is on duty and claims, the other waits for the duty: its sessions are not all needed."""
    with ChaosProxy(db.url) as proxy, observed(proxy.url, tmp_path) as one, observed(proxy.url, tmp_path) as other:
        both = (one, other)
        eventually(lambda: all(each.ready()[0] == 200 for each in both))
        for _ in range(2):
            proxy.set(Mode.CUT)
            eventually(lambda: all(each.ready()[0] == 503 for each in both))
            proxy.set(Mode.PASS)
            eventually(lambda: all(each.ready()[0] == 200 for each in both))


@pytest.mark.long
def test_a_silent_database(db: Database, tmp_path: Path) -> None:
    """Nothing is refused, nothing arrives: the probe answers at once all the same."""
    with ChaosProxy(db.url) as proxy, observed(proxy.url, tmp_path) as one:
        eventually(lambda: one.ready() == (200, "ok\n"))
        proxy.set(Mode.DROP)
        eventually(lambda: one.ready() == (503, "the database does not answer\n"), timeout=60)
        proxy.set(Mode.PASS)
        proxy.cut()
        eventually(lambda: one.ready() == (200, "ok\n"), timeout=60)


def test_a_frozen_worker_answers_nobody(db: Database, tmp_path: Path) -> None:
    """A probe needs a time-out of its own: the kernel accepts the connection for the stopped process."""
    with observed(db, tmp_path) as one:
        assert ask(one.port, "/healthz") == (200, "ok\n")
        one.process.signal(signal.SIGSTOP)
        connection = HTTPConnection(LOCAL, one.port, timeout=1)
        try:
            connection.request("GET", "/healthz")
            with pytest.raises(TimeoutError):
                connection.getresponse()
        finally:
            one.process.signal(signal.SIGCONT)
            connection.close()
        eventually(lambda: ask(one.port, "/healthz") == (200, "ok\n"))


def test_idle_connections_do_not_make_the_probes_fail(db: Database, tmp_path: Path) -> None:
    """Otherwise who reaches the port could have an orchestrator kill the worker."""
    with tasks_on(db), observed(db, tmp_path) as one:
        eventually(lambda: ask(one.port, "/readyz")[0] == 200)
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection((LOCAL, one.port), timeout=20))
            for _ in range(5):
                assert [ask(one.port, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3


def test_no_child_is_ready(db: Database, tmp_path: Path) -> None:
    with observed(db, tmp_path, processes=1, environment={SLOW_START_VARIABLE: str(tmp_path / "slow")}) as one:
        (tmp_path / "slow").touch()
        one.process.kill_children()
        eventually(lambda: one.ready() == (503, "no child process is ready\n"))
        eventually(lambda: one.scrape()["horsies_worker_children", "starting"] == 1)
        (tmp_path / "slow").unlink()
        eventually(lambda: one.ready() == (200, "ok\n"))


def test_a_scrape_while_the_event_loop_is_busy(db: Database, tmp_path: Path) -> None:
    """Counters without gauges, and no health; both are back when the loop is."""
    with observed(db, tmp_path, environment={BLOCK_VARIABLE: str(tmp_path / "block")}) as one:
        (tmp_path / "block").touch()
        one.process.signal(signal.SIGUSR1)
        eventually(lambda: ask(one.port, "/healthz") == (503, "the event loop has not answered within 2 s\n"))
        found = one.scrape()
        assert "horsies_worker_claims_total" in found
        assert "horsies_worker_running_tasks" not in found
        assert one.ready() == (503, "the event loop does not answer\n")
        (tmp_path / "block").unlink()
        eventually(lambda: ask(one.port, "/healthz") == (200, "ok\n"))
        assert "horsies_worker_running_tasks" in one.scrape()


# -- starting ------------------------------------------------------------------------------------


def test_a_port_that_is_in_use(db: Database, tmp_path: Path) -> None:
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--metrics-host", LOCAL, "--metrics-port", str(port))
        with ended(start_worker(describe(db), tmp_path, *options)) as process:
            assert process.wait() == ExitCode.CONFIGURATION
    assert f"horsies: metrics cannot be served on {LOCAL}, port {port}: port {port} is in use" in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_bad_port(db: Database, tmp_path: Path, port: str) -> None:
    with ended(start_worker(describe(db), tmp_path, f"--metrics-port={port}")) as process:
        assert process.wait() == ExitCode.USAGE
    assert "argument --metrics-port: " in process.log


def test_without_the_extra(db: Database, tmp_path: Path) -> None:
    hide = """
        import sys
        sys.modules["prometheus_client"] = None
        from horsies_worker.cli import worker_main
        sys.exit(worker_main(sys.argv[1:]))
    """
    (tmp_path / "hide.py").write_text(textwrap.dedent(hide))
    command = (sys.executable, str(tmp_path / "hide.py"))
    with ended(start_worker(describe(db), tmp_path, "--metrics-port=0", command=command)) as process:
        assert process.wait() == ExitCode.CONFIGURATION
    assert "horsies: metrics need another package: pip install 'horsies-worker[metrics]'" in process.log
    assert "Traceback" not in process.log
    # without the option the package is not needed
    with ended(start_worker(describe(db), tmp_path, command=command)) as process:
        process.wait_up()
