"""`just test-matrix`: what it runs, and how it counts."""

from pathlib import Path

from tests.support.matrix import EMBEDDED, OWN_PYTHON, PYTHONS, SERVERS, Cell, cells, counted, table


def test_without_options_each_python_and_each_server_once() -> None:
    found = [(cell.python, cell.server) for cell in cells([], [])]
    assert len(found) == len(set(found)) == len(PYTHONS) + len(SERVERS) - 1
    assert {python for python, _ in found} == set(PYTHONS)
    assert {server for _, server in found} == set(SERVERS)


def test_what_is_named_is_what_runs() -> None:
    assert cells(["3.13"], []) == [Cell("3.13", EMBEDDED)]
    assert cells([], ["14", "15"]) == [Cell(OWN_PYTHON, "14"), Cell(OWN_PYTHON, "15")]
    assert cells(["3.12", "3.13"], ["14"]) == [Cell("3.12", "14"), Cell("3.13", "14")]


def test_figures_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="10" failures="1" errors="1" skipped="3"/></testsuites>', encoding="utf-8"
    )
    found = counted(Cell("/opt/bin/python3.14", "18"), report, 1, 90.0)
    assert (found.passed, found.failed, found.skipped, found.is_good) == (5, 2, 3, False)
    assert table([found]).splitlines()[-1] == "| 3.14 | 18 | 5 | 2 | 3 | 1.5 | failed: exit code 1 |"
    assert counted(Cell("3.13", "18"), report, 0, 1.0).is_good


def test_a_run_without_a_report_has_not_passed(tmp_path: Path) -> None:
    found = counted(Cell("3.13", "14"), tmp_path / "none.xml", 4, 1.0)
    assert found.told == "pytest did not run: exit code 4"
    assert not found.is_good
