"""`horsies init`: which names it takes, what it writes, and that it never overwrites or leaves half a project."""

import os
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path, PurePosixPath

import pytest

from horsies import __version__, cli
from horsies.scaffold.names import name_from, problem_with, suggested_name
from horsies.scaffold.rendering import Framework, bounds, chosen_lines, project_files
from horsies.scaffold.writing import ScaffoldError, in_the_way, write


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tree(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("shop", "shop"),
        ("My-Shop", "my_shop"),
        ("web shop 2.0", "web_shop_2_0"),
        ("_shop_", "shop"),
        ("a--b__c", "a_b_c"),
    ],
)
def test_a_directory_suggests_a_name(directory: str, name: str) -> None:
    assert name_from(directory) == name
    assert problem_with(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "not a package name"),
        ("2shop", "not a package name"),
        ("my-shop", "not a package name"),
        ("Shop", "not a package name"),
        ("shop_", "not a package name"),
        ("a__b", "not a package name"),
        ("küche", "not a package name"),
        ("../shop", "not a package name"),
        ("shop\n", "not a package name"),
        ("a" * 41, "41 characters"),
        ("class", "keyword"),
        ("email", "standard library"),
        ("queue", "standard library"),
        ("horsies", "belongs to horsies"),
        ("horsies_worker", "belongs to horsies"),
        ("tests", "another part of the project"),
        ("test", "standard library"),
        ("build", "git and Docker ignore"),
        ("dist", "git and Docker ignore"),
        ("static", "git and Docker ignore"),
        ("admin", "an app of Django"),
        ("template1", "PostgreSQL"),
        ("public", "PostgreSQL"),
        ("pg_shop", "PostgreSQL"),
        ("postgres", "means PostgreSQL"),
        ("postgresql", "means PostgreSQL"),
        ("asyncio", "standard library"),
        ("django", "would hide"),
        ("prometheus_client", "would hide"),
        ("click", "would hide"),
        ("numpy", "would hide"),
    ],
)
def test_names_that_would_not_work(name: str, why: str) -> None:
    problem = problem_with(name, {"numpy"})
    assert problem is not None
    assert why in problem


@pytest.mark.parametrize(
    ("name", "suggested"), [("Küche", "kuche"), ("mein Gärtchen", "mein_gartchen"), ("café & bar", "cafe_bar")]
)
def test_a_name_in_other_letters_gets_a_near_one_suggested(
    name: str, suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suggested_name(name) == suggested
    assert cli.main(["init", name]) == 2
    assert f"choose one with --name {suggested}\n" in capsys.readouterr().err


def test_a_name_in_letters_without_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "магазин"]) == 2
    assert "choose one with --name my_shop\n" in capsys.readouterr().err


def test_a_bad_name_is_explained_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "email"]) == 2
    told = capsys.readouterr().err
    assert "'email', by the directory's name, is a module of Python's standard library" in told
    assert "--name my_shop" in told
    assert cli.main(["init", "x", "--name", "My-Shop"]) == 2
    assert "choose one with --name my_shop" in capsys.readouterr().err
    assert cli.main(["init", "x", "--name", "pytest"]) == 2  # installed here
    with pytest.raises(SystemExit) as ended:
        cli.main(["init", "x", "--framework", "rails"])
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("framework", ["flask", "fastapi", "django"])
def test_the_name_of_a_framework_was_meant_as_one(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", framework]) == 2
    assert capsys.readouterr().err.endswith(f"; for a project with {framework}: --framework {framework}\n")


def test_the_name_of_postgresql_is_no_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "postgres"]) == 2
    told = capsys.readouterr().err
    assert "'postgres', by the directory's name, means PostgreSQL" in told
    assert "horsies-migrate up" in told
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["init", "postgres", "--name", "shop"]) == 0


def test_every_dependency_of_the_packages_is_refused() -> None:
    """Each import package that a distribution of horsies requires, its extras included."""
    known = packages_distributions()
    required = {
        re.split(r"[\s<>=!;\[(]", line)[0].lower()
        for name in ("horsies-client", "horsies-worker", "horsies-schema", "horsies-tui")
        for line in requires(name) or ()
    }
    provided = {module for module, names in known.items() if {one.lower() for one in names} & required}
    assert provided >= {"asyncpg", "alembic", "textual"}
    allowed = {one for one in provided if one.isidentifier() and problem_with(one) is None}
    assert allowed == set()


# -- contents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", Framework)
@pytest.mark.parametrize("name", ["shop", "my_web_shop_2"])
def test_nothing_of_the_template_is_left(framework: Framework, name: str) -> None:
    files = project_files(framework, name, "1.2.3")
    for path, text in files.items():
        for word in ("project_name", "project-name", "HORSIES_BOUNDS", "#if ", "#end", "dot_"):
            assert word not in str(path)
            assert word not in text, path
        assert text == "" or text.endswith("\n")
    project = tomllib.loads(files[PurePosixPath("pyproject.toml")])["project"]
    assert project["name"] == name.replace("_", "-")
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    assert all(">=" in one and "<" in one for one in (*project["dependencies"], *extras))
    assert {
        one.split("]")[-1].removeprefix("horsies-worker") for one in project["dependencies"] if "horsies" in one
    } == {">=1.2.3,<2"}
    assert PurePosixPath(".gitignore") in files
    assert ".env\n" in files[PurePosixPath(".gitignore")]


