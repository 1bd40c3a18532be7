"""python faults.py [WORD…]: plants the Go plugin's behaviour in a copy, fault by fault, and sees the named test fail.

WORD: only faults whose pitfall or title has it. First all named tests have to pass in the copy as it is. Exit code 1
when a test lets its fault through. Two copies at a time.
"""

from __future__ import annotations

import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
COPIED = (
    "device_plugin",
    "tests/device_plugin",
    "tests/tools",
    "tests/fixtures",
    "plugins/module_utils",
    "pyproject.toml",
)
PACKAGE = "device_plugin/rdma_device_plugin"
PATIENCE = 180
# What a single test does not need costs more than the test.
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
WORKERS = 2


@dataclass(frozen=True)
class Fault:
    """pitfall: of section 3 of the guide, or a section. edits: (file, text, text as upstream would have it)."""

    pitfall: str
    title: str
    test: str
    edits: tuple

    @property
    def label(self):
        return f"{self.pitfall}: {self.title}"


def fault(pitfall, title, test, *edits):
    return Fault(pitfall, title, test, edits)


FAULTS = (
    fault(
        "pitfall 1",
        "GetInfo names a path of its own mount namespace",
        "test_registration.py::test_get_info_names_no_endpoint",
        ("server.py", 'endpoint=""', 'endpoint=f"/var/lib/kubelet/plugins_registry/{self.offer.pool.socket}"'),
    ),
    fault(
        "pitfall 1",
        "waits for ever at an unwatched directory",
        "test_registration.py::test_an_unwatched_directory_leads_to_a_legacy_registration",
        (
            "lifecycle.py",
            "if self._places.mode == WATCH or not await",
            "if watched or self._places.mode == WATCH or not await",
        ),
    ),
    fault(
        "pitfall 1",
        "the kubelet's root is fixed",
        "test_contract.py::test_another_kubelet_root",
        ("cli.py", """{kubelet}/plugins_registry""", "/none/plugins_registry"),
    ),
    fault(
        "pitfall 2",
        "a refused registration leaves a zombie",
        "test_registration.py::test_a_refused_registration_is_reported_and_retried[watch]",
        ("lifecycle.py", "            await self._back_off()\n", "            await asyncio.Event().wait()\n"),
    ),
    fault(
        "pitfall 2",
        "one slot feeds one of several streams",
        "test_changes.py::test_every_stream_gets_every_update",
        (
            "server.py",
            "            if seen != self._version:\n",
            "            sent = self.__dict__.setdefault('_sent', 0)\n"
            "            if seen < 0 or (seen != self._version and sent != self._version):\n"
            "                self._sent = self._version\n",
        ),
    ),
    fault(
        "pitfall 2",
        "a stream that ends goes unnoticed",
        "test_registration.py::test_a_lost_stream_leads_to_a_new_registration[watch]",
        ("lifecycle.py", "return self.service.connected", "return self.service.connected or self._was_registered"),
    ),
    fault(
        "pitfall 2",
        "a kubelet restart is noticed by the slow poll only",
        "test_registration.py::test_a_kubelet_restart_is_noticed[legacy]",
        (
            "events.py",
            "        if self._fd < 0:\n            return False\n        for watch in",
            "        return False\n        for watch in",
        ),
        (
            "lifecycle.py",
            "    def streams_changed(self, count: int) -> None:\n        self._wake.set()",
            "    def streams_changed(self, count: int) -> None:\n        return",
        ),
    ),
    fault(
        "pitfall 2",
        "a call waits for a kubelet that is gone",
        "test_registration.py::test_a_kubelet_that_does_not_answer_is_left_for_its_successor",
        (
            "lifecycle.py",
            "if self._kubelet_is_new() or not self._listeners[self._places.plugins].published:",
            "if False:",
        ),
    ),
    fault(
        "pitfall 2",
        "a socket that is not listened on yet is a failure",
        "test_registration.py::test_a_socket_that_is_not_listened_on_yet",
        ("lifecycle.py", "if found is None or _now() >= deadline:", "if True:"),
    ),
    fault(
        "pitfall 2",
        "an unread stream delays the stop",
        "test_registration.py::test_a_kubelet_that_does_not_read_blocks_nothing",
        ("server.py", "        self._closed = True\n        self._wake()\n", "        self._wake()\n"),
        ("lifecycle.py", "    stop: float = 0.3", "    stop: float = 30.0"),
    ),
    fault(
        "pitfall 2",
        "a stopping plugin deletes the socket of its successor",
        "test_registration.py::test_a_socket_that_is_not_ours_is_left_alone",
        ("sockets.py", "if ours is None or identity(path) != ours:", "if ours is None:"),
    ),
    fault(
        "pitfall 2",
        "each try without a kubelet is a line in the log",
        "test_registration.py::test_a_plugin_without_a_kubelet_says_so_once",
        ("lifecycle.py", "if told in self._told or len(self._told) >= _REASONS_TOLD:", "if False:"),
    ),
    fault(
        "pitfall 2",
        "SIGHUP pushes nothing and reads nothing",
        "test_cli.py::test_sighup_reads_the_config_again",
        (
            "cli.py",
            "loop.add_signal_handler(signal.SIGHUP, plugin.reload)",
            "loop.add_signal_handler(signal.SIGHUP, int)",
        ),
    ),
    fault(
        "pitfall 3",
        "two instances serve one name",
        "test_registration.py::test_two_instances_take_turns",
        (
            "sockets.py",
            "        if self.held:\n            return True\n",
            "        if True:\n            return True\n",
        ),
        ("listener.py", "return not self.published and sockets.answers(self.path)", "return False"),
        ("sockets.py", "if there and there != before and (", "if False and ("),
    ),
    fault(
        "pitfall 2",
        "a socket is published over one that came meanwhile",
        "test_events.py::test_a_foreign_socket_is_never_overwritten",
        (
            "sockets.py",
            "        os.link(bound, path)  #",
            "        os.rename(bound, path)\n        os.link(path, bound)  #",
        ),
    ),
    fault(
        "pitfall 3",
        "the kubelet's race ends with nothing allocatable",
        "test_registration.py::test_the_kubelet_race_at_an_upgrade_ends_registered",
        ("lifecycle.py", "return self.service.connected", "return self.service.connected or self._was_registered"),
    ),
    fault(
        "pitfall 4",
        "specs of others are deleted",
        "test_cdi.py::test_foreign_specs_are_left_alone_and_ours_outlive_the_plugin",
        (
            "cdi.py",
            "    os.makedirs(directory, exist_ok=True)\n",
            "    os.makedirs(directory, exist_ok=True)\n"
            "    [os.unlink(f'{directory}/{one}') for one in os.listdir(directory) if one.startswith('nvidia.com')]\n",
        ),
    ),
    fault(
        "pitfall 4",
        "the spec is written once",
        "test_cdi.py::test_hot_plug_reaches_the_spec",
        ("cdi.py", "    if not offer.members:\n", "    if not offer.members or os.path.exists(path):\n"),
    ),
    fault(
        "pitfall 4",
        "two pools use one device name",
        "test_cdi.py::test_pools_that_share_an_hca_do_not_collide",
        ("cdi.py", 'return f"{offer.pool.name}:{hca.address', 'return f"{hca.address'),
    ),
    fault(
        "pitfall 4",
        "the spec comes after the first device",
        "test_cdi.py::test_the_spec_stands_before_the_first_device",
        (
            "daemon.py",
            "            await self._write_cdi(served.service, offer)\n            # An unusable directory",
            "            # An unusable directory",
        ),
    ),
    fault(
        "pitfall 5",
        "umad is required of every card",
        "test_contract.py::test_what_is_not_required_is_no_line_in_the_log",
        ("pools.py", '"umad": "required" if infiniband else "optional"', '"umad": "required"'),
    ),
    fault(
        "pitfall 5",
        "each scan logs everything again",
        "test_contract.py::test_what_is_not_required_is_no_line_in_the_log",
        ("log.py", "if _said.get(key) != state:", "if True:"),
    ),
    fault(
        "pitfall 5",
        "nothing says why a card is out",
        "test_cli.py::test_explain",
        ("explain.py", 'verdict = f"out: {out.text}" if out', 'verdict = "out" if out'),
    ),
    fault(
        "pitfall 6",
        "an empty pool waits for the next period",
        "test_changes.py::test_a_module_that_loads_late",
        ("daemon.py", "if interval and empty:", "if False:"),
    ),
    fault(
        "pitfall 6",
        "uevents are not received",
        "test_changes.py::test_hot_plug_is_reported_by_the_kernel",
        ("events.py", 'return uevent.get("SUBSYSTEM") in SUBSYSTEMS and', "return False and"),
    ),
    fault(
        "pitfall 7",
        "one bad function hides all",
        "test_contract.py::test_one_function_that_vanishes_hides_no_other",
        (
            "pools.py",
            "    tree = tree.snapshot()\n",
            "    tree = tree.snapshot()\n"
            "    if not all(tree.read(f'{paths.PCI}/{one}/vendor') for one in tree.listdir(paths.PCI)):\n"
            "        return Inventory()\n",
        ),
    ),
    fault(
        "pitfall 7",
        "pci.ids is needed",
        "test_contract.py::test_one_function_that_vanishes_hides_no_other",
        (
            "pools.py",
            "    tree = tree.snapshot()\n",
            "    tree = tree.snapshot()\n"
            "    if not tree.exists('/usr/share/misc/pci.ids'):\n"
            "        raise OSError('error getting PCI info')\n",
        ),
    ),
    fault(
        "pitfall 8",
        "no kubelet, no plugin",
        "test_registration.py::test_it_waits_for_a_kubelet_that_starts_later",
        (
            "lifecycle.py",
            "        if not await self._kubelet_listens():\n",
            "        if not await self._kubelet_listens():\n            raise CannotServe('no kubelet')\n",
        ),
    ),
    fault(
        "pitfall 8",
        "a missing directory ends the plugin",
        "test_registration.py::test_it_waits_for_directories_that_the_kubelet_will_make",
        ("lifecycle.py", "_UNRECOVERABLE = (errno.EACCES,", "_UNRECOVERABLE = (errno.ENOENT, errno.EACCES,"),
    ),
    fault(
        "pitfall 8",
        "units come and go with the HCAs",
        "test_changes.py::test_the_last_hca_gone_leaves_unhealthy_units",
        ("allocation.py", "count = pool.count if chosen or known else 0", "count = pool.count if chosen else 0"),
    ),
    fault(
        "pitfall 8",
        "ready only once the kubelet is up, which waits for us",
        "test_cli.py::test_a_service_manager_is_notified_of_start_and_stop",
        (
            "daemon.py",
            "            await self._sockets_tried()\n",
            "            while not all(served.resource.registered for served in self.served.values()):\n"
            "                await asyncio.sleep(0.1)\n",
        ),
    ),
    fault(
        "pitfall 9",
        "no NUMA hints",
        "test_contract.py::test_topology_is_opt_in",
        ("server.py", "for node in nodes:", "for node in ():"),
    ),
    fault(
        "pitfall 10",
        "each container gets all HCAs",
        "test_contract.py::test_the_environment_names_the_hcas_of_a_container",
        ("allocation.py", "return tuple(hca for hca in self.members if hca.name in wanted)", "return self.members"),
    ),
    fault(
        "pitfall 10",
        "the container's HCAs are not in its environment",
        "test_contract.py::test_the_environment_names_the_hcas_of_a_container",
        ("allocation.py", "if not self.pool.env or not chosen:", "if True:"),
    ),
    fault(
        "pitfall 11",
        "port states are never read",
        "test_changes.py::test_a_port_that_goes_down_and_comes_back",
        ("health.py", "up = self.states.get(key) == pools.ACTIVE", "up = True"),
    ),
    fault(
        "pitfall 11",
        "unhealthy for ever",
        "test_changes.py::test_a_port_that_goes_down_and_comes_back",
        (
            "pools.py",
            "    if before is None or before.up == up:\n",
            "    if before is not None and not before.up:\n"
            "        return before\n"
            "    if before is None or before.up == up:\n",
        ),
    ),
    fault(
        "pitfall 11",
        "a blip is reported",
        "test_changes.py::test_a_blip_is_not_reported",
        ("pools.py", "return Debounced(up) if due is not None and now >= due else waiting", "return Debounced(up)"),
    ),
    fault(
        "pitfall 11",
        "sysfs is read where RPCs are answered",
        "test_changes.py::test_a_file_of_sysfs_that_hangs_delays_nothing[fuse]",
        (
            "worker.py",
            "        loop = asyncio.get_running_loop()\n",
            "        return job(*arguments)\n        loop = asyncio.get_running_loop()\n",
        ),
    ),
    fault(
        "pitfall 11",
        "monitoring that hangs looks like health",
        "test_changes.py::test_a_hanging_read_delays_no_rpc_and_no_end",
        ("state.py", "return self.hangs > self.settings.hung", "return False"),
    ),
    fault(
        "pitfall 12",
        "the config is read once",
        "test_changes.py::test_a_changed_config_is_taken_over",
        ("configfile.py", "return self._seen is None or await", "return False and await"),
    ),
    fault(
        "pitfall 12",
        "an unusable config ends the plugin",
        "test_changes.py::test_a_config_that_cannot_be_used_leaves_the_old_one",
        (
            "daemon.py",
            '                self.reloads["failed"] += self.config_error != str(error)\n',
            "                raise Fatal(str(error))\n",
        ),
    ),
    fault(
        "pitfall 12",
        "the swap of a ConfigMap is noticed by the slow poll only",
        "test_changes.py::test_a_config_map_is_swapped",
        (
            "daemon.py",
            "    def _config_changed(self, _name: str) -> None:\n        self._reload_wanted.set()",
            "    def _config_changed(self, _name: str) -> None:\n        return",
        ),
    ),
    fault(
        "pitfall 13",
        "exclusive netns mode is a crash loop",
        "test_changes.py::test_exclusive_netns_is_a_state_not_an_exit",
        (
            "daemon.py",
            "            await self._apply(self.config)\n            await self._sockets",
            "            if self.inventory.exclusive:\n"
            "                raise Fatal('incorrect RDMA subsystem network namespace')\n"
            "            await self._apply(self.config)\n            await self._sockets",
        ),
    ),
    fault(
        "pitfall 14",
        "no metrics",
        "test_endpoints.py::test_metrics",
        ("endpoints.py", 'if path == "/metrics":', 'if path == "/none":'),
    ),
    fault(
        "pitfall 14",
        "no counters of the ports",
        "test_endpoints.py::test_counters_of_the_ports",
        ("metrics.py", '_KINDS = ("counters", "hw_counters")', "_KINDS = ()"),
    ),
    fault(
        "pitfall 14",
        "ready whatever happens",
        "test_endpoints.py::test_readiness_says_why_not",
        ("endpoints.py", "problems = status.problems(self._state)", "problems = []"),
    ),
    fault(
        "pitfall 17",
        "privileges are needed",
        "test_cli.py::test_no_capability_is_needed",
        (
            "cli.py",
            "    _all_descriptors()\n    try:\n",
            "    import ctypes\n\n"
            "    if ctypes.CDLL(None).unshare(0x20000):\n"
            "        return 1\n"
            "    _all_descriptors()\n    try:\n",
        ),
    ),
    fault(
        "CDI",
        "a spec is written once and never checked again",
        "test_cdi.py::test_a_spec_that_is_lost_is_written_again[removed]",
        ("daemon.py", "                parts.append(self._cdi_keeper())", "                pass"),
    ),
    fault(
        "CDI",
        "a failed write leaves its unfinished file behind",
        "test_cdi.py::test_a_full_folder_gets_its_spec_once_there_is_room",
        (
            "files.py",
            "    except OSError:\n        remove(unfinished)\n        raise\n",
            "    except OSError:\n        raise\n",
        ),
    ),
    fault(
        "sockets",
        "the age of a dead socket depends on the clock alone",
        "test_registration.py::test_its_own_dead_socket_is_replaced_whatever_the_clock_says",
        (
            "sockets.py",
            "return max(time.monotonic() - self._since, (time.time_ns() - found[2]) / 1e9)",
            "return (time.time_ns() - found[2]) / 1e9",
        ),
    ),
    fault(
        "sockets",
        "a lock that cannot be signed is not taken",
        "test_registration.py::test_a_full_disk_does_not_prevent_serving",
        (
            "sockets.py",
            "os.getpid(), 0)\n        except OSError:\n            pass\n",
            "os.getpid(), 0)\n        except OSError:\n            raise\n",
        ),
    ),
    fault(
        "config file",
        "waits for ever for an unresponsive file",
        "test_changes.py::test_a_hung_config_is_reported_and_blocks_nothing_else",
        ("configfile.py", "self._worker.within(self._patience, job, self.path)", "self._worker.run(job, self.path)"),
    ),
    fault(
        "config file",
        "a pipe is opened as a file",
        "test_changes.py::test_a_config_that_is_a_pipe_is_refused_at_once",
        ("configfile.py", " | os.O_NONBLOCK), ", "), "),
    ),
    fault(
        "config",
        "one entry that the kubelet would refuse ends all",
        "test_config.py::test_an_entry_that_the_kubelet_would_refuse_is_left_out_of_a_lenient_start[prefix]",
        ("config.py", "if lenient and pools else []", "if False else []"),
    ),
    fault(
        "config",
        "the length of a list with NUMA nodes is not checked",
        "test_config.py::test_a_list_fits_into_one_message_to_the_kubelet[auto-all-100000-False]",
        ("config.py", "            self._message(entry)\n", "            pass\n"),
    ),
    fault(
        "endpoints",
        "idle connections are all kept",
        "test_endpoints.py::test_idle_connections_use_up_no_descriptors",
        ("endpoints.py", "_MOST = 32", "_MOST = 10**6"),
    ),
    fault(
        "signals",
        "signals are taken with the event loop only",
        "test_cli.py::test_sighup_in_the_first_moment_does_not_end_it",
        ("__main__.py", "    signal.signal(signal.SIGHUP, lambda _number, _frame: None)\n", ""),
    ),
    fault(
        "log",
        "the log is written by the calling thread",
        "test_cli.py::test_an_unread_log_blocks_nothing",
        ("log.py", "else _Background(sys.stderr.fileno())", "else logging.StreamHandler(sys.stderr)"),
    ),
    fault(
        "descriptors",
        "the soft limit is left as it is",
        "test_cli.py::test_many_pools_within_the_limit_of_descriptors",
        ("cli.py", "    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n", ""),
    ),
    fault(
        "allocation",
        "any run of digits is made a number",
        "test_cli.py::test_a_device_id_of_thousands_of_digits_is_refused",
        ("allocation.py", " or len(unit) > len(str(known)):", ":"),
    ),
    fault(
        "1.3",
        "only the first netdev of a function counts",
        "test_pools.py::test_any_netdev_of_a_function_selects_it",
        ("pools.py", '("ifNames", chosen.ifNames, hca.netdevs)', '("ifNames", chosen.ifNames, hca.netdevs[:1])'),
    ),
    fault(
        "1.5",
        "a second port's umad is lost",
        "test_pools.py::test_a_device_with_two_ports_gives_all_its_files",
        ("pools.py", 'umad=tuple(characters["umad"])', 'umad=tuple(characters["umad"])[-1:]'),
    ),
    fault(
        "1.5",
        "any ID is served",
        "test_registration.py::test_allocate[watch]",
        (
            "allocation.py",
            "        if strange:\n",
            "        ids = [unit for unit in ids if unit not in strange] or ['0']\n        if False:\n",
        ),
    ),
    fault(
        "1.5",
        "rdma_cm once for each HCA",
        "test_registration.py::test_allocate[watch]",
        (
            "allocation.py",
            "            found.append(pools.RDMA_CM)\n",
            "            found += [pools.RDMA_CM] * len(chosen)\n",
        ),
    ),
    fault(
        "1.8",
        "GetPreferredAllocation has no answer",
        "test_registration.py::test_rpcs_that_the_kubelet_need_not_call[watch]",
        (
            "server.py",
            "        answer = api.PreferredAllocationResponse()\n",
            "        return None\n        answer = api.PreferredAllocationResponse()\n",
        ),
    ),
    fault(
        "DRA",
        "slices that a starting kubelet deleted stay away",
        "test_dra.py::test_a_starting_kubelet_wipes_the_slices",
        ("publisher.py", "raise Stale  # by a starting kubelet", "return  # by a starting kubelet"),
    ),
    fault(
        "DRA",
        "the API server is taken to keep every field",
        "test_dra.py::test_the_form_is_what_the_api_server_keeps[False-False]",
        ("publisher.py", "self.form = slices.form(answer)", "self.form = Form(True, True)"),
    ),
    fault(
        "DRA",
        "prepared claims are not remembered",
        "test_dra.py::test_a_restart_knows_what_is_prepared",
        ("preparer.py", "records[record.key.uid] = record", "pass"),
    ),
    fault(
        "DRA",
        "a uid becomes a path",
        "test_dra.py::test_a_uid_becomes_no_path[../../etc/passwd]",
        ("claims.py", "return bool(_UID.match(uid))", "return True"),
    ),
    fault(
        "DRA",
        "a device that has left the pool has no health",
        "test_dra.py::test_a_port_that_goes_down_and_comes_back[False]",
        ("draservice.py", "for device in known:", "for device in (one for one in known if one.up):"),
    ),
    fault(
        "DRA",
        "one HCA is counted by both APIs",
        "test_dra.py::test_one_hca_for_both_is_refused_at_the_start",
        (
            "daemon.py",
            "            if problem:\n                raise Fatal",
            "            if False:\n                raise Fatal",
        ),
    ),
    fault(
        "soak",
        "a port that is down counts as up",
        "test_soak.py::test_everything_at_once[both]",
        ("health.py", "up = self.states.get(key) == pools.ACTIVE", "up = key in self.states"),
    ),
    fault(
        "soak",
        "hysteresis by the wall clock, which is stepped",
        "test_soak.py::test_everything_at_once[both]",
        ("daemon.py", "judge(pool, chosen, memory, time.monotonic())", "judge(pool, chosen, memory, time.time())"),
    ),
    fault(
        "soak",
        "an ID that was advertised is refused later",
        "test_soak.py::test_everything_at_once[both]",
        ("allocation.py", "        known=max(known, count),\n", "        known=count,\n"),
    ),
    fault(
        "soak",
        "the CDI spec of a removed pool stays",
        "test_soak.py::test_everything_at_once[both]",
        (
            "daemon.py",
            "            if served.pool.name not in wanted:\n",
            "            if served.pool.name in wanted:\n",
        ),
    ),
    fault(
        "soak",
        "the record of an unprepared claim stays",
        "test_soak.py::test_everything_at_once[both]",
        (
            "preparer.py",
            "            records.pop(forget, None)\n",
            "            records.pop(record, None)\n",
        ),
    ),
    fault(
        "soak",
        "sockets stay behind",
        "test_soak.py::test_everything_at_once[both]",
        (
            "sockets.py",
            "    if ours is None or identity(path) != ours:\n        return False\n    try:\n",
            "    return False\n    try:\n",
        ),
    ),
    fault(
        "soak",
        "an exit code that is not 0",
        "test_soak.py::test_everything_at_once[both]",
        ("cli.py", "    _exit(0)\n", "    _exit(3)\n"),
    ),
    fault(
        "soak",
        "a descriptor for each file written",
        "test_soak.py::test_everything_at_once[both]",
        ("files.py", "        os.close(directory)\n", "        os.dup(directory)\n"),
    ),
    fault(
        "soak",
        "a thread for each file of a claim",
        "test_soak.py::test_everything_at_once[both]",
        ("preparer.py", "await self._files.within(", 'await Worker("files").within('),
    ),
    fault(
        "soak",
        "100 KiB for each Allocate",
        "test_soak.py::test_everything_at_once[both]",
        (
            "server.py",
            '        self.allocations["granted"] += len(answer.container_responses)\n',
            '        self.allocations["granted"] += len(answer.container_responses)\n'
            '        self.kept = [*getattr(self, "kept", ()), b"x" * (200 << 10)]\n',
        ),
    ),
    fault(
        "soak",
        "a state is logged again and again",
        "test_soak.py::test_everything_at_once[both]",
        ("log.py", "    if _said.get(key) != state:\n", "    if True:\n"),
    ),
    fault(
        "soak",
        "a changed device is not published",
        "test_soak.py::test_everything_at_once[both]",
        (
            "publisher.py",
            "        self.current = False\n        self._wake.set()\n        return True\n",
            "        self.current = False\n        return True\n",
        ),
    ),
    fault(
        "soak",
        "never ready",
        "test_soak.py::test_everything_at_once[both]",
        ("endpoints.py", "(503 if problems else 200)", "503"),
    ),
)


