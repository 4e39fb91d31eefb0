"""The help of every command and verb: examples that parse, lines that fit, and hints for misspelt words."""

import argparse
import shlex
from contextlib import suppress

import pytest

from horsies import cli
from horsies._command_line import actions_of, verbs_of
from tests.support.snippets import code_of

SHELL = (">", "|")


def every_parser() -> dict[str, argparse.ArgumentParser]:
    found = dict(cli.parsers())
    for path, parser in list(found.items()):
        found |= {f"{path} {name}": verb for name, verb in verbs_of(parser).items()}
    return found


PARSERS = every_parser()


def examples(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return getattr(parser, "examples", ())


@pytest.mark.parametrize("path", PARSERS)
def test_the_help_has_examples_that_parse(path: str) -> None:
    parser = PARSERS[path]
    assert 1 <= len(examples(parser)) <= 3
    shown = parser.format_help()
    for example in examples(parser):
        assert f"\n  {example}\n" in shown
        assert example.startswith(path)
        words = shlex.split(example)
        at = min([words.index(sign) for sign in SHELL if sign in words], default=len(words))
        program = " ".join(words[:2])
        top = program if program in PARSERS else words[0]
        rest = words[len(top.split()) : at]
        has_default = getattr(PARSERS[top], "default_verb", None)
        if not rest and has_default:
            rest = [has_default]
        PARSERS[top].parse_args(rest)  # exits when it does not parse


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for path, parser in PARSERS.items():
        raw = {f"  {one}" for one in examples(parser)}
        # argparse does not break a group of options in the usage
        for line in parser.format_help().partition("\n\n")[2].splitlines():
            assert line in raw or len(line) < columns, (path, line)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["taks"], "tasks"),
        (["wokers", "list"], "workers"),
        (["tasks", "lst"], "list"),
        (["tasks", "list", "--quue", "mail"], "--queue"),
        (["tasks", "list", "--staus=failed"], "--status"),
        (["queues", "--jsno"], "--json"),
        (["workflows", "list", "--status", "runing"], "RUNNING"),
        (["tasks", "list", "--status", "faild"], "FAILED"),
        (["worker", "shop:app", "--proceses", "4"], "--processes"),
        (["worker", "shop:app", "--log-format", "jsn"], "json"),
        (["migrate", "upp"], "up"),
        (["migrate", "up", "--shema", "x"], "--schema"),
        (["tui", "--red-only"], "--read-only"),
        (["init", "--framework", "fastpi"], "fastapi"),
        (["migrat", "up"], "migrate"),
    ],
)
def test_a_misspelt_word_is_understood(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr().err
    assert code == 2
    assert f"did you mean {meant!r}?" in told, told


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in actions_of(parser) for name in action.option_strings if name.startswith("--")}


def test_no_program_takes_an_abbreviated_option(capsys: pytest.CaptureFixture[str]) -> None:
    """An abbreviation in a script would change its meaning with the next option of a release."""
    tried = 0
    for path, command in cli.parsers().items():
        for verb, parser in {"": command, **verbs_of(command)}.items():
            known = options_of(parser)
            for option in known:
                short = option[:-1]
                if short in known or len(short) < 4:
                    continue
                with pytest.raises(SystemExit) as stop:
                    parser.parse_args([short])
                assert stop.value.code == 2, (path, verb, short)
                told = capsys.readouterr().err
                assert "unrecognized arguments" in told or "required" in told, told
                tried += 1
    assert tried > 300


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["tasks", "list", "--data", "x"], "--database-url"),
        (["migrate", "up", "--sche", "x"], "--schema"),
        (["tui", "--data", "x"], "--database-url"),
        (["exporter", "--count=5"], "--count-limit"),
        (["init", "--frame", "flask"], "--framework"),
    ],
)
def test_an_abbreviation_is_told_the_whole_word(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["xyzzy"], ["tasks", "xyzzy"], ["tasks", "list", "--xyzzy"]])
def test_no_hint_for_a_word_that_is_like_no_other(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        cli.main(arguments)
    except SystemExit:
        pass
    told = capsys.readouterr().err
    assert "xyzzy" in told
    assert "did you mean" not in told


def test_a_command_without_a_database_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)
    for arguments in (["tasks", "list"], ["top", "--once"], ["exporter"]):
        assert cli.main(arguments) == 2
        told = capsys.readouterr().err
        for way in ("--database-url", "HORSIES_DATABASE_URL", "--app"):
            assert way in told, (arguments, told)
    assert cli.main(["migrate", "up"]) == 2
    told = capsys.readouterr().err
    assert "--url" in told
    assert "HORSIES_DATABASE_URL" in told
    assert cli.main(["tui"]) == 2
    told = capsys.readouterr().err
    assert "--database-url" in told
    assert "HORSIES_DATABASE_URL" in told


def test_an_option_before_its_verb_is_told_where_to_stand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["tasks", "--json", "list"])
    assert "unrecognized arguments: --json; write --json behind the verb" in capsys.readouterr().err


def test_the_hints_of_the_guide_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    """The block of docs/guides/command-line.md with misspelt commands and their answers."""
    (block,) = [code for code in code_of("docs/guides/command-line.md", "output") if "did you mean" in code]
    lines = block.splitlines()
    for command, answer in zip(lines[::2], lines[1::2], strict=True):
        with suppress(SystemExit):
            cli.main(shlex.split(command.removeprefix("$ horsies ")))
        assert capsys.readouterr().err.splitlines()[-1] == answer
