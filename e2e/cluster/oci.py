"""Write container images as OCI archives, with nothing but the standard library and without any registry.

One uncompressed layer per folder, on top of the layers of a base archive if there is one. Owners become root. Danger: Python checks the
time of a source file against its compiled one, so times of files are kept (a reset would make every start of a pod compile again).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster.errors import BedError

_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How a container of the image starts."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"

    def as_json(self) -> dict[str, Any]:
        return {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Env": [_PATH, *(f"{name}={value}" for name, value in self.environment.items())],
            "User": self.user,
            "WorkingDir": self.workdir,
        }


def full_name(name: str) -> str:
    """`local/x:1` as the kubelet resolves it: with the default registry in front. BedError without a tag, or with `latest`.

    A tag `latest` would make the kubelet ask a registry each time.
    """
    repository, colon, tag = name.rpartition(":")
    if not colon or not repository or not tag or tag == "latest" or "/" in tag:
        raise BedError(f"an image needs a name and a tag other than latest, as in local/app:1; this one is {name!r}")
    first = repository.split("/")[0]
    if "/" not in repository:
        return f"docker.io/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"docker.io/{name}"


def write_image(out: Path, name: str, folders: Sequence[Path], config: ImageConfig, *, base: Path | None = None) -> None:
    """Write the archive `out`; it appears only when it is complete. What is in `folders` lies at the root of the file system."""
    partial = out.with_name(out.name + ".partial")
    try:
        with tarfile.open(partial, "w") as archive:
            layers, diffs = _copy_base(base, archive) if base else ([], [])
            for folder in folders:
                layer = _add_layer(archive, folder, out.parent)
                layers.append(layer)
                diffs.append(layer["digest"])
            settings = {
                "architecture": "amd64",
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": diffs},
                "config": config.as_json(),
            }
            manifest = {"schemaVersion": 2, "mediaType": _MANIFEST_TYPE, "layers": layers}
            manifest["config"] = _add_blob(archive, json.dumps(settings).encode(), _CONFIG_TYPE)
            entry = _add_blob(archive, json.dumps(manifest).encode(), _MANIFEST_TYPE)
            whole = full_name(name)
            entry["annotations"] = {"io.containerd.image.name": whole, "org.opencontainers.image.ref.name": whole.rpartition(":")[2]}
            _add_file(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
            _add_file(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _add_file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _add_blob(archive: tarfile.TarFile, data: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _add_file(archive, f"blobs/sha256/{digest}", data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add_layer(archive: tarfile.TarFile, folder: Path, scratch: Path) -> dict[str, Any]:
    with tempfile.TemporaryFile(dir=scratch) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as layer:
            for name in sorted(os.listdir(folder)):
                layer.add(folder / name, arcname=name, filter=_owned_by_root)
        size = file.tell()
        file.seek(0)
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        file.seek(0)
        member = tarfile.TarInfo(f"blobs/sha256/{digest.hexdigest()}")
        member.size = size
        archive.addfile(member, file)
    return {"mediaType": _LAYER_TYPE, "digest": f"sha256:{digest.hexdigest()}", "size": size}


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def _copy_base(base: Path, archive: tarfile.TarFile) -> tuple[list[dict[str, Any]], list[str]]:
    """Copy the layers of another archive of this module; returns its layers and their uncompressed digests."""
    with tarfile.open(base) as source:

        def blob(digest: str) -> bytes:
            file = source.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            if file is None:
                raise BedError(f"{base.name} lacks a part that its index names")
            with file:
                return file.read()

        index_file = source.extractfile("index.json")
        if index_file is None:
            raise BedError(f"{base.name} is not an OCI archive")
        with index_file:
            index = json.loads(index_file.read())
        manifest = json.loads(blob(index["manifests"][0]["digest"]))
        settings = json.loads(blob(manifest["config"]["digest"]))
        for layer in manifest["layers"]:
            member = source.getmember(f"blobs/sha256/{layer['digest'].removeprefix('sha256:')}")
            archive.addfile(member, source.extractfile(member))
    return list(manifest["layers"]), list(settings["rootfs"]["diff_ids"])
