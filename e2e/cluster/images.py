"""The images every pod of the bed is made of: pause, busybox and a Debian with Python 3.11."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import debian, oci, runtime
from e2e.cluster.cache import Cache, Maker, key_of
from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.oci import ImageConfig

PAUSE = "local/pause:1"
BUSYBOX = "local/busybox:1"
PYTHON = "local/python:3.11"
_PYTHON_PACKAGES = "python3-minimal,python3,ca-certificates,tini"
_NOT_NEEDED = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "dev")
_DEBOOTSTRAP_TIMEOUT_S = 20 * 60.0


@dataclass(frozen=True, slots=True)
class Image:
    """One archive in the cache: NAME-KEY/image.tar."""

    name: str
    key: str
    make: Maker


def images(kubernetes: Callable[[], Path], tools: Callable[[], Path]) -> list[Image]:
    """`kubernetes` and `tools` give the folders with `pause` and with `bin/busybox`; they are asked only when an image is made."""
    return [
        Image("image-pause", _key(Path(__file__).with_name("pause.go")), lambda target, work: _pause(kubernetes(), target, work)),
        Image("image-busybox", _key(runtime.key()), lambda target, work: _busybox(tools(), target, work)),
        Image("image-python", _key(debian.BED_SUITE), _python),
    ]


def python_base(cache: Cache) -> Path:
    """The archive of the Python image, made first if need be."""
    return cache.obtain("image-python", _key(debian.BED_SUITE), _python) / "image.tar"


def _key(*inputs: str | Path) -> str:
    return key_of(Path(oci.__file__), Path(__file__), *inputs)


def _pause(kubernetes: Path, target: Path, work: Path) -> None:
    root = work / "root"
    root.mkdir()
    shutil.copy2(kubernetes / "pause", root / "pause")
    oci.write_image(target / "image.tar", PAUSE, [root], ImageConfig(entrypoint=["/pause"]))


def _busybox(tools: Path, target: Path, work: Path) -> None:
    root = work / "root"
    for folder in ("bin", "etc", "tmp", "root", "proc", "sys", "dev", "var"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    program = root / "bin/busybox"
    shutil.copy2(tools / "bin/busybox", program)
    for applet in run([program, "--list"], timeout=30).split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", encoding="utf-8")
    oci.write_image(target / "image.tar", BUSYBOX, [root], ImageConfig(command=["/bin/sh"]))


def _python(target: Path, work: Path) -> None:
    debian.need_tools({"debootstrap": "debootstrap"})
    address = debian.mirror()
    if address is None:
        raise BedError("this machine's apt knows no Debian source to make the Python image from")
    root = work / "root"
    argv = ["nice", "-n", "10", "debootstrap", "--variant=minbase", f"--include={_PYTHON_PACKAGES}", debian.BED_SUITE, str(root), address]
    run(argv, timeout=_DEBOOTSTRAP_TIMEOUT_S, log=work / "debootstrap.log")
    for name in _NOT_NEEDED:  # the folders stay, what is in them goes
        for path in (root / name).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    oci.write_image(target / "image.tar", PYTHON, [root], ImageConfig(command=["python3"], environment={"PYTHONUNBUFFERED": "1"}))
