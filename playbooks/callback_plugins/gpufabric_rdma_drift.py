# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible loads what stands here with every playbook beside it, so that nobody has to enable the drift recorder."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.plugins.callback.drift import CallbackModule

__all__ = ["CallbackModule"]
