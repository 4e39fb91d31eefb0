"""The wheels: same version everywhere, whole contents, and installable alone."""

import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.matrix import PYTHONS
from tests.support.postgres import Database

ROOT = Path(__file__).parents[2]
PACKAGES = sorted((ROOT / "packages").iterdir())
IMPORTS = {
    "horsies-client": "horsies",
    "horsies-schema": "horsies_schema",
    "horsies-tui": "horsies_tui",
    "horsies-worker": "horsies_worker",
}


def project(package: Path) -> dict[str, object]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def test_one_version_and_lockstep_pins() -> None:
    projects = {package.name: project(package) for package in PACKAGES}
    assert projects.keys() == IMPORTS.keys()
    (version,) = {str(found["version"]) for found in projects.values()}
    for found in projects.values():
        extras = found.get("optional-dependencies", {})
        for dependency in (*found["dependencies"], *(one for extra in extras.values() for one in extra)):  # type: ignore[misc, attr-defined]
            if dependency.startswith("horsies-"):
                assert dependency.endswith(f"=={version}"), dependency
    for name, import_name in IMPORTS.items():
        text = (ROOT / "packages" / name / "src" / import_name / "__init__.py").read_text()
        assert f'__version__ = "{version}"' in text


def test_the_client_depends_on_two_libraries() -> None:
    names = [requirement.split(">")[0] for requirement in project(ROOT / "packages/horsies-client")["dependencies"]]  # type: ignore[attr-defined]
    assert names == ["asyncpg", "pydantic"]


def test_the_metadata_is_complete_and_names_what_the_matrix_runs() -> None:
    for package in PACKAGES:
        found = project(package)
        for key in ("description", "readme", "license", "license-files", "keywords", "classifiers"):
            assert found.get(key), f"{package.name} has no {key}"
        pythons = {
            name.rpartition(" :: ")[2]
            for name in found["classifiers"]  # type: ignore[attr-defined]
            if name.startswith("Programming Language :: Python :: 3.")
        }
        assert pythons == set(PYTHONS)
        assert found["requires-python"] == f">={PYTHONS[0]}"
        assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_releases_build_with_one_version_of_the_backend() -> None:
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["build-constraint-dependencies"]
    assert [pin.partition("==")[0] for pin in pins if "==" in pin] == ["hatchling"]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("wheels")
    subprocess.run(["uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(out)], cwd=ROOT, check=True)
    found = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in out.glob("*.whl")}
    assert found.keys() == IMPORTS.keys()
    return found


def test_wheels_hold_every_source_file(wheels: dict[str, Path]) -> None:
    for name, import_name in IMPORTS.items():
        source = ROOT / "packages" / name / "src"
        expected = {
            str(path.relative_to(source))
            for path in (source / import_name).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        packed = {entry for entry in zipfile.ZipFile(wheels[name]).namelist() if ".dist-info/" not in entry}
        assert packed == expected
        assert f"{import_name}/py.typed" in packed


def test_the_schema_wheel_alone_migrates_from_any_directory(
    wheels: dict[str, Path], empty_db: Database, tmp_path: Path
) -> None:
    """The wheel in an empty environment (dependencies borrowed from ours), run far from the repository."""
    venv.create(tmp_path / "venv", with_pip=False)
    bin_dir = tmp_path / "venv" / "bin"
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--python", str(bin_dir / "python"), str(wheels["horsies-schema"])],
        check=True, cwd=tmp_path,
    )  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = subprocess.run(
        [bin_dir / "horsies-migrate", "up", "--url", empty_db.url], cwd=elsewhere, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("at revision ")
    listed = subprocess.run([bin_dir / "python", "-c", "import horsies_schema.models as m; print(m.__file__)"],
                            cwd=elsewhere, check=True, capture_output=True, text=True).stdout  # fmt: skip
    assert str(tmp_path) in listed
    installed = {path.name for path in (tmp_path / "venv" / "lib").rglob("*.dist-info")}
    assert not any(
        name.startswith(("horsies_client", "horsies_worker", "horsies_tui", "textual")) for name in installed
    )
    assert sys.executable not in listed
