"""cli.md: every command with its verbs and options as its own parser has them, between the prose of `prose/cli.md`.

The prose has a section for a command (`## \\`horsies tasks\\``) where there is something to explain; the rest of a
section is generated below it. A section of the prose that is not named after a command follows the commands.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from enum import IntEnum
from importlib.metadata import entry_points
from pathlib import Path

import horsies_schema.errors
from horsies_worker import exit_codes
from tests.support.reference import documented, markdown as md, parsers

PROSE = Path(__file__).parent / "prose/cli.md"
WIDTH = 100
COMMON = ("--database-url", "--app", "--schema", "--json")
"""Explained once, at the top of the page."""
PLAIN = ("positional arguments", "options", "optional arguments")
"""The titles that argparse itself gives to groups."""
MANY = 10
"""A command that shares as many options with an earlier one refers to it."""
EXIT_CODES: dict[str, type[IntEnum]] = {
    "horsies worker": exit_codes.ExitCode,
    "horsies migrate": horsies_schema.errors.ExitCode,
}
"""The exit codes that have a meaning of their own for a supervisor or a script."""


def cli_page() -> str:
    head, prose = md.sections(PROSE.read_text())
    with parsers.same_everywhere():
        found = parsers.commands()
        also = {script.replace("-", " ", 1): script for script in parsers.scripts()}
        told: dict[str, argparse.ArgumentParser] = {}
        parts = [md.note("`tests/support/reference/prose/cli.md` or the help of the commands"), head]
        parts += [f"## {title}\n\n{body}" for title, body in _before(prose)]
        for name, parser in found.items():
            parts.append(f"## `{name}`")
            parts += _package(name, also.get(name))
            text = prose.get(f"`{name}`", "")
            generated = list(_command(name, parser, told, has_prose=bool(text)))
            parts += [*generated, text] if _is_alone(name, parser) else [text, *generated]
            told[name] = parser
    parts += [f"## {title}\n\n{body}" for title, body in _after(prose)]
    return parts[0] + "\n\n".join(part for part in parts[1:] if part) + "\n"


def prose_commands() -> set[str]:
    """The commands that the prose has a section for."""
    return {title.strip("`") for title in md.sections(PROSE.read_text())[1] if title.startswith("`horsies")}


def _before(prose: dict[str, str]) -> Iterator[tuple[str, str]]:
    for title, body in prose.items():
        if title.startswith("`horsies"):
            return
        yield title, body


def _after(prose: dict[str, str]) -> list[tuple[str, str]]:
    names = list(prose)
    last = max(at for at, title in enumerate(names) if title.startswith("`horsies"))
    return [(title, prose[title]) for title in names[last + 1 :]]


def _package(name: str, script: str | None) -> Iterator[str]:
    word = name.split()[1]
    for entry in entry_points(group="horsies.commands"):
        if entry.name == word and entry.dist is not None:
            yield f"Comes with the package `{entry.dist.name}`" + (f", also as `{script}`." if script else ".")


def _command(
    name: str, parser: argparse.ArgumentParser, earlier: dict[str, argparse.ArgumentParser], *, has_prose: bool
) -> Iterator[str]:
    found = list(parsers.verbs(name, parser))
    is_alone = _is_alone(name, parser)
    if not has_prose or is_alone:
        yield _sentence(parser.description)
    shared = {} if is_alone else _shared(found)
    for verb in found:
        if not is_alone:
            yield f"### `{verb.name}`"
            yield _sentence(verb.help)
        yield _usage(verb)
        yield from _arguments(verb, {option for group in shared.values() for option in group[2]}, earlier)
        if not is_alone:
            yield from _epilog(verb.parser.epilog, parser.epilog)
    for title, (description, users, rows) in shared.items():
        yield f"### `{name}`: {title}"
        yield _sentence(f"{', '.join(f'`{user}`' for user in users)} take these{_behind(description)}")
        yield md.table(("Option", "Means"), rows.values()).rstrip()
    yield from _epilog(parser.epilog)
    if name in EXIT_CODES:
        told = documented.members(EXIT_CODES[name])
        yield md.table(
            ("Exit code", "Means"), ((f"{member:d}", told[member.name]) for member in EXIT_CODES[name])
        ).rstrip()


def _is_alone(name: str, parser: argparse.ArgumentParser) -> bool:
    """Whether the command has no verbs."""
    return [verb.name for verb in parsers.verbs(name, parser)] == [name]


def _behind(description: str | None) -> str:
    return f": {description}" if description else ""


def _shared(
    verbs: Sequence[parsers.Verb],
) -> dict[str, tuple[str | None, list[str], dict[str, tuple[str, str]]]]:
    """The groups of options that several verbs have: by title, the description, the verbs and the rows."""
    found: dict[str, tuple[str | None, list[str], dict[str, tuple[str, str]]]] = {}
    for verb in verbs:
        for title, description, actions in parsers.groups_of(verb.parser):
            rows = {_key(action): _row(action, verb) for action in actions if not _is_common(action)}
            if title and title not in PLAIN and rows:
                known = found.setdefault(title, (description, [], {}))
                known[1].append(verb.name.split()[-1])
                known[2].update({key: row for key, row in rows.items() if key not in known[2]})
    return {title: group for title, group in found.items() if len(group[1]) > 1}


def _arguments(verb: parsers.Verb, shared: set[str], earlier: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    own = [one for one in _ordered(verb.parser) if not _is_common(one) and _key(one) not in shared]
    for name, parser in earlier.items():
        known = {(_key(one), one.help) for one in parsers.arguments(parser)}
        rest = [one for one in own if (_key(one), one.help) not in known]
        if len(own) - len(rest) >= MANY:
            yield f"It takes all arguments of [`{name}`](#{name.replace(' ', '-')}), and these:"
            own = rest
            break
    if own:
        yield md.table(("Argument", "Means"), (_row(one, verb) for one in own)).rstrip()


def _ordered(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What has a place first, then options, then those that all commands have."""
    return sorted(parsers.arguments(parser), key=lambda one: (bool(one.option_strings), _is_common(one)))


