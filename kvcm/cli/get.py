"""`kvcm get`: what a manager holds now."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from kvcm.cli.manager import FIRST, LEADER, add_manager_arguments, when_ready, with_manager
from kvcm.cli.output import print_json, print_table, print_yaml

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient
    from kvcm.client.admin_types import NodeCopies, NodeEndpoint, NodeState

Json = dict[str, Any]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("get", help="show what a manager holds", description="Show what a manager holds.")
    parser.add_argument("what", choices=tuple(_READERS), help="what to show")
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="format (default: %(default)s)")
    add_manager_arguments(parser, several=f"{LEADER}; for cluster and metrics {FIRST}")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    read, table = _READERS[options.what]
    found = with_manager(options, lambda admin: when_ready(lambda: read(admin), options))
    if options.output == "json":
        print_json(found)
    elif options.output == "yaml":
        print_yaml(found)
    else:
        table(found)
    return 0


async def _storages(admin: AdminClient) -> list[Json]:
    from kvcm.resources.translate import storage_spec, type_word

    storages = sorted(await admin.list_storages(), key=lambda storage: storage.name)
    return [{"name": storage.name, "type": type_word(storage.type), **storage_spec(storage)} for storage in storages]


def _storage_table(found: list[Json]) -> None:
    rows = []
    for item in found:
        backend = item[item["type"]]
        place = backend.get("rootPath") or backend.get("mountpoint") or backend.get("masterServiceEntry") or backend.get("domain")
        if "rootDir" in backend:
            place = f"{place}:{backend['rootDir']}"
        rows.append((item["name"], item["type"], item["enabled"], place))
    print_table(("NAME", "TYPE", "ENABLED", "PLACE"), rows)


async def _groups(admin: AdminClient) -> list[Json]:
    from kvcm.resources.translate import group_spec

    groups = sorted(await admin.list_groups(), key=lambda group: group.name)
    return [{"name": group.name, "version": group.version, **group_spec(group)} for group in groups]


def _metadata(backend: Json) -> str:
    """Where the index of a group is: memory (`local`), a file, Redis; of Redis also how, unless it is the usual way."""
    mode = backend.get("writeMode", "WriteThrough")
    return str(backend["type"]) if mode == "WriteThrough" else f"{backend['type']} ({mode})"


def _group_table(found: list[Json]) -> None:
    print_table(
        ("NAME", "VERSION", "QUOTA", "STORAGES", "PLACEMENT", "MAX-INSTANCES", "METADATA"),
        [
            (
                item["name"],
                item["version"],
                item["quota"]["total"],
                ",".join(item["storages"]),
                item["placement"]["preference"],
                item["maxInstances"],
                _metadata(item["metadataIndex"]["backend"]),
            )
            for item in found
        ],
    )


async def _instances(admin: AdminClient) -> list[Json]:
    found: list[Json] = []
    for group in sorted(await admin.list_groups(), key=lambda group: group.name):
        for instance in sorted(await admin.list_instances(group.name), key=lambda instance: instance.instance_id):
            model = instance.model_deployment
            found.append(
                {
                    "id": instance.instance_id,
                    "group": instance.instance_group_name,
                    "model": model.model_name,
                    "dtype": model.dtype,
                    "blockSize": instance.block_size,
                    "specs": [{"name": info.name, "size": info.size} for info in instance.location_spec_infos],
                    "specGroups": [{"name": item.name, "specs": list(item.spec_names)} for item in instance.location_spec_groups],
                }
            )
    return found


def _instance_table(found: list[Json]) -> None:
    print_table(
        ("ID", "GROUP", "MODEL", "DTYPE", "BLOCK-SIZE", "SPECS", "BYTES-PER-BLOCK"),
        [
            (
                item["id"],
                item["group"],
                item["model"],
                item["dtype"],
                item["blockSize"],
                ",".join(info["name"] for info in item["specs"]),
                sum(info["size"] for info in item["specs"]),
            )
            for item in found
        ],
    )


async def _cluster(admin: AdminClient) -> Json:
    info, health = await admin.cluster_info(), await admin.check_health()
    return {
        "nodeId": info.self_node_id,
        "healthy": health.healthy,
        "isLeader": health.leader,
        "leaderNodeId": info.leader_node_id,
        "leaderEpoch": info.leader_epoch,
        "leader": _endpoint(info.leader) if info.leader is not None else None,
        "nodes": [_node(node) for node in info.nodes],
    }


def _node(node: NodeState) -> Json:
    copies = _copies(node.copies) if node.copies is not None else None
    return _endpoint(node.endpoint) | {"role": node.role.value, "epoch": node.epoch, "copies": copies, "toldMsAgo": node.told_ms_ago}


def _endpoint(node: NodeEndpoint) -> Json:
    return {
        "nodeId": node.node_id,
        "host": node.host,
        "metaRpcPort": node.meta_rpc_port,
        "metaHttpPort": node.meta_http_port,
        "adminRpcPort": node.admin_rpc_port,
        "adminHttpPort": node.admin_http_port,
        "customInfo": node.custom_info,
    }


def _copies(copies: NodeCopies) -> Json:
    return {"state": copies.state.value, "warm": copies.warm, "filling": copies.filling, "behind": copies.behind, "behindMs": copies.behind_ms}


def _lag(copies: Json | None) -> tuple[str | None, str | None]:
    """How much of a follower's copies is complete, and how far those are behind."""
    if copies is None:
        return None, None
    some = copies["state"] == "loading" and copies["warm"] + copies["filling"] > 0
    state = f"loading ({copies['warm']} of {copies['warm'] + copies['filling']})" if some else copies["state"]
    return state, f"{copies['behind']} in {copies['behindMs'] / 1000:.1f}s" if copies["warm"] else None


