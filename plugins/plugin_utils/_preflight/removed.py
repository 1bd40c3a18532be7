# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that are gone, and what takes their place: the preflight refuses them by name."""

from __future__ import annotations

_NO_EXPORT = "take it out: a policy is imported (import_policy), no longer written"

VARIABLES = {
    "driver_attachments": "take it out: names of interfaces are no longer predicted",
    "policy_operator_namespace": _NO_EXPORT,
    "policy_operator_version": _NO_EXPORT,
}