@pytest.mark.parametrize(
    ("version", "range_"), [("0.1.0", ">=0.1.0,<0.2"), ("0.9.4", ">=0.9.4,<0.10"), ("2.3.4", ">=2.3.4,<3")]
)
def test_bounds_end_where_the_promise_ends(version: str, range_: str) -> None:
    assert bounds(version) == range_


def test_lines_of_other_frameworks_are_left_out() -> None:
    text = "a\n#if flask none\nb\n#end\n# if it is a comment\n#if django\nc\n#end\nd\n"
    assert chosen_lines(text, Framework.NONE) == "a\nb\n# if it is a comment\nd\n"
    assert chosen_lines(text, Framework.DJANGO) == "a\n# if it is a comment\nc\nd\n"


def test_the_installed_version_bounds_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "my-shop"]) == 0
    assert f'"horsies-worker{bounds(__version__)}"' in Path("my-shop/pyproject.toml").read_text()
    assert Path("my-shop/my_shop/tasks.py").is_file()
    assert "cd my-shop\n" in capsys.readouterr().out


# -- writing -------------------------------------------------------------------------------------


def test_a_second_init_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "shop"]) == 0
    Path("shop/Makefile").write_text("mine")
    before = tree(tmp_path)
    capsys.readouterr()
    assert cli.main(["init", "shop", "--framework", "fastapi"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "these exist already, so nothing was written:\n  shop/.dockerignore\n" in told.err
    assert tree(tmp_path) == before


def test_files_beside_the_project_stay(tmp_path: Path) -> None:
    Path("tests").mkdir()
    Path("tests/test_mine.py").write_text("mine")
    Path("notes.txt").write_text("mine")
    assert cli.main(["init", "--name", "shop"]) == 0
    assert tree(tmp_path)["tests/test_mine.py"] == "mine"
    assert Path("shop/tasks.py").is_file()


def test_what_is_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("elsewhere").mkdir()
    Path("shop").symlink_to("elsewhere")  # would take the package out of the project
    Path("tests").write_text("a file where a folder should be")
    Path("Makefile").symlink_to("nowhere")
    assert cli.main(["init", ".", "--name", "shop"]) == 1
    assert capsys.readouterr().err.splitlines()[1:-1] == ["  Makefile", "  shop", "  tests"]
    assert cli.main(["init", "tests", "--name", "shop"]) == 1
    assert "\n  tests\n" in capsys.readouterr().err
    assert sorted(tree(tmp_path)) == ["tests"]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "shop", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "  shop/shop/tasks.py\n" in told
    assert "files would be written" in told
    assert list(tmp_path.iterdir()) == []


FILES = {PurePosixPath("a.txt"): "a", PurePosixPath("deep/er/b.txt"): "b", PurePosixPath("z.txt"): "z"}


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    opened = Path.open

    def full_disk(path: Path, *args: object, **kwargs: object) -> object:
        if path.name == "z.txt":
            raise OSError(28, "No space left on device", str(path))
        return opened(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full_disk)
    with pytest.raises(ScaffoldError, match=r"z\.txt: No space left on device; nothing was written"):
        write(kept, FILES)
    with pytest.raises(ScaffoldError):
        write(tmp_path / "new" / "project", FILES)
    assert list(tmp_path.iterdir()) == [kept]
    assert list(kept.iterdir()) == []


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def interrupted(path: Path, *args: object, **kwargs: object) -> object:
        file = opened(path, *args, **kwargs)  # type: ignore[call-overload]
        if path.name == "b.txt":
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return file

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "new", FILES)
    assert list(tmp_path.iterdir()) == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_file_that_comes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    assert in_the_way(tmp_path, FILES) == []
    (tmp_path / "z.txt").write_text("mine")
    with pytest.raises(ScaffoldError, match="File exists"):
        write(tmp_path, FILES)
    assert tree(tmp_path) == {"z.txt": "mine"}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read_only"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_writable(read_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(read_only / "shop")]) == 1
    assert "Permission denied; nothing was written" in capsys.readouterr().err


def test_a_place_where_no_directory_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    for place in ("file/shop", "x" * 300, "/proc/shop"):
        assert cli.main(["init", place, "--name", "shop"]) == 1, place
        assert capsys.readouterr().err.startswith("horsies: cannot "), place
    with pytest.raises(SystemExit):
        cli.main(["init", ""])


def test_a_loop_of_links_and_a_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("loop").symlink_to("loop")
    for place in ("loop", "loop/shop"):
        assert cli.main(["init", place]) == 1, place
        assert capsys.readouterr().err.startswith("horsies: "), place
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["init", "shop"]) == 1
    assert capsys.readouterr().err == "horsies: cannot find shop: No such file or directory\n"


def test_a_directory_that_begins_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "--", "-shop"]) == 0
    assert "  cd ./-shop\n" in capsys.readouterr().out


def test_init_needs_the_client_alone() -> None:
    import subprocess

    code = "import sys, horsies.cli; horsies.cli.main(['init', 'shop']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {"horsies_worker", "horsies_schema", "asyncpg", "pydantic", "asyncio", "sqlalchemy"}
    assert Path("shop/shop/tasks.py").is_file()
