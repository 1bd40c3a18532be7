# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings from the command line, and the plugin's time limits."""

from __future__ import annotations

from typing import NamedTuple

from . import cdi
from .lifecycle import Places, Timing

# Its place in upstream's image.
CONFIG_FILE = "/k8s-rdma-shared-dev-plugin/config.json"


class Settings(NamedTuple):
    """The command line's settings."""

    config_file: str = CONFIG_FILE
    strict: bool = False
    use_cdi: bool = False
    cdi_mode: str = "devices"
    cdi_directory: str = cdi.DIRECTORY
    root: str = "/"
    places: Places = Places()
    timing: Timing = Timing()
    metrics: str = ""
    # DRA: which API serves the config's entries; credential and node name, and the kubelet's directory for drivers.
    mode: str = "device-plugin"
    kubeconfig: str = ""
    node_name: str = ""
    plugins_directory: str = "/var/lib/kubelet/plugins"
    # Seconds: between looks at port states; from an event to the scan, so that one scan serves a burst; the longest
    # wait for the first scan; between scans while a pool is empty; after which a read counts as hung; the longest wait
    # for a CDI spec to be written, for an answer of the API server, and for all servers to end.
    port_poll: float = 0.5
    settle: float = 0.1
    first_scan: float = 3.0
    empty_scan: float = 5.0
    hung: float = 30.0
    cdi_patience: float = 5.0
    api_timeout: float = 10.0
    stop: float = 5.0
