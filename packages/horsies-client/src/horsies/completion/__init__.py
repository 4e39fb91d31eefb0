"""Completion scripts for bash, zsh and fish, made from the parsers of all installed commands. A script has all words in
it, so that Tab starts no process."""

import argparse
from collections.abc import Mapping

from horsies.completion import bash, fish, zsh
from horsies.completion.places import places_of


def script_for(shell: str, parsers: Mapping[str, argparse.ArgumentParser], commands: Mapping[str, str]) -> str:
    """The script for a shell. `parsers` by the words that reach them (`horsies tasks`); `commands`: what each command
    of `horsies` does."""
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell].script(places_of(parsers, commands))
