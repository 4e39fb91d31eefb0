"""The script of bash; version 3.2, which macOS has, is enough."""

import shlex
from collections.abc import Mapping
from typing import Final

from horsies.completion.places import Place, Values

_HEAD: Final = """# bash completion of horsies, printed by `horsies completion bash`

_horsies() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=${COMP_WORDS[0]##*/} i words= values= kind=
    COMPREPLY=()
    # bash splits --option=value into three words
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = && $COMP_CWORD -gt 2 ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${COMP_WORDS[i]}" in
"""
_TAIL: Final = """    esac
    if [[ $kind == files || $kind == directories ]]; then
        local IFS=$'\\n'  # a name may have spaces
        [[ $kind == files ]] && COMPREPLY=($(compgen -f -- "$cur")) || COMPREPLY=($(compgen -d -- "$cur"))
        compopt -o filenames 2> /dev/null
    elif [[ $kind != other ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    fi
}
"""


def script(places: Mapping[str, Place]) -> str:
    paths = [path for path in places if " " in path]
    lines = [_HEAD.rstrip("\n")]
    lines += [f"            {_pattern(path)}) at={shlex.quote(path)} ;;" for path in paths]
    lines += ["        esac", "    done", '    case "$at $prev" in']
    for path, place in places.items():
        lines += [f"        {_pattern(f'{path} {name}')}) {_set(values)} ;;" for name, values in place.values.items()]
    lines += ["        *) case $at in"]
    for path, place in places.items():
        options = shlex.quote(" ".join(place.options))
        behind = "kind=directories" if place.argument.kind == "directories" else ""
        words = shlex.quote(" ".join([*place.verbs, *place.argument.words]))
        rest = behind or ("kind=files" if place.argument.kind == "files" else f"words={words}")
        lines += [f"            {_pattern(path)}) if [[ $cur == -* ]]; then words={options}; else {rest}; fi ;;"]
    lines += ["        esac ;;", _TAIL.rstrip("\n")]
    programs = " ".join(path for path in places if " " not in path)
    return "\n".join([*lines, f"complete -F _horsies {programs}", ""])


def _set(values: Values) -> str:
    if values.words:
        return f"words={shlex.quote(' '.join(values.words))}"
    return f"kind={values.kind or 'other'}"


def _pattern(text: str) -> str:
    return shlex.quote(text) if " " in text else text
