"""Variables that are gone, and what takes their place: the preflight refuses them by name."""

from __future__ import annotations

_NO_EXPORT = "take it out: a policy is imported (import_policy), no longer written"

_NO_BACKUP = "take it out: k3s saves and restores its datastore itself, as docs/cluster.md says under Save the cluster"

VARIABLES = {
    **dict.fromkeys(
        ("drift_markdown_file", "drift_prometheus_file"), "take it out: drift.json and drift.xml have what it had"
    ),
    **dict.fromkeys(("k3s_backup", "k3s_backup_dir", "k3s_restore_again", "k3s_restore_allowed"), _NO_BACKUP),
    "matrix_rounds_per_call": "take it out: the nodes run all rounds in one call",
    "driver_attachments": "take it out: names of interfaces are no longer predicted",
    "policy_operator_namespace": _NO_EXPORT,
    "policy_operator_version": _NO_EXPORT,
}
