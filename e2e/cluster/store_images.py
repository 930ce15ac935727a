"""Images of etcd and Redis for stories with several managers: programs of Debian packages with the libraries that they need, and nothing else.

The programs are called as in the images that everybody uses (`etcd`, `etcdctl`, `redis-server`, `redis-cli`), so that a manifest's commands fit both.
There is no shell in them. Only stories that ask for them load them: every start of a cluster would pay for it otherwise.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from e2e.cluster import debian, oci
from e2e.cluster.cache import Cache, key_of
from e2e.cluster.command import run
from e2e.cluster.oci import ImageConfig

_LIBC = ("libc6", "libgcc-s1")
_NOT_NEEDED = ("usr/share", "etc/init.d", "etc/logrotate.d", "lib/systemd", "usr/lib/systemd", "var")
_UNPRIVILEGED = "65532:65532"
_USERS = "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"


@dataclass(frozen=True, slots=True)
class StoreImage:
    """`image`: its name on the nodes. `trials`: commands that must run in it; the first one's program is what it is for."""

    image: str
    packages: tuple[str, ...]
    trials: tuple[tuple[str, str], ...]

    @property
    def entry(self) -> str:
        """Its name in the cache. Not `image-...`: those go to every node of every cluster."""
        return f"store-{self.image.rpartition('/')[2].partition(':')[0]}"


ETCD = StoreImage("local/etcd:1", ("etcd-server", "etcd-client", *_LIBC), (("etcd", "--version"), ("etcdctl", "version")))
REDIS = StoreImage(
    "local/redis:1",
    (
        *("redis-server", "redis-tools", *_LIBC, "libstdc++6", "libatomic1", "libjemalloc2", "liblzf1", "libssl3", "libsystemd0"),
        *("libcap2", "libgcrypt20", "libgpg-error0", "liblz4-1", "liblzma5", "libzstd1"),
    ),
    (("redis-server", "--version"), ("redis-cli", "--version")),
)
STORES = (ETCD, REDIS)


def store_image(cache: Cache, store: StoreImage) -> Path:
    """The archive, made first if need be. BedError if a program of it does not start."""
    key = key_of(Path(oci.__file__), Path(__file__), debian.BED_SUITE, store.image, *store.packages)
    return cache.obtain(store.entry, key, partial(_make, store)) / "image.tar"


def _make(store: StoreImage, target: Path, work: Path) -> None:
    root = work / "root"
    root.mkdir()
    made_from = debian.Debian(work / "apt").unpack(store.packages, root)
    for name in _NOT_NEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("tmp", "proc", "sys", "dev", "etc"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text(_USERS, encoding="utf-8")
    for trial in store.trials:
        run(["chroot", root, *trial], timeout=30)
    oci.write_image(target / "image.tar", store.image, [root], ImageConfig(command=[store.trials[0][0]], user=_UNPRIVILEGED))
    (target / "made-from.txt").write_text("\n".join(made_from) + "\n", encoding="utf-8")