def _seen(node: Json) -> str | None:
    """How old what the node says is: each says it every 10 s, so one of half a minute ago may be gone."""
    told = node.get("toldMsAgo")
    return f"{told // 1000}s" if told is not None else None


def _cluster_table(found: Json) -> None:
    """Every node; how healthy it is says only the one that was asked. A manager of another make tells of itself and the leader alone."""
    asked, leader = found["nodeId"], found["leader"]
    nodes: list[Json] = found["nodes"]
    if not nodes:
        nodes = [leader | {"role": "leader", "epoch": found["leaderEpoch"]}] if leader else []
    if all(node["nodeId"] != asked for node in nodes):
        nodes = [{"nodeId": asked, "role": "leader" if found["isLeader"] else "unknown"}, *nodes]
    ports = [("META-RPC", "metaRpcPort"), ("META-HTTP", "metaHttpPort"), ("ADMIN-RPC", "adminRpcPort"), ("ADMIN-HTTP", "adminHttpPort")]
    print_table(
        ("NODE", "ROLE", "EPOCH", "COPIES", "BEHIND", "SEEN", "HEALTHY", "HOST", *(name for name, _ in ports)),
        [
            (
                node["nodeId"],
                node["role"],
                node.get("epoch"),
                *_lag(node.get("copies")),
                _seen(node),
                found["healthy"] if node["nodeId"] == asked else None,
                node.get("host"),
                *(node.get(key) for _, key in ports),
            )
            for node in nodes
        ],
    )


async def _accounts(admin: AdminClient) -> list[Json]:
    accounts = sorted(await admin.list_accounts(), key=lambda account: account.name)
    return [{"name": account.name, "role": account.role.value} for account in accounts]


def _account_table(found: list[Json]) -> None:
    print_table(("NAME", "ROLE"), [(item["name"], item["role"]) for item in found])


async def _metrics(admin: AdminClient) -> list[Json]:
    report = await admin.metrics()
    samples = sorted(report.samples, key=lambda sample: (sample.name, sorted(sample.tags.items())))
    return [{"name": sample.name, "value": sample.value, "tags": dict(sample.tags)} for sample in samples]


def _metric_table(found: list[Json]) -> None:
    rows = [(item["name"], _number(item["value"]), ",".join(f"{key}={value}" for key, value in sorted(item["tags"].items()))) for item in found]
    print_table(("NAME", "VALUE", "TAGS"), rows)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_READERS: dict[str, tuple[Callable[[AdminClient], Awaitable[Any]], Callable[[Any], None]]] = {
    "storages": (_storages, _storage_table),
    "groups": (_groups, _group_table),
    "instances": (_instances, _instance_table),
    "cluster": (_cluster, _cluster_table),
    "accounts": (_accounts, _account_table),
    "metrics": (_metrics, _metric_table),
}
