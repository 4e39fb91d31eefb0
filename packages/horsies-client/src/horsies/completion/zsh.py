"""The script of zsh, to be sourced, or to be found in `fpath` under the name `_horsies`."""

from collections.abc import Mapping
from typing import Final

from horsies.completion.places import Place, Values

_BODY: Final = """
    local at=${words[1]:t} prev=${words[CURRENT-1]} cur=${words[CURRENT]} option= kind= i
    local -a found described
    for ((i = 2; i < CURRENT; i++)); do
        case "$at ${words[i]}" in
%(paths)s
        esac
    done
    if [[ $cur == --*=* ]]; then
        option=${cur%%%%=*}
        compset -P '*='
    elif [[ $prev == --* ]]; then
        option=$prev
    fi
    case "$at $option" in
%(values)s
        *) case $at in
%(places)s
        esac ;;
    esac
    case $kind in
        files) _files ;;
        directories) _files -/ ;;
        other) return 1 ;;
        values) compadd -a found ;;
        *) _describe -t words horsies described ;;
    esac
"""


def script(places: Mapping[str, Place]) -> str:
    programs = " ".join(path for path in places if " " not in path)
    paths = [f"            {_quoted(path)}) at={_quoted(path)} ;;" for path in places if " " in path]
    values = [
        f"        {_quoted(f'{path} {name}')}) {_set(one)} ;;"
        for path, place in places.items()
        for name, one in place.values.items()
    ]
    lines = [f"            {_quoted(path)}) {_words(place)} ;;" for path, place in places.items()]
    body = _BODY % {"paths": "\n".join(paths), "values": "\n".join(values), "places": "\n".join(lines)}
    return (
        f"#compdef {programs}\n# zsh completion of horsies, printed by `horsies completion zsh`\n\n"
        f"_horsies() {{{body}}}\n\n"
        # In a file of fpath the body of the file is the function; sourced, it has to be named to the shell.
        'if [[ $funcstack[1] == _horsies ]]; then\n    _horsies "$@"\nelse\n'
        f"    compdef _horsies {programs}\nfi\n"
    )


def _words(place: Place) -> str:
    options = " ".join(_described(name, about) for name, about in place.options.items())
    if place.argument.kind:
        rest = f"kind={place.argument.kind}"
    else:
        words = {**place.verbs, **dict.fromkeys(place.argument.words, "")}
        rest = f"described=({' '.join(_described(name, about) for name, about in words.items())})"
    return f"if [[ $cur == -* ]]; then described=({options}); else {rest}; fi"


def _set(values: Values) -> str:
    if values.words:
        return f"kind=values found=({' '.join(map(_quoted, values.words))})"
    return f"kind={values.kind or 'other'}"


def _described(name: str, about: str) -> str:
    escaped = name.replace("\\", "\\\\").replace(":", "\\:")
    return _quoted(f"{escaped}:{about}" if about else escaped)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
