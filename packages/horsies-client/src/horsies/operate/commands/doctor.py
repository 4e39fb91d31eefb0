"""`horsies doctor`: one page of problems and their remedies."""

from collections.abc import Sequence
from typing import Final

from horsies.operate.commands._common import OK, PROBLEMS, Command, Desk
from horsies.operate.commands._print import complain, one_line, plural, say, say_json, say_safe, state
from horsies.operate.doctor.finding import Finding, Severity

NOT_MADE: Final = 3
"""The exit code when no problem was found and some checks could not be made at all. A hidden finding of a check that
was made leaves it 0."""
_ORDER: Final = (Severity.PROBLEM, Severity.WARN, Severity.HIDDEN, Severity.OK)


def build() -> Command:
    about = "Say what is wrong with a database and its workers, why it matters, and how to fix it."
    epilog = (
        "exit codes: 0 no problem found; 1 problems found; 2 wrong usage; 3 no problem found, but some "
        "checks could not be made at all, because this role may not read what they need; a check that was made and saw "
        "less counts as made"
    )
    command = Command("doctor", about, _examine, epilog=epilog)
    command.parser.add_argument("--quiet", action="store_true", help="leave out what is fine")
    return command


async def _examine(desk: Desk) -> int:
    names = [task.name for task in desk.given_app.registry] if desk.given_app is not None else None
    findings = await desk.broker.diagnose(names=names)
    if desk.options.quiet:
        findings = [one for one in findings if one.severity is not Severity.OK]
    if desk.options.json:
        say_json({"findings": findings, **_counts(findings), "not_made": _not_made(findings)})
    else:
        _say_page(findings)
    if any(one.severity is Severity.PROBLEM for one in findings):
        return PROBLEMS
    return NOT_MADE if _not_made(findings) else OK


def _not_made(findings: Sequence[Finding]) -> list[str]:
    """The checks that could not be made for lack of rights."""
    return [one.check for one in findings if not one.was_made]


def _say_page(findings: Sequence[Finding]) -> None:
    width = max((len(one.check) for one in findings), default=0)
    for one in sorted(findings, key=lambda one: _ORDER.index(one.severity)):
        say_safe(f"{state(one.severity, 7)}  {one_line(one.check):<{width}}  {one_line(one.what)}")
        margin = " " * (9 + width + 2)
        if one.why:
            say(f"{margin}why: {one_line(one.why)}")
        if one.fix:
            say(f"{margin}fix: {one_line(one.fix)}")
    counts = _counts(findings)
    hidden = f", {counts['hidden']} not visible to this role" if counts["hidden"] else ""
    say(f"\n{plural(counts['problem'], 'problem')}, {plural(counts['warn'], 'warning')}{hidden}")
    if names := _not_made(findings):
        complain(f"{plural(len(names), 'check')} could not be made for lack of rights: {', '.join(names)}")


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {severity.value: sum(one.severity is severity for one in findings) for severity in _ORDER}
