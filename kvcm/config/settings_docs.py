"""Makes what is written about settings from the settings themselves, so that it cannot go stale.

python -m kvcm.config.settings_docs            write the table in docs/drop-in.md and the packaged configuration file
python -m kvcm.config.settings_docs --check    write nothing; exit 1 if one of them differs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from kvcm.config.settings import Settings
from kvcm.config.settings_help import MEANINGS

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "drop-in.md"
CONFIG: Final = ROOT / "kvcm" / "service" / "etc" / "default_server_config.conf"
_BEGIN, _END = "<!-- begin settings: made by python -m kvcm.config.settings_docs -->", "<!-- end settings -->"
# What the packaged file sets: the ports that the ecosystem knows.
PACKAGED: Final = {
    "kvcm.service.rpc_port": "6381",
    "kvcm.service.http_port": "6382",
    "kvcm.service.admin_rpc_port": "6491",
    "kvcm.service.admin_http_port": "6492",
}
_HEAD = """\
# Settings of a manager, one key=value a line; `#` begins a comment anywhere in a line. Made by `python -m kvcm.config.settings_docs`.
#
#   kv_cache_manager_bin -c default_server_config.conf -l default_logger_config.conf
#
# What is commented out has the value that holds without it, unless its comment says otherwise. -e key=value goes before this file, and the process
# environment before both.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """`default` as it is written in a file; `pending` says what happens to a key that is not acted on, else it is empty."""

    key: str
    default: str
    meaning: str
    pending: str


def rows() -> list[Row]:
    """Every key in the order of the table. Raises ValueError for one without a sentence in MEANINGS."""
    found = []
    for item in fields(Settings):
        key = item.metadata.get("key")
        if key is None:
            continue
        if key not in MEANINGS:
            raise ValueError(f"{key} has no sentence in kvcm/config/settings_help.py")
        value = str(item.default).lower() if isinstance(item.default, bool) else str(item.default)
        found.append(Row(key, value, MEANINGS[key], item.metadata["pending"].removesuffix(", the value is ignored")))
    return found


def table() -> str:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for row in rows():
        default = f"`{row.default}`" if row.default else "empty"
        meaning = f"{row.meaning} *Not acted on: {row.pending}.*" if row.pending else row.meaning
        lines.append(f"| `{row.key}` | {default} | {meaning} |".replace("\n", " "))
    return "\n".join(lines)


def page(text: str) -> str:
    """`text` with the table between its marks. Raises ValueError without them."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the page has lost the marks around its table")
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def config_file() -> str:
    lines = [_HEAD]
    for row in rows():
        lines.append(f"# {row.meaning}" + (f" Not acted on: {row.pending}." if row.pending else ""))
        packaged = PACKAGED.get(row.key)
        lines.append(f"#{row.key}={row.default}" if packaged is None else f"{row.key}={packaged}")
        lines.append("")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcm.config.settings_docs", description="Write what is written about settings.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    check = parser.parse_args(argv).check
    try:
        wanted = {PAGE: page(PAGE.read_text(encoding="utf-8")), CONFIG: config_file()}
    except ValueError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if not check:
        for path in stale:
            path.write_text(wanted[path], encoding="utf-8")
        return 0
    if stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.stderr.write(f"Out of date: {names}. Run `python -m kvcm.config.settings_docs` and commit the result.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
