"""The units of deploy/systemd, as systemd itself reads them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.manifests import help_of

UNITS = sorted((Path(__file__).parents[3] / "deploy/systemd").glob("*.service"))
BIN = Path(sys.executable).parent
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd"
)


def settings(unit: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))


def installed(unit: Path, folder: Path) -> Path:
    """A copy whose programs exist on this machine; of a template, one instance."""
    copy = folder / unit.name.replace("@.", "@1.")
    copy.write_text(unit.read_text().replace("/srv/shop/.venv/bin", str(BIN)))
    return copy


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_reads_it_without_a_complaint(unit: Path, tmp_path: Path) -> None:
    copy = installed(unit, tmp_path)
    run = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    told = [line for line in run.stderr.splitlines() if copy.name in line or str(tmp_path) in line]
    assert told == []


@needs_systemd
def test_systemd_complains_of_a_misspelt_setting(tmp_path: Path) -> None:
    """The check above can fail."""
    copy = installed(UNITS[0], tmp_path)
    copy.write_text(copy.read_text().replace("PrivateTmp=yes", "PrivateTemp=yes"))
    run = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert "PrivateTemp' in section" in run.stderr


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_little_is_exposed(unit: Path, tmp_path: Path) -> None:
    """By the measure of systemd, from 0 to 10; a service without any of these settings has 9.6."""
    copy = installed(unit, tmp_path)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", copy]
    run = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in run.stderr:
        pytest.skip("this systemd cannot judge a unit that is not loaded")
    assert run.returncode == 0, run.stdout[-200:] + run.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_commands_are_ones_that_the_programs_know(unit: Path) -> None:
    program, verb, *words = settings(unit)["ExecStart"].split()
    shown = help_of(["migrate", verb] if program.endswith("horsies-migrate") else [verb])
    assert [word for word in words if word.startswith("--") and not re.search(rf"{word}\b", shown)] == []


@pytest.mark.parametrize("unit", [unit for unit in UNITS if "--shutdown-timeout" in unit.read_text()], ids=str)
def test_a_unit_has_longer_to_stop_than_its_process_takes(unit: Path) -> None:
    (timeout,) = re.findall(r"--shutdown-timeout (\d+)", unit.read_text())
    assert int(settings(unit)["TimeoutStopSec"]) >= int(timeout) + 10


def test_a_restart_is_not_tried_where_it_cannot_help() -> None:
    from horsies_worker.exit_codes import ExitCode

    for unit in UNITS:
        if "worker" in unit.name or "scheduler" in unit.name:
            prevented = {int(code) for code in settings(unit)["RestartPreventExitStatus"].split()}
            assert prevented == {ExitCode.USAGE, ExitCode.CONFIGURATION}
