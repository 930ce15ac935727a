"""The command line of upstream's server (wire contract 1.2), with its tolerance: what is not known is a warning and otherwise ignored.

    -c, --config_file FILE     -l, --log_config_file FILE     -e, --env KEY=VALUE     -d, --daemon     -h, --help     -v, --version

As the C library reads options: `-cFILE`, `--config_file=FILE`, `-dc FILE`, unambiguous beginnings of long names, options after other words, `--` as the
end of options. They are looked at in order: help, version and a malformed `-e` end the reading where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

_LONG = {"config_file": "c", "log_config_file": "l", "env": "e", "daemon": "d", "help": "h", "version": "v"}
_WITH_VALUE = "cle"
_SHORT = "cledhv"


@dataclass(slots=True)
class UpstreamOptions:
    """`end`: stop here with exit code 1, because help or the version was asked for or an `-e` has no `=`. `env` in the order given."""

    config_file: str = ""
    log_config_file: str = ""
    env: list[str] = field(default_factory=list)
    daemon: bool = False
    end: Literal["", "help", "version", "env"] = ""
    warnings: list[str] = field(default_factory=list)


def parse_options(arguments: Sequence[str]) -> UpstreamOptions:
    """Never raises."""
    found = UpstreamOptions()
    words = list(arguments)
    while words and not found.end:
        word = words.pop(0)
        if word == "--":
            _ignored(found, words)
            break
        if word.startswith("--"):
            _long(found, word[2:], words)
        elif word.startswith("-") and word != "-":
            _cluster(found, word[1:], words)
        else:
            _ignored(found, [word])
    return found


def _long(found: UpstreamOptions, text: str, words: list[str]) -> None:
    name, equals, value = text.partition("=")
    matches = [name] if name in _LONG else [known for known in _LONG if name and known.startswith(name)]
    if len(matches) != 1:
        found.warnings.append(f"the option --{name[:80]} is not known and is ignored")
        return
    letter = _LONG[matches[0]]
    if letter not in _WITH_VALUE:
        if equals:
            found.warnings.append(f"the option --{name} takes no value and is ignored")
        else:
            _set(found, letter, "")
    elif equals:
        _set(found, letter, value)
    else:
        _set_next(found, letter, f"--{name}", words)


def _cluster(found: UpstreamOptions, letters: str, words: list[str]) -> None:
    for position, letter in enumerate(letters):
        if letter not in _SHORT:
            found.warnings.append(f"the option -{letter} is not known and is ignored")
        elif letter not in _WITH_VALUE:
            _set(found, letter, "")
        else:
            rest = letters[position + 1 :]
            if rest:
                _set(found, letter, rest)
            else:
                _set_next(found, letter, f"-{letter}", words)
            return
        if found.end:
            return


def _set_next(found: UpstreamOptions, letter: str, name: str, words: list[str]) -> None:
    if words:
        _set(found, letter, words.pop(0))
    else:
        found.warnings.append(f"the option {name} needs a value and is ignored")


def _set(found: UpstreamOptions, letter: str, value: str) -> None:
    match letter:
        case "c":
            found.config_file = value
        case "l":
            found.log_config_file = value
        case "e" if "=" in value:
            found.env.append(value)
        case "e":
            found.end = "env"
        case "d":
            found.daemon = True
        case "h":
            found.end = "help"
        case _:
            found.end = "version"


def _ignored(found: UpstreamOptions, words: Sequence[str]) -> None:
    found.warnings += [f"the argument {word[:80]!r} is not an option and is ignored" for word in words]
