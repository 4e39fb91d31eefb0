"""The completion scripts in real shells, against the real parsers of all packages."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from horsies import cli
from horsies._command_line import actions_of, verbs_of
from tests.support.terminals import Terminal, has_tmux


@cache
def printed(shell: str) -> str:
    command = [sys.executable, "-m", "horsies.cli", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def script(shell: str, directory: Path) -> Path:
    file = directory / f"horsies.{shell}"
    file.write_text(printed(shell))
    return file


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def places() -> dict[str, tuple[set[str], set[str]]]:
    """For each path the verbs and the long options that argparse has, without those of a default verb."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    left = list(cli.parsers().items())
    while left:
        path, parser = left.pop()
        verbs = verbs_of(parser)
        options = {name for action in actions_of(parser) for name in action.option_strings if name.startswith("--")}
        found[path] = (set(verbs), options)
        left += [(f"{path} {name}", verb) for name, verb in verbs.items()]
    return found


def test_every_package_gives_its_parsers() -> None:
    known = places()
    for path in (
        "horsies tasks list", "horsies worker", "horsies scheduler", "horsies exporter", "horsies dev",
        "horsies health", "horsies migrate up", "horsies-migrate up", "horsies tui", "horsies-tui", "horsies top",
    ):  # fmt: skip
        assert "--help" in known[path][1], path


BASH = """
source "$1"
while IFS= read -r line; do
    COMP_WORDS=($line)
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    PATH=/nowhere _horsies  # a process that Tab starts would not be found
    echo "${COMPREPLY[*]}"
done
"""


def bash(file: Path, *lines: str) -> list[list[str]]:
    """What bash offers at the end of each line."""
    asked = "".join(f"{line}\n" for line in lines)
    run = subprocess.run(["bash", "-c", BASH, "bash", file], input=asked, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return [line.split() for line in run.stdout.splitlines()]


@needs("bash")
def test_bash_offers_every_verb_and_option(tmp_path: Path) -> None:
    file, known = script("bash", tmp_path), places()
    options = bash(file, *(f"{path} --" for path in known))
    for (path, (_, wanted)), offered in zip(known.items(), options, strict=True):
        assert wanted <= set(offered), path
    with_verbs = {path: verbs for path, (verbs, _) in known.items() if verbs}
    assert len(with_verbs) > 8
    for (path, wanted), offered in zip(with_verbs.items(), bash(file, *(f"{one} " for one in with_verbs)), strict=True):
        assert set(offered) == wanted, path


@needs("bash")
def test_bash_offers_values(tmp_path: Path) -> None:
    (tmp_path / "two words").mkdir()
    file = script("bash", tmp_path)
    states, one, formats, default, free, shells = bash(
        file, "horsies tasks list --status ", "horsies tasks list --status = FA", "horsies worker --log-format ",
        "horsies queues --j", "horsies tasks list --queue ", "/usr/bin/horsies completion ",
    )  # fmt: skip
    assert "PENDING" in states
    assert one == ["FAILED"]
    assert formats == ["text", "json"]
    assert default == ["--json"]  # of the verb that `horsies queues` alone means
    assert free == []
    assert shells == ["bash", "zsh", "fish"]


@needs("fish")
def test_fish_offers_verbs_options_and_values(tmp_path: Path) -> None:
    file = script("fish", tmp_path)
    known = places()
    asked = [f"{path} --" for path in known]
    lines = [*asked, "horsies tasks ", "horsies tasks list --status ", "horsies tasks list --status=FA", "horsies ta"]
    code = f"source {file}; " + "; ".join(f"echo '## {line}'; complete -C '{line}'" for line in lines)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    run = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stderr == ""
    offered = {
        part.partition("\n")[0]: {line.partition("\t")[0] for line in part.splitlines()[1:]}
        for part in run.stdout.split("## ")[1:]
    }
    for path, (_, wanted) in known.items():
        assert wanted <= offered[f"{path} --"], path
    assert offered["horsies tasks "] >= {"list", "count", "show", "retry", "cancel", "purge"}
    assert "FAILED" in offered["horsies tasks list --status "]
    assert offered["horsies tasks list --status=FA"] == {"--status=FAILED"}
    assert offered["horsies ta"] == {"tasks"}


ZSH = """
autoload -U compinit && compinit -u -D
source {file}
PS1='ready> '
"""


@pytest.mark.long
@needs("zsh")
@pytest.mark.skipif(not has_tmux(), reason="tmux is not installed")
def test_zsh_completes_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text(ZSH.format(file=script("zsh", tmp_path)))
    with Terminal(["zsh", "-i"], (100, 40), ZDOTDIR=str(tmp_path)) as terminal:
        terminal.shows("ready>")
        terminal.keys("horsies", "Space", "tas", "Tab")
        terminal.shows("ready> horsies tasks")
        terminal.keys("pur", "Tab")
        terminal.shows("ready> horsies tasks purge")
        terminal.keys("--old", "Tab", "7d", "Space", "--status=FAI", "Tab")
        terminal.shows("ready> horsies tasks purge --older-than 7d --status=FAILED")
        terminal.keys("C-u", "horsies-migrate", "Space", "Tab")
        terminal.shows("print the revision that the database is at")


@pytest.mark.long
@needs("bash")
@pytest.mark.skipif(not has_tmux(), reason="tmux is not installed")
def test_bash_completes_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "rc").write_text(f"source {script('bash', tmp_path)}\nPS1='ready> '\n")
    with Terminal(["bash", "--rcfile", str(tmp_path / "rc"), "-i"], (100, 40)) as terminal:
        terminal.shows("ready>")
        terminal.keys("horsies", "Space", "tas", "Tab", "pur", "Tab", "--old", "Tab", "7d", "Space")
        terminal.keys("--status=FAI", "Tab")
        terminal.shows("ready> horsies tasks purge --older-than 7d --status=FAILED")


def test_zsh_finds_it_in_fpath(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script("zsh", tmp_path).rename(tmp_path / "_horsies")
    code = "autoload -U compinit && compinit -u -D; print -r -- $_comps[horsies] $_comps[horsies-migrate]"
    run = subprocess.run(
        ["zsh", "-f", "-c", f"fpath=({tmp_path} $fpath); {code}"], capture_output=True, text=True, check=True
    )
    assert run.stdout == "_horsies _horsies\n"


def test_a_misspelt_shell_is_refused() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "horsies.cli", "completion", "bsah"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "did you mean 'bash'?" in run.stderr
    assert run.stdout == ""
