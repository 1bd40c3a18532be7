# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: service_account_tokens
short_description: Create service account tokens on a server node when needed
version_added: 0.1.0
description:
  - Creates one token for each service account, valid as long as the account exists, and returns them.
  - The tokens are secrets. Call it with C(no_log) and only when a node lacks its token.
extends_documentation_fragment:
  - gpufabric.rdma.changing
attributes:
  check_mode:
    support: full
    description: Creates and returns no token in check mode.
  diff_mode:
    support: none
    description: Tokens are never shown.
author:
  - The gpufabric founders (@gpufabric)
options:
  namespace: {description: Namespace of the service accounts., type: str, required: true}
  names: {description: The service accounts., type: list, elements: str, required: true}
  kubectl: {description: The command as a list of words., type: list, elements: str, default: [k3s, kubectl]}
  timeout_seconds: {description: How long the cluster may take to create them., type: int, default: 60}
"""

EXAMPLES = r"""
- name: Create the tokens of two nodes
  gpufabric.rdma.service_account_tokens:
    namespace: gpufabric-rdma
    names: [node-ready-node1, node-ready-node2]
  no_log: true
  register: made
"""

RETURN = r"""
tokens: {description: Token of each service account; empty in check mode., returned: success, type: dict}
"""

import base64
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import (
    Kubectl,
)

POLL_SECONDS = 1


def secret(namespace: str, account: str) -> dict:
    """A secret that the token controller fills in. It is deleted with the account."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": f"{account}-token",
            "namespace": namespace,
            "annotations": {"kubernetes.io/service-account.name": account},
        },
    }


def make(
    namespace: str, names: list, kubectl: Kubectl, timeout: float, clock=time.monotonic, sleep=time.sleep
) -> tuple:
    """({account: token}, whether a secret was created)."""
    wanted = [secret(namespace, name) for name in sorted(names)]
    before = _tokens(kubectl.existing(wanted))
    code, _out, error = kubectl.apply(wanted)
    if code:
        raise _failed(namespace, error)
    deadline = clock() + timeout
    while True:
        found = _tokens(kubectl.existing(wanted))
        lacking = sorted(set(names) - set(found))
        if not lacking:
            return found, bool(set(names) - set(before))
        if clock() >= deadline:
            raise _failed(namespace, f"no token for {', '.join(lacking)} after {timeout:.0f} s")
        sleep(POLL_SECONDS)


def _tokens(secrets: list) -> dict:
    """{account: token}."""
    found = {}
    for item in secrets:
        name = item["metadata"].get("annotations", {}).get("kubernetes.io/service-account.name")
        token = (item.get("data") or {}).get("token")
        if name and token:
            found[name] = base64.b64decode(token).decode("ascii")
    return found


def _failed(namespace: str, error: str) -> Refused:
    return Refused.because(
        f"namespace {namespace}",
        "a token for each service account",
        " ".join(error.split())[:300] or "no reason given",
        "check that the accounts exist (k3s kubectl get serviceaccounts -n " + namespace + ") and run again",
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "namespace": {"type": "str", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "timeout_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=bool(given["names"]), tokens={})

    kubectl = Kubectl(given["kubectl"], patience=given["timeout_seconds"])
    with reported(module):
        tokens, changed = make(given["namespace"], given["names"], kubectl, given["timeout_seconds"])
    module.exit_json(changed=changed, tokens=tokens)


if __name__ == "__main__":
    main()
