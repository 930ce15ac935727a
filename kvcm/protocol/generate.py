"""Makes the checked-in Python modules from the `.proto` files beside this one, and from those of etcd's client in `kvcm/etcd`.

    python -m kvcm.protocol.generate            write them
    python -m kvcm.protocol.generate --check    write nothing; exit 1 if what is checked in differs

Needs `grpcio-tools` (in the `dev` extra), which only this script imports. The compiler runs from the folder above `kvcm`, so every file is
known to protobuf's global descriptor pool as `kvcm/<package>/<name>.proto` and cannot meet another package's file of the same base name.

Danger: the generated modules demand at run time a protobuf at least as new as the compiler that made them, so regenerating with a newer
`grpcio-tools` raises what users must have installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
ETCD_FOLDER = ROOT / "kvcm" / "etcd"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
# The etcd client names its methods itself: messages only.
MESSAGE_SUFFIXES = ("_pb2.py", "_pb2.pyi")
# The compiler's output does not hold to strict typing; its declarations are used as they are.
MARK = b"# mypy: ignore-errors\n"


def proto_files() -> list[Path]:
    return sorted(FOLDER.glob("*.proto"))


def generated_names() -> list[str]:
    return [proto.stem + suffix for proto in proto_files() for suffix in SUFFIXES]


def etcd_names() -> list[str]:
    return [proto.stem + suffix for proto in sorted(ETCD_FOLDER.glob("*.proto")) for suffix in MESSAGE_SUFFIXES]


def compile_into(out: Path) -> None:
    """Write the modules under `out/kvcm/protocol` and `out/kvcm/etcd`. Raises RuntimeError when the compiler refuses a file."""
    try:
        import grpc_tools  # type: ignore[import-untyped]
        from grpc_tools import protoc
    except ImportError as missing:
        raise RuntimeError("grpcio-tools is not installed; install the 'dev' extra to regenerate the protocol modules") from missing
    includes = Path(grpc_tools.__file__).parent / "_proto"
    common = ["protoc", f"-I{ROOT}", f"-I{includes}", f"--python_out={out}", f"--pyi_out={out}"]
    for folder, options, modules in (
        (FOLDER, [f"--grpc_python_out={out}"], generated_names()),
        (ETCD_FOLDER, [], etcd_names()),
    ):
        names = [str(proto.relative_to(ROOT)) for proto in sorted(folder.glob("*.proto"))]
        if protoc.main([*common, *options, *names]) != 0:
            raise RuntimeError("the protobuf compiler refused a file; its message is above")
        for name in modules:
            module = out / folder.relative_to(ROOT) / name
            module.write_bytes(MARK + module.read_bytes())


def differences(fresh: Path, checked_in: Path, names: Sequence[str] | None = None) -> list[str]:
    """Names of the modules that are missing or differ in `checked_in`; both are folders holding the modules themselves. `names`: the protocol's."""
    found = []
    for name in generated_names() if names is None else names:
        current = checked_in / name
        if not current.is_file() or current.read_bytes() != (fresh / name).read_bytes():
            found.append(name)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcm.protocol.generate", description="Generate the protobuf and gRPC modules.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a checked-in module is out of date")
    check = parser.parse_args(argv).check
    try:
        if not check:
            compile_into(ROOT)
            return 0
        with tempfile.TemporaryDirectory() as temporary:
            compile_into(Path(temporary))
            stale = differences(Path(temporary) / "kvcm" / "protocol", FOLDER)
            stale += differences(Path(temporary) / "kvcm" / "etcd", ETCD_FOLDER, etcd_names())
    except RuntimeError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    if stale:
        sys.stderr.write(f"Out of date: {', '.join(stale)}. Run `python -m kvcm.protocol.generate` and commit the result.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
