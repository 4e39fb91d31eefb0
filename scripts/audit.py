"""`just audit`: the licences of everything that users of the four packages install, and known vulnerabilities in it.

Installs the packages with all their extras into an empty environment and reads the metadata of what came along. Then
`pip-audit` asks PyPI. Before it is believed it must find an old vulnerability, because where the service cannot be
reached it reports that nothing was found.

Exit codes: 0 nothing found; 1 a licence that is not allowed, or a vulnerability; 3 vulnerabilities were not looked up.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from scripts.licences import expression, is_allowed
from scripts.release.artefacts import PACKAGES, run
from scripts.release.plan import ReleaseError

ROOT = Path(__file__).parents[1]
PIP_AUDIT = "pip-audit==2.10.1"
KNOWN_BAD = "jinja2==2.10"
"""CVE-2019-10906, among others."""
FOUND, NOT_ASKED = 1, 3


@dataclass(frozen=True, slots=True)
class Installed:
    name: str
    version: str
    licence: str | None


def install(folder: Path) -> list[Installed]:
    """All packages with all extras; what is installed besides them."""
    venv = folder / "venv"
    run(["uv", "venv", "--quiet", "--no-project", "--python", sys.executable, str(venv)], folder)
    wanted: list[str] = []
    for name in PACKAGES:
        project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
        extras = ",".join(project.get("optional-dependencies", {}))
        wanted.append(f"{name}{f'[{extras}]' if extras else ''} @ {(ROOT / 'packages' / name).as_uri()}")
    run(["uv", "pip", "install", "--quiet", "--python", venv / "bin" / "python", *wanted], folder)
    (place,) = venv.glob("lib/python*/site-packages")
    found = [
        Installed(one.metadata["Name"], one.version, expression(one.metadata))  # type: ignore[arg-type]
        for one in distributions(path=[str(place)])
    ]
    return sorted((one for one in found if one.name not in PACKAGES), key=lambda one: one.name.lower())


def licence_problems(found: Sequence[Installed]) -> list[str]:
    return [
        f"{one.name} {one.version}: {one.licence or 'its metadata names no licence'}"
        for one in found
        if one.licence is None or not is_allowed(one.licence)
    ]


def ask(requirements: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Vulnerabilities, and what could not be looked up, as lines."""
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n")
    command = ["uv", "tool", "run", "--quiet", PIP_AUDIT, "--requirement", str(listed), "--no-deps", "--disable-pip",
               "--progress-spinner", "off", "--format", "json"]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    try:
        answers = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], [(done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]]
    bad = [
        f"{one['name']} {one['version']}: {flaw['id']}"
        for one in answers
        for flaw in one.get("vulns", ())
    ]  # fmt: skip
    return bad, [f"{one['name']}: {one['skip_reason']}" for one in answers if "skip_reason" in one]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="just audit", description=__doc__.partition("\n")[0])
    parser.add_argument("--licences-only", action="store_true", help="do not look up vulnerabilities")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="horsies-audit-") as name:
        folder = Path(name)
        try:
            found = install(folder)
        except ReleaseError as error:
            print(f"audit: {error}", file=sys.stderr)
            return FOUND
        for one in found:
            print(f"{one.name:<32} {one.version:<12} {one.licence}")
        problems = licence_problems(found)
        print(f"licences: {len(found)} packages, {len(problems)} not allowed or unknown")
        for problem in problems:
            print(f"audit: the licence of {problem}", file=sys.stderr)
        if problems or options.licences_only:
            return FOUND if problems else 0
        canary, why = ask([KNOWN_BAD], folder)
        if not canary:
            told = why[0] if why else f"it knows nothing of {KNOWN_BAD}, which is vulnerable"
            print(
                f"audit: vulnerabilities were NOT looked up: pip-audit cannot ask PyPI here ({told})", file=sys.stderr
            )
            return NOT_ASKED
        bad, skipped = ask([f"{one.name}=={one.version}" for one in found], folder)
    for line in bad:
        print(f"audit: vulnerable: {line}", file=sys.stderr)
    for line in skipped:
        print(f"audit: not looked up: {line}", file=sys.stderr)
    print(f"vulnerabilities: {len(bad)} found, {len(skipped)} packages not looked up")
    return FOUND if bad else NOT_ASKED if skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
