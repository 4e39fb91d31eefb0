"""A signal as it is typed: a name and a value in JSON. Pure; nothing is sent that this module does not understand."""

import json
from typing import Any, Final

MAX_NAME: Final = 255


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no value of JSON")


def problem_of(name: str, text: str) -> str | None:
    """Why this cannot be sent; None when it can."""
    if not name or len(name) > MAX_NAME:
        return f"a signal needs a name of 1 to {MAX_NAME} characters"
    if not text.strip():
        return 'a value is needed: JSON such as true, "yes" or {"by": "ann"}; null for none'
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg.lower()} at character {error.pos + 1} (a text stands in double quotes)"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    try:
        stored = json.dumps(value, ensure_ascii=False)
        stored.encode()
    except (ValueError, RecursionError):
        return "PostgreSQL does not store half of a surrogate pair"
    return (
        "PostgreSQL does not store the character \\u0000"
        if "\\u0000" in stored.replace("\\\\", "") or "\0" in name
        else None
    )