class Copy:
    """A checkout's device plugin and tests, where faults can be planted."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in COPIED:
            source, target = CHECKOUT / name, self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)

        # By content, because a fault is planted and taken back within the second that time stamps know.
        compileall = ["compileall", "-q", "--invalidation-mode", "checked-hash", str(self.folder)]
        subprocess.run([sys.executable, "-m", *compileall], check=True)

    def pytest(self, *tests, patience):
        """(exit code, output). patience: seconds for what a test waits for without a deadline."""
        names = [f"tests/device_plugin/{test}" for test in tests]
        command = [sys.executable, "-m", "pytest", "-q", "-x", *PLUGINS, *names]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "KUBELET_DOUBLE_PATIENCE": str(patience)}
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE * len(tests),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no end in {PATIENCE * len(tests)} s"
        return done.returncode, done.stdout + done.stderr

    def planted(self, planted):
        """Plant one fault, run its test, take the fault back: (whether the test saw it, output)."""
        before = {}
        try:
            for name, old, new in planted.edits:
                path = self.folder / PACKAGE / name
                text = path.read_text()
                before.setdefault(path, text)
                if text.count(old) != 1:
                    return False, f"{name} has {text.count(old)} times: {old}"
                path.write_text(text.replace(old, new))
            code, output = self.pytest(planted.test, patience=8)
        finally:
            for path, text in before.items():
                path.write_text(text)
        name = re.escape(planted.test.partition("::")[2])
        return code == 1 and re.search(rf"_+ {name} _+", output) is not None, output


def work(copy, waiting, missed):
    while True:
        try:
            planted = waiting.get_nowait()
        except queue.Empty:
            return
        begun = time.monotonic()
        seen, output = copy.planted(planted)
        took = time.monotonic() - begun
        if seen:
            sys.stdout.write(f"seen    {planted.label} ({took:.0f} s)\n")
        else:
            missed.append(planted)
            tail = "\n".join(output.splitlines()[-15:])
            sys.stdout.write(f"MISSED  {planted.label}: {planted.test} ({took:.0f} s)\n{tail}\n")
        sys.stdout.flush()


def main():
    words = sys.argv[1:]
    chosen = [one for one in FAULTS if not words or any(word in one.label for word in words)]
    if not chosen:
        sys.stdout.write("no such fault\n")
        return 2
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="faults", dir=base) as folder:
        copies = [Copy(f"{folder}/{number}") for number in range(WORKERS)]
        code, output = copies[0].pytest(*dict.fromkeys(one.test for one in chosen), patience=30)
        if code != 0 or "skipped" in output:
            sys.stdout.write(f"the tests do not pass without a fault (exit code {code}):\n{output[-4000:]}\n")
            return 1
        waiting = queue.SimpleQueue()
        for one in chosen:
            waiting.put(one)
        missed = []
        threads = [threading.Thread(target=work, args=(copy, waiting, missed)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.stdout.write(f"{len(chosen) - len(missed)} of {len(chosen)} faults seen\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
