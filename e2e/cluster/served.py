"""Let the source of Kubernetes 1.20 also serve the API versions that today's manifests use.

policy/v1 (PodDisruptionBudget, Eviction), batch/v1 CronJob and autoscaling/v2 HorizontalPodAutoscaler have the fields of policy/v1beta1,
batch/v1beta1 and autoscaling/v2beta2. So the Go types of the old versions are registered under the new names as well; no generated code
changes and what is stored stays as it was. The additions are files of their own; the few lines that must change are each checked to be there
exactly once, so that another source version fails the build here and not the tests later.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import BedError


@dataclass(frozen=True, slots=True)
class Served:
    """A group's newer version and the older one whose Go types it lends."""

    group: str
    version: str
    lender: str
    kinds: tuple[str, ...]
    storage: str
    """Go statements that fill `storage`, a map of resource name to store; `p`, `source` and `getter` are in scope."""
    known: bool = False
    """True if the server has the version already, without these kinds."""


_LENT = """	storage, err := p.{method}(source, getter)
	if err != nil {{
		return info, false, err
	}}
{after}	info.VersionedResourcesStorageMap["{version}"] = storage
"""

_SERVED = (
    Served(
        "policy",
        "v1",
        "v1beta1",
        ("PodDisruptionBudget", "PodDisruptionBudgetList", "Eviction"),
        _LENT.format(method="v1beta1Storage", version="v1", after='\tdelete(storage, "podsecuritypolicies") // never was in policy/v1\n'),
    ),
    Served(
        "autoscaling",
        "v2",
        "v2beta2",
        ("HorizontalPodAutoscaler", "HorizontalPodAutoscalerList"),
        _LENT.format(method="v2beta2Storage", version="v2", after=""),
    ),
    Served(
        "batch",
        "v1",
        "v1beta1",
        ("CronJob", "CronJobList"),
        """	storage, err := p.v1beta1Storage(source, getter)
	if err != nil {
		return info, false, err
	}
	for name, store := range storage {
		info.VersionedResourcesStorageMap["v1"][name] = store
	}
""",
        known=True,
    ),
)

_INSTALL_FILE = "pkg/apis/{group}/install/also_served.go"
_INSTALL_TEXT = """package install

import (
	lender "k8s.io/api/{group}/{lender}"
{meta_import}	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// A version without a set priority comes after those that have one, so the stored version stays the first.
func init() {{
	also := schema.GroupVersion{{Group: "{group}", Version: "{version}"}}
	legacyscheme.Scheme.AddKnownTypes(also, {kinds})
{meta}}}
"""

_STORAGE_FILE = "pkg/registry/{group}/rest/also_served.go"
_STORAGE_TEXT = """package rest

import (
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
)

func (p RESTStorageProvider) alsoServed(
	info genericapiserver.APIGroupInfo, source serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter,
) (genericapiserver.APIGroupInfo, bool, error) {{
{body}	return info, true, nil
}}
"""


_ENABLE_FILE = "pkg/controlplane/also_served.go"
_ENABLE_TEXT = """package controlplane

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
)

func enableAlsoServed(config *serverstorage.ResourceConfig) {{
{body}}}
"""


def serve_newer_versions(source: Path) -> None:
    """Change the unpacked source in place. BedError if it is not the source that this was written for."""
    for served in _SERVED:
        _add(source, _INSTALL_FILE.format(group=served.group), _install_text(served))
        _add(source, _STORAGE_FILE.format(group=served.group), _STORAGE_TEXT.format(body=served.storage))
        edit_once(
            source,
            f"pkg/registry/{served.group}/rest/storage_{served.group}.go",
            "\treturn apiGroupInfo, true, nil\n",
            "\treturn p.alsoServed(apiGroupInfo, apiResourceConfigSource, restOptionsGetter)\n",
        )
    enabled = "".join(f'\tconfig.EnableVersions(schema.GroupVersion{{Group: "{s.group}", Version: "{s.version}"}})\n' for s in _SERVED if not s.known)
    _add(source, _ENABLE_FILE, _ENABLE_TEXT.format(body=enabled))
    explicit = "\t// enable non-deprecated beta resources in extensions/v1beta1 explicitly"
    edit_once(source, "pkg/controlplane/instance.go", explicit, f"\tenableAlsoServed(ret)\n{explicit}")
    edit_once(
        source,
        "cmd/kube-apiserver/app/aggregator.go",
        '\t{Group: "policy", Version: "v1beta1"}: ',
        '\t{Group: "policy", Version: "v1"}: {group: 17100, version: 15},\n'
        '\t{Group: "autoscaling", Version: "v2"}: {group: 17500, version: 30},\n'
        '\t{Group: "policy", Version: "v1beta1"}: ',
    )
    # the body of pods/eviction may be of either version
    edit_once(
        source,
        "staging/src/k8s.io/apiserver/pkg/endpoints/handlers/create.go",
        "\t\tif gvk.GroupVersion() != gv {\n",
        '\t\tif gvk.GroupVersion() != gv && (gv.Group != "policy" || gvk.Group != "policy") {\n',
    )


def _install_text(served: Served) -> str:
    return _INSTALL_TEXT.format(
        group=served.group,
        version=served.version,
        lender=served.lender,
        kinds=", ".join(f"&lender.{kind}{{}}" for kind in served.kinds),
        meta_import="" if served.known else '\tmetav1 "k8s.io/apimachinery/pkg/apis/meta/v1"\n',
        meta="" if served.known else "\tmetav1.AddToGroupVersion(legacyscheme.Scheme, also)\n",
    )


def _add(source: Path, name: str, text: str) -> None:
    path = source / name
    if path.exists() or not path.parent.is_dir():
        raise BedError(f"{name} cannot be added to this Kubernetes source; served.py was written for 1.20.2")
    path.write_text(text, encoding="utf-8")


def edit_once(source: Path, name: str, old: str, new: str) -> None:
    """Replace a text that must be there exactly once. BedError if it is not."""
    path = source / name
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise BedError(f"{name} of this Kubernetes source is not as expected; the changes were written for 1.20.2")
    path.write_text(text.replace(old, new), encoding="utf-8")


if __name__ == "__main__":
    serve_newer_versions(Path(sys.argv[1]))
