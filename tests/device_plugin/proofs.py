"""Which test proves what: the rows of the guide's section 2A, the pitfalls of its section 3.

Pitfalls 15 and 16 ask for no proof here: the one is a feature that stands (test_pools.py), the other is documentation.
`test_proofs.py` sees that each test exists; `faults.py` plants each old behaviour and sees its test fail.
"""

from __future__ import annotations

ROWS = {
    "A1": ["test_registration.py::test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for[watch]"],
    "A2": ["test_registration.py::test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for[legacy]"],
    "A3": ["test_contract.py::test_two_entries_and_their_interval"],
    "A4": ["test_contract.py::test_two_entries_and_their_interval"],
    "A5": ["test_contract.py::test_a_config_file_that_is_missing"],
    "A6": ["test_contract.py::test_a_config_that_upstream_refuses[A6]"],
    "A7": ["test_contract.py::test_two_entries_and_their_interval"],
    "A8": ["test_contract.py::test_two_entries_and_their_interval"],
    "A9": [
        "test_contract.py::test_a_count_of_zero",
        "test_registration.py::test_a_pool_without_units_registers[watch]",
    ],
    "A10": ["test_contract.py::test_a_config_that_upstream_refuses[A10]"],
    "A11": ["test_contract.py::test_a_config_that_upstream_refuses[A11]"],
    "A12": ["test_contract.py::test_a_config_that_upstream_refuses[A12]"],
    "A13": ["test_contract.py::test_a_config_that_upstream_refuses[A13]"],
    "A14": ["test_contract.py::test_a_config_that_upstream_refuses[A14]"],
    "A15": ["test_contract.py::test_a_config_that_upstream_refuses[A15]"],
    "A16": ["test_contract.py::test_a_config_that_upstream_refuses[A16]"],
    "A17": ["test_contract.py::test_network_functions_are_candidates"],
    "A18": ["test_contract.py::test_all_five_selectors"],
    "A19": ["test_contract.py::test_network_functions_are_candidates"],
    "A20": ["test_contract.py::test_a_node_without_pci"],
    "A21": ["test_registration.py::test_an_empty_pool_registers[watch]"],
    "A22": ["test_cdi.py::test_an_empty_pool_starts"],
    "A23": ["test_changes.py::test_periodic_scans[1-True]", "test_changes.py::test_periodic_scans[0-False]"],
    "A24": [
        "test_registration.py::test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for[watch]",
        "test_registration.py::test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for[legacy]",
    ],
    "A25": ["test_cli.py::test_a_directory_that_cannot_be_used_ends_it_with_code_1"],
    "A26": ["test_registration.py::test_it_waits_for_a_kubelet_that_starts_later"],
    "A27": ["test_registration.py::test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for[legacy]"],
    "A28": ["test_registration.py::test_a_pool_is_advertised_in_the_mode_that_the_directories_ask_for[watch]"],
    "A29": ["test_registration.py::test_a_refused_registration_is_reported_and_retried[watch]"],
    "A30": ["test_registration.py::test_get_info_names_no_endpoint"],
    "A31": [
        "test_registration.py::test_a_kubelet_restart_is_noticed[watch]",
        "test_registration.py::test_a_kubelet_restart_is_noticed[legacy]",
        "test_registration.py::test_a_clean_stop_leaves_nothing_behind[watch]",
        "test_registration.py::test_a_clean_stop_leaves_nothing_behind[legacy]",
    ],
    "A32": [
        "test_registration.py::test_our_removed_socket_is_recreated[watch]",
        "test_registration.py::test_our_removed_socket_is_recreated[legacy]",
    ],
    "A33": ["test_registration.py::test_a_stream_that_is_cancelled_does_not_hold_a_place[watch]"],
    "A34": [
        "test_changes.py::test_a_port_that_goes_down_and_comes_back",
        "test_changes.py::test_spread_reports_health_per_unit",
    ],
    "A35": ["test_cdi.py::test_the_spec_stands_before_the_first_device"],
    "A36": ["test_registration.py::test_allocate[watch]"],
    "A37": ["test_cdi.py::test_annotations_for_old_runtimes"],
    "A38": ["test_registration.py::test_allocate[watch]"],
    "A39": ["test_registration.py::test_allocate[watch]", "test_changes.py::test_a_changed_config_is_taken_over"],
    "A40": ["test_changes.py::test_hot_plug"],
    "A41": ["test_cdi.py::test_the_spec_stands_before_the_first_device"],
    "A42": ["test_cdi.py::test_annotations_for_old_runtimes"],
}

