"""Write `crds/*.yaml` from the models, with a kustomization that lists them, or check that they are up to date.

python -m kvcm.resources.generate [--check] [--no-cel] [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from kvcm.resources.schema import KINDS, KindInfo, crd

_HEADER = "# Generated from kvcm/resources by `python -m kvcm.resources.generate`. Do not edit.\n"


class _PlainDumper(yaml.SafeDumper):
    """Never writes anchors and aliases: readers of a CRD should not have to resolve them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render(info: KindInfo, *, cel: bool = True) -> str:
    """The file of one kind; the same text for the same models, always."""
    return _HEADER + yaml.dump(crd(info, cel=cel), Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


def kustomization() -> str:
    """Makes the folder a base, since kustomize takes folders from anywhere and files only from below itself."""
    document = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [info.file_name for info in KINDS]}
    return _HEADER + yaml.dump(document, Dumper=_PlainDumper, sort_keys=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcm.resources.generate", description="Write the CRDs from the models.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not what the models say")
    parser.add_argument("--no-cel", action="store_true", help="leave out the CEL rules, for API servers before 1.25")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "crds", help="folder of the files (default: crds/)")
    options = parser.parse_args(argv)
    stale = 0
    texts = {info.file_name: render(info, cel=not options.no_cel) for info in KINDS}
    for name, text in (texts | {"kustomization.yaml": kustomization()}).items():
        path: Path = options.out / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            sys.stderr.write(f"{path.name} differs from the models; run `python -m kvcm.resources.generate`\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.name}\n")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
