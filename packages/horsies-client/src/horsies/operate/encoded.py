"""Payloads that a codec has encoded, for operators: decoded where the app's codec is at hand and they ask for it, else
replaced by the name of the codec. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

from horsies.envelopes import MARK, Envelopes, redacted, redacted_message
from horsies.payload_codec import PayloadError

_RESULTS: Final = ("result", "progress")


def shown_payload(
    row: Mapping[str, Any], envelopes: Envelopes | None, task_name: str, max_chars: int
) -> dict[str, Any]:
    """The row of `show_payload` without envelopes, each text cut again. `envelopes`: None replaces them."""
    shown = dict(row.items())
    for name in ("args", "kwargs", *_RESULTS):
        text: str | None = shown[name]
        if text is None:
            continue
        if MARK in text:
            is_cut = len(text) < shown[f"{name}_chars"]
            text = redacted(text) if envelopes is None else _decoded(text, name, envelopes, task_name)
            if not is_cut:
                shown[f"{name}_chars"] = len(text or "")
        shown[name] = text and text[:max_chars]
    return shown


def shown_attempt(row: Mapping[str, Any], envelopes: Envelopes | None) -> dict[str, Any]:
    """A row of `read_attempts` with a readable message."""
    message = row["error_message"]
    unwrap = redacted_message if envelopes is None else envelopes.unwrap_message
    return {**dict(row.items()), "error_message": unwrap(message)}


def shown_progress(row: Mapping[str, Any], envelopes: Envelopes) -> dict[str, Any]:
    """The row of `read_task`, or of `show_task`, which has no progress, with readable progress."""
    shown = dict(row.items())
    if isinstance(shown.get("progress"), str):
        try:
            shown["progress"] = envelopes.unwrap(shown["progress"], shown["task_name"])
        except PayloadError:
            shown["progress"] = redacted(shown["progress"])
    return shown


def shown_result(text: str | None, envelopes: Envelopes | None) -> str | None:
    """The stored result or error of a node or a run."""
    if text is None or envelopes is None:
        return redacted(text)
    return envelopes.unwrap_result(text)


def decoded_arguments(kwargs: Mapping[str, Any], target: str, envelopes: Envelopes) -> Mapping[str, Any]:
    """The arguments of a stored schedule for the app's own code. Those that cannot be decoded stay as they are."""
    if MARK not in (text := json.dumps(kwargs)):
        return kwargs
    try:
        return json.loads(envelopes.unwrap_call(None, text, target)[1] or "{}")
    except PayloadError:
        return kwargs


def shown_arguments(kwargs: Mapping[str, Any], target: str, envelopes: Envelopes | None) -> str:
    """The arguments of a stored schedule as JSON for operators. `envelopes`: None replaces them."""
    text = json.dumps(kwargs)
    if MARK not in text:
        return text
    return redacted(text) or "" if envelopes is None else _decoded(text, "kwargs", envelopes, target)


def is_same_call(old: Mapping[str, Any], new: Mapping[str, Any], target: str, envelopes: Envelopes) -> bool:
    """Whether two stored forms of arguments were written by the same codec and are equal when decoded."""
    texts = [json.dumps(one, sort_keys=True) for one in (old, new)]
    if redacted(texts[0]) != redacted(texts[1]):
        return False
    try:
        plain = [json.loads(envelopes.unwrap_call(None, text, target)[1] or "{}") for text in texts]
    except PayloadError:
        return False
    # as text, because True equals 1
    return json.dumps(plain[0], sort_keys=True) == json.dumps(plain[1], sort_keys=True)


def _decoded(text: str, name: str, envelopes: Envelopes, task_name: str) -> str:
    try:
        if name == "args":
            return envelopes.unwrap_call(text, None, task_name)[0] or ""
        if name == "kwargs":
            return envelopes.unwrap_call(None, text, task_name)[1] or ""
        return envelopes.unwrap(text, task_name)
    except PayloadError as error:
        return f"{redacted(text)}  [not decoded: {error}]"
