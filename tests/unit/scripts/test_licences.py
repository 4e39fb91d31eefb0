"""`just audit` lets licences pass that are known and allowed, and nothing else."""

from email.message import Message

import pytest

from scripts.audit import Installed, licence_problems
from scripts.licences import expression, is_allowed


def metadata(**fields: str | list[str]) -> Message:
    found = Message()
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            found[name.replace("_", "-")] = value
    return found


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT AND (GPL-3.0-only OR BSD-3-Clause)", True),
        ("(MIT AND GPL-3.0-only) OR AGPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
        ("Proprietary", False),
        ("MIT GPL-3.0-only", False),
        ("MIT AND", False),
        ("(MIT", False),
        ("", False),
    ],
)
def test_expressions(licence: str, allowed: bool) -> None:
    assert is_allowed(licence) is allowed


@pytest.mark.parametrize(
    ("found", "licence"),
    [
        (metadata(License_Expression="MIT", License="GPL"), "MIT"),
        (metadata(Classifier=["License :: OSI Approved :: BSD License", "Topic :: Internet"]), "BSD-3-Clause"),
        (
            metadata(Classifier=["License :: OSI Approved", "License :: OSI Approved :: Apache Software License"]),
            "Apache-2.0",
        ),
        (
            metadata(Classifier=["License :: OSI Approved :: MIT License", "License :: Other/Proprietary License"]),
            "MIT AND Other/Proprietary License",
        ),
        (metadata(License="MIT"), "MIT"),
        (metadata(License="Apache License, Version 2.0"), "Apache-2.0"),
        (metadata(License="Do what you like\nwith it"), "Do what you like"),
        (metadata(License=""), None),
        (metadata(), None),
    ],
)
def test_what_metadata_says(found: Message, licence: str | None) -> None:
    assert expression(found) == licence


def test_unknown_licences_are_problems() -> None:
    found = [Installed("a", "1", "MIT"), Installed("b", "2", None), Installed("c", "3", "Do what you like")]
    assert licence_problems(found) == ["b 2: its metadata names no licence", "c 3: Do what you like"]
