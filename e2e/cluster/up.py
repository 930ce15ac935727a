"""Bring a cluster up: take what is slow from the cache, then start the control plane and, at the node level, the nodes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import clients, debian, images, kubernetes, runtime, store_images
from e2e.cluster.cache import Cache, key_of
from e2e.cluster.control import ControlPlane, Programs
from e2e.cluster.detect import detect
from e2e.cluster.down import down
from e2e.cluster.errors import BedError
from e2e.cluster.handle import Cluster, busy, owner_of
from e2e.cluster.journal import Identity, Journal, prepare_run_folder
from e2e.cluster.nodes import Nodes
from e2e.cluster.pki import Pki
from e2e.cluster.process import Starter
from e2e.cluster.settings import HOST_IP, Settings
from e2e.cluster.space import Space, refuse_if_taken

Say = Callable[[str], None]


def build(settings: Settings, cache: Cache, level: str) -> dict[str, Path]:
    """Have everything in the cache that this level needs; returns the folders by name, and the images by theirs."""
    found = {clients.NAME: cache.obtain(clients.NAME, clients.key(), clients.make)}
    if settings.assets is not None:
        return found
    found[clients.ETCD_NAME] = cache.obtain(clients.ETCD_NAME, clients.etcd_key(), clients.make_etcd)
    found[kubernetes.NAME] = cache.obtain(kubernetes.NAME, kubernetes.key(), kubernetes.make)
    if level == "node":
        found[runtime.NAME] = cache.obtain(runtime.NAME, runtime.key(), runtime.make)
        for image in images.images(lambda: found[kubernetes.NAME], lambda: found[runtime.NAME]):
            found[image.name] = cache.obtain(image.name, image.key, image.make) / "image.tar"
        for store in store_images.STORES:
            found[store.entry] = store_images.store_image(cache, store)
    return found


def up(settings: Settings, cache: Cache, say: Say, *, owner: int | None = None) -> Cluster:
    """Start a cluster at the highest level that is possible and wanted. BedError if none is, or if one is up already.

    With `owner`, the cluster may be cleared away by the next `up` once that process has ended. When anything fails, all is undone.
    """
    ability = detect(settings, cache)
    say(f"this machine: {ability}")
    if ability.level == "none":
        raise BedError(f"no test cluster can run: {ability.reason}")
    life = owner_of(owner) if owner is not None else None
    made = build(settings, cache, ability.level)
    prepare_run_folder(settings.run)
    with _alone(settings):
        why_not = busy(settings.run)
        if why_not:
            raise BedError(why_not)
        if Journal(settings.run).path.exists():
            say("clearing away a cluster that was not taken down")
        down(settings.run, purge=True)
        prepare_run_folder(settings.run)
        tools = {"openssl": "openssl", **(runtime.HOST_TOOLS if ability.level == "node" else {})}
        debian.need_tools(tools)
        try:
            return _start(settings, ability.level, made, say, life)
        except BaseException:
            down(settings.run, purge=False)
            raise


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Two `up` at once would read each other's half-written journal. The lock lies in the cache, because the run folder comes and goes."""
    with (settings.cache / f"up-{key_of(str(settings.run))}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BedError(f"another process is starting a test cluster in {settings.run}") from None
        yield


def _start(settings: Settings, level: str, made: dict[str, Path], say: Say, owner: Identity | None) -> Cluster:
    started = time.monotonic()
    with_nodes = level == "node"
    journal = Journal(settings.run)
    maker = owner_of(os.getpid())
    journal.add("maker", "up", pid=maker.pid, start=maker.start, boot=maker.boot)
    starter, pki = Starter(journal), Pki(settings.run / "pki")
    servers = settings.assets or made[kubernetes.NAME]
    space = Space(starter, servers / "pause")
    if with_nodes:
        refuse_if_taken()
        space.open(settings.nodes)
    programs = Programs(
        etcd=settings.assets / "etcd" if settings.assets else made[clients.ETCD_NAME] / "etcd",
        api_server=servers / "kube-apiserver",
        controller_manager=_if_there(servers / "kube-controller-manager"),
        scheduler=_if_there(servers / "kube-scheduler") if with_nodes or settings.assets is None else None,
    )
    # another cluster of this machine looks for its ports elsewhere, so that two that start at once do not take the same
    after_port = 21000 + os.getpid() * 7 % 7000
    address = HOST_IP if with_nodes else "127.0.0.1"
    plane = ControlPlane(starter, pki, programs, address=address, with_nodes=with_nodes, after_port=after_port)
    control = plane.start()
    say(f"the control plane answers after {time.monotonic() - started:.1f} s at {control.server}")
    if with_nodes:
        pki.kubeconfig("kube-proxy", control.server)
        archives = [path for name, path in made.items() if name.startswith("image-")]
        nodes = Nodes(starter, pki, space, servers=servers, runtime=made[runtime.NAME], images=archives, server=control.server)
        nodes.start(settings.nodes)
        say(f"{settings.nodes} nodes are Ready after {time.monotonic() - started:.1f} s")
    programs_of_user = made[clients.NAME]
    cluster = Cluster(
        level=level,
        kubeconfig=settings.run / "pki/admin.kubeconfig",
        version=control.version,
        kubectl_path=_if_there(servers / "kubectl") or programs_of_user / "kubectl",
        helm_path=programs_of_user / "helm",
        controllers=programs.controller_manager is not None,
        nodes=settings.nodes if with_nodes else 0,
        run=settings.run,
        ctr=made[runtime.NAME] / "bin/ctr" if with_nodes else None,
        owner=owner,
    )
    cluster.save()
    return cluster


def _if_there(program: Path) -> Path | None:
    return program if os.access(program, os.X_OK) else None