def _is_common(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.option_strings[-1] in COMMON


def _key(action: argparse.Action) -> str:
    return " ".join(action.option_strings) or action.dest


def _row(action: argparse.Action, verb: parsers.Verb) -> tuple[str, str]:
    value = _value(action)
    if not action.option_strings:
        written = f"`{value}`"
    elif isinstance(action, argparse.BooleanOptionalAction):
        written = ", ".join(f"`{one}`" for one in action.option_strings)
    else:
        written = ", ".join(f"`{one} {value}`" if value else f"`{one}`" for one in action.option_strings)
    return written, _meaning(action, verb)


def _meaning(action: argparse.Action, verb: parsers.Verb) -> str:
    default = "the number of CPUs" if action.dest == "processes" else action.default
    text = md.one_line(action.help or "") % {**vars(action), "default": default, "prog": verb.parser.prog}
    private = Path(tempfile.gettempdir()) / f"horsies-{os.getuid()}"
    text = text.replace(str(private), "$TMPDIR/horsies-UID")
    if action.choices is not None:
        text = f"{', '.join(f'`{one}`' for one in action.choices)}; {text}"
    if parsers.is_repeatable(action):
        text += "" if "repeat" in text else "; may be repeated"
    return text


def _value(action: argparse.Action) -> str:
    """How the value is written; empty for a flag."""
    if action.nargs == 0:
        return ""
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings and not action.metavar:
        name = action.dest
    match action.nargs:
        case "?":
            return f"[{name}]"
        case "*":
            return f"[{name} ...]"
        case "+":
            return f"{name} [{name} ...]"
        case _:
            return name


def _usage(verb: parsers.Verb) -> str:
    words = [verb.name]
    done: set[str] = set()
    exclusive = parsers.exclusive(verb.parser)
    for action in _ordered(verb.parser):
        if _key(action) in done:
            continue
        together, required = next((group for group in exclusive if action in group[0]), ([action], action.required))
        done |= {_key(one) for one in together}
        word = " | ".join(_written(one) for one in together)
        if action.option_strings:
            word = (f"({word})" if len(together) > 1 else word) if required else f"[{word}]"
        words.append(word + ("..." if parsers.is_repeatable(action) else ""))
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "```text\n" + "\n".join(lines) + "\n```"


def _written(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return " | ".join(action.option_strings)
    value = _value(action)
    return " ".join([*action.option_strings[-1:], *([value] if value else [])])


def _epilog(text: str | None, known: str | None = None) -> Iterator[str]:
    """Examples stay as they are printed; a sentence becomes prose. What `known` says is not said again."""
    said = _paragraphs(known)
    for part in _paragraphs(text):
        if part in said:
            continue
        if "\n" in part or part.startswith(" "):
            yield f"```text\n{part}\n```"
        else:
            yield _sentence(part)


def _paragraphs(text: str | None) -> list[str]:
    return [part.rstrip() for part in re.split(r"\n[ \t]*\n", (text or "").strip("\n")) if part.strip()]


def _sentence(text: str | None) -> str:
    told = md.one_line(text)
    if not told:
        return ""
    told = told[0].upper() + told[1:]
    return told if told.endswith((".", ":", "?", "!")) else f"{told}."
