"""Make a container image of the project: its wheel, and what it depends on, on the Python image of the bed.

The packages lie where Debian's Python 3.11 looks for them, and their commands in /usr/local/bin. They are compiled beforehand, so that a
pod with a read-only root starts as fast as any. Versions are those of constraints.txt.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.cache import Cache
from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.images import python_base
from e2e.cluster.oci import ImageConfig, write_image

_PACKAGES = "usr/local/lib/python3.11/dist-packages"
_IMAGE_PYTHON = (3, 11)
_NOT_SOURCE = (".*", "build", "dist", "*.egg-info", "__pycache__")
_TIMEOUT_S = 600.0
_UNPRIVILEGED = "65532:65532"
# what another Python must ask for to get the files of the image's one
_PLATFORMS = [f"--platform={tag}_x86_64" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34", "manylinux_2_36")]
_CROSS = ["--python-version=3.11", "--implementation=cp", *_PLATFORMS]


def project_image(cache: Cache, out: Path, name: str, sources: Sequence[Path], command: Sequence[str], *, extras: Sequence[str] = ()) -> None:
    """Write the OCI archive `out`. `sources` are project folders or wheels, `extras` are those of the first one.

    BedError if pip cannot install them.
    """
    base = python_base(cache)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".image-") as scratch:
        work = Path(scratch)
        root = work / "root"
        target = root / _PACKAGES
        target.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        wheels = [source if source.suffix == ".whl" else _wheel(pip, source, work) for source in sources]
        first = f"{wheels[0]}[{','.join(extras)}]" if extras else str(wheels[0])
        constraints = Path(__file__).parents[2] / "constraints.txt"
        pinned = ["-c", str(constraints)] if constraints.is_file() else []
        same = sys.version_info[:2] == _IMAGE_PYTHON
        options = ["--no-compile", "--only-binary=:all:", *([] if same else _CROSS), *pinned, "--target", str(target)]
        run([*pip, "install", *options, first, *wheels[1:]], timeout=_TIMEOUT_S)
        if same:
            compiler = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "-s", str(root), "-p", "/", str(target)]
            run(compiler, timeout=_TIMEOUT_S)
        _move_commands(target / "bin", root / "usr/local/bin")
        config = ImageConfig(command=list(command), user=_UNPRIVILEGED, environment={"PYTHONUNBUFFERED": "1"})
        write_image(out, name, [root], config, base=base)


def _wheel(pip: Sequence[str], source: Path, work: Path) -> Path:
    """Built from a copy: setuptools leaves a folder `build` in a source tree, and takes files that were deleted since from it."""
    folder = Path(tempfile.mkdtemp(dir=work, prefix="wheel-"))
    copy = folder / "source"
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_SOURCE))
    run([*pip, "wheel", "--no-deps", "-w", folder, copy], timeout=_TIMEOUT_S)
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise BedError(f"pip made {len(found)} wheels of {source}, not one")
    return found[0]


def _move_commands(made: Path, into: Path) -> None:
    """pip writes this machine's Python into the first line of each command; the image has its own."""
    into.mkdir(parents=True)
    if not made.is_dir():
        return
    for path in sorted(made.iterdir()):
        data = path.read_bytes()
        first, newline, rest = data.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            data = b"#!/usr/bin/python3" + newline + rest
        (into / path.name).write_bytes(data)
        (into / path.name).chmod(0o755)
        path.unlink()
    made.rmdir()
