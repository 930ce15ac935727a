"""The command line of the test bed: python -m e2e.cluster {detect,build,up,down,status,smoke,image}"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from e2e.cluster import cel, crd_server
from e2e.cluster.cache import Cache
from e2e.cluster.detect import detect
from e2e.cluster.down import down
from e2e.cluster.errors import BedError
from e2e.cluster.handle import busy, running
from e2e.cluster.project_image import project_image
from e2e.cluster.settings import LEVELS, Settings, from_environment, nodes_of
from e2e.cluster.smoke import smoke
from e2e.cluster.up import build, up

_STARTED = time.monotonic()


def _say(sentence: str) -> None:
    sys.stdout.write(f"{time.monotonic() - _STARTED:6.1f}s {sentence}\n")
    sys.stdout.flush()


def _on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that `finally` and `except` undo what has begun


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description="A real Kubernetes on this machine for the end-to-end tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("detect", help="say what this machine can do: none, control or node, and why")
    fill = commands.add_parser("build", help="fill the cache (5 minutes on 2 cores the first time)")
    fill.add_argument("--cel", action="store_true", help="make the CRD server that knows CEL, and only it (3 to 5 minutes the first time)")
    start = commands.add_parser("up", help="start a cluster, building first what the cache lacks")
    start.add_argument("--level", choices=LEVELS[1:], help="go no higher than this")
    start.add_argument("--nodes", help="kubelets at the node level")
    start.add_argument("--owner", type=int, metavar="PID", help="the process for whose life the cluster is meant")
    end = commands.add_parser("down", help="end the cluster and put everything back; may run at any time")
    end.add_argument("--purge", action="store_true", help="delete the logs too")
    commands.add_parser("status", help="say whether a cluster is up, and where its kubeconfig is")
    commands.add_parser("smoke", help="try the running cluster")
    image = commands.add_parser("image", help="make a container image of this project, without any registry")
    image.add_argument("--name", required=True, help="as in local/kvcm:1; the tag latest is refused")
    image.add_argument("--out", type=Path, required=True, help="the OCI archive to write")
    image.add_argument("--with", dest="more", type=Path, action="append", default=[], help="a further project folder or wheel")
    image.add_argument("--extra", dest="extras", action="append", default=[], help="an optional part of this project, as in operator")
    image.add_argument("--load", action="store_true", help="give it to the nodes of the running cluster")
    image.add_argument("command_line", nargs="*", metavar="WORD", help="what a container runs (default: kvcm)")
    return parser


def _run(options: argparse.Namespace, settings: Settings) -> int:
    cache = Cache(settings.cache, _say)
    if options.command == "detect":
        ability = detect(settings, cache)
        sys.stdout.write(f"{ability}\n")
        return 0 if ability.level != "none" else 1
    if options.command == "build" and options.cel:
        reason = crd_server.why_not(cache)
        if reason:
            raise BedError(f"there can be no server with CEL, because {reason}")
        cel.build(cache)
    elif options.command == "build":
        ability = detect(settings, cache)
        _say(f"this machine: {ability}")
        build(settings, cache, ability.level)
    elif options.command == "up":
        settings = replace(
            settings,
            level=options.level or settings.level,
            nodes=nodes_of(options.nodes) if options.nodes else settings.nodes,
        )
        cluster = up(settings, cache, _say, owner=options.owner)
        _say(f"up; use it with: export KUBECONFIG={cluster.kubeconfig} PATH={cluster.kubectl_path.parent}:$PATH")
    elif options.command == "down":
        gone = down(settings.run, purge=options.purge) + cel.clear_left_over(settings, cache, purge=options.purge)
        kinds = Counter(what.split()[0] for what in gone)
        _say(f"down; ended and removed: {', '.join(f'{kind} {count}' for kind, count in kinds.items()) or 'nothing, none was up'}")
    elif options.command == "status":
        found = running(settings.run)
        if found is None:
            sys.stdout.write(f"{busy(settings.run) or 'no test cluster is up'}\n")
            return 1
        sys.stdout.write(f"up at level {found.level}, kubeconfig {found.kubeconfig}\n")
    else:
        return _use(options, settings, cache)
    return 0


def _use(options: argparse.Namespace, settings: Settings, cache: Cache) -> int:
    cluster = running(settings.run)
    if options.command == "smoke":
        if cluster is None:
            raise BedError("no test cluster is up; `python -m e2e.cluster up` starts one")
        smoke(cluster, _say)
        return 0
    root = Path(__file__).parents[2]
    command = options.command_line or ["kvcm"]
    project_image(cache, options.out, options.name, [root, *options.more], command, extras=options.extras)
    _say(f"wrote {options.out}")
    if options.load:
        if cluster is None:
            raise BedError("no test cluster is up to load the image into")
        cluster.load_image(options.out)
        _say(f"loaded into {cluster.nodes} nodes")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)
    try:
        return _run(_parser().parse_args(argv), from_environment())
    except BedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; what had begun is undone\n")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
