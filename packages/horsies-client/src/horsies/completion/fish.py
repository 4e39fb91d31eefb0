"""The script of fish."""

from collections.abc import Mapping
from typing import Final

from horsies.completion.places import Place, Values

_HEAD: Final = """# fish completion of horsies, printed by `horsies completion fish`

function __horsies_complete
    set -l given (commandline -opc)
    set -l cur (commandline -ct)
    set -l at (string replace -r '.*/' '' -- $given[1])
    set -l prev $given[-1]
    set -l prefix ''
    for word in $given[2..-1]
        switch "$at $word"
"""


def script(places: Mapping[str, Place]) -> str:
    lines = [_HEAD.rstrip("\n")]
    for path in places:
        if " " in path:
            lines += [f"            case {_quoted(path)}", f"                set at {_quoted(path)}"]
    lines += [
        "        end", "    end",
        "    if string match -qr -- '^--[^=]+=' $cur",
        "        set prev (string replace -r '=.*' '' -- $cur)",
        "        set prefix $prev=",
        "    end",
        '    switch "$at $prev"',
    ]  # fmt: skip
    for path, place in places.items():
        for name, values in place.values.items():
            lines += [f"        case {_quoted(f'{path} {name}')}", f"            {_values(values)}"]
    lines += ["        case '*'", "            switch $at"]
    for path, place in places.items():
        words = {**place.verbs, **dict.fromkeys(place.argument.words, ""), **place.options}
        lines += [f"                case {_quoted(path)}", f"                    {_printed(words)}"]
        if place.argument.kind:
            lines += [f"                    {_values(place.argument)}"]
    lines += ["            end", "    end", "end", ""]
    lines += [f"complete -c {path} -f -a '(__horsies_complete)'" for path in places if " " not in path]
    return "\n".join([*lines, ""])


def _values(values: Values) -> str:
    if values.words:
        return f"printf '%s\\n' $prefix{{{','.join(map(_quoted, values.words))}}}"
    if values.kind == "directories":
        return "__fish_complete_directories (string replace -r '^--[^=]+=' '' -- $cur)"
    return "__fish_complete_path (string replace -r '^--[^=]+=' '' -- $cur)" if values.kind == "files" else "true"


def _printed(words: Mapping[str, str]) -> str:
    if not words:
        return "true"
    return "printf '%s\\t%s\\n' " + " ".join(f"{_quoted(name)} {_quoted(about)}" for name, about in words.items())


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