PITFALLS = {
    1: [
        "test_registration.py::test_get_info_names_no_endpoint",
        "test_registration.py::test_an_unwatched_directory_leads_to_a_legacy_registration",
        "test_contract.py::test_another_kubelet_root",
    ],
    2: [
        "test_registration.py::test_a_refused_registration_is_reported_and_retried[watch]",
        "test_registration.py::test_a_kubelet_restart_is_noticed[legacy]",
        "test_registration.py::test_a_lost_stream_leads_to_a_new_registration[watch]",
        "test_registration.py::test_a_kubelet_that_does_not_read_blocks_nothing",
        "test_registration.py::test_a_kubelet_that_does_not_answer_is_left_for_its_successor",
        "test_soak.py::test_kubelet_restarts_and_refusals_leave_nothing_behind[legacy]",
        "test_registration.py::test_a_socket_that_is_not_ours_is_left_alone",
        "test_registration.py::test_a_plugin_without_a_kubelet_says_so_once",
        "test_changes.py::test_every_stream_gets_every_update",
        "test_cli.py::test_sighup_reads_the_config_again",
    ],
    3: [
        "test_registration.py::test_two_instances_take_turns",
        "test_registration.py::test_the_kubelet_race_at_an_upgrade_ends_registered",
    ],
    4: [
        "test_cdi.py::test_the_spec_stands_before_the_first_device",
        "test_cdi.py::test_foreign_specs_are_left_alone_and_ours_outlive_the_plugin",
        "test_cdi.py::test_hot_plug_reaches_the_spec",
        "test_cdi.py::test_pools_that_share_an_hca_do_not_collide",
    ],
    5: [
        "test_contract.py::test_what_is_not_required_is_no_line_in_the_log",
        "test_cli.py::test_explain",
        "test_pools.py::test_efa_and_irdma_are_in",
    ],
    6: [
        "test_changes.py::test_a_module_that_loads_late",
        "test_changes.py::test_hot_plug_is_reported_by_the_kernel",
        "test_pools.py::test_a_missing_device_is_reported_with_its_module",
    ],
    7: ["test_contract.py::test_one_function_that_vanishes_hides_no_other"],
    8: [
        "test_registration.py::test_it_waits_for_a_kubelet_that_starts_later",
        "test_registration.py::test_it_waits_for_directories_that_the_kubelet_will_make",
        "test_changes.py::test_the_last_hca_gone_leaves_unhealthy_units",
        "test_cli.py::test_a_service_manager_is_notified_of_start_and_stop",
    ],
    9: ["test_contract.py::test_topology_is_opt_in"],
    10: ["test_contract.py::test_the_environment_names_the_hcas_of_a_container"],
    11: [
        "test_changes.py::test_a_port_that_goes_down_and_comes_back",
        "test_changes.py::test_a_blip_is_not_reported",
        "test_changes.py::test_a_hanging_read_delays_no_rpc_and_no_end",
        "test_changes.py::test_a_file_of_sysfs_that_hangs_delays_nothing[fuse]",
    ],
    12: [
        "test_changes.py::test_a_changed_config_is_taken_over",
        "test_changes.py::test_a_config_that_cannot_be_used_leaves_the_old_one",
        "test_changes.py::test_a_config_map_is_swapped",
    ],
    13: ["test_changes.py::test_exclusive_netns_is_a_state_not_an_exit"],
    14: [
        "test_endpoints.py::test_metrics",
        "test_endpoints.py::test_counters_of_the_ports",
        "test_endpoints.py::test_readiness_says_why_not",
    ],
    17: ["test_cli.py::test_no_capability_is_needed"],
}
