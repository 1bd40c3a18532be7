# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible loads this for every playbook in this folder, so the drift recorder need not be enabled."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.plugins.callback.drift import CallbackModule

__all__ = ["CallbackModule"]
