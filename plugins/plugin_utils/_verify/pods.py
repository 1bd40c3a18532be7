# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which test pods a cluster can run.

PRIVATE to the collection. Pure; runs on the controller.
"""

from __future__ import annotations

from ...module_utils._kube import pods as kube_pods
from . import pod_checks


def plan(cluster: dict) -> dict:
    """namespace, objects, pods and left_out, as kube_pods.plan returns them; none if the cluster could not be read.

    cluster: hosts, read (what cluster_info returned), namespace, image; pod_name if a user's pod is checked.
    """
    hosts, read = cluster["hosts"], cluster["read"].get("cluster")
    if not read or cluster.get("pod_name"):
        return {"namespace": cluster["namespace"], "objects": [], "pods": [], "left_out": {}}
    offered = {**read, "networks": pod_checks.networks_of(read, hosts)}
    offered["nads"] = [nad for nad in read["nads"] if nad["kind"] == "NetworkAttachmentDefinition"]
    return kube_pods.plan(hosts, offered, {"namespace": cluster["namespace"], "image": cluster["image"]})
