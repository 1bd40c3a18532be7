# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Judge what was measured, print it, and write results, pages and captures
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. It writes only the files that it is given, the same bytes for the
    same input. In check mode it writes none, and a failure that a planned change explains counts as not verified.
  - A check has C(id), C(object), C(status) (passed, failed, not_verified, unused), C(wanted), C(seen) and C(next_step).
    One in the catalogue of failures has C(failure), its id there, and C(root) (true for the root cause) or
    C(consequence_of) (the id of its cause).
  - The schema of the results, drift and matrix documents is C(docs/schemas/results-1.json) of this collection.
requirements:
  - netaddr (the Python library, on the controller)
  - jmespath (the Python library, on the controller), for O(query)
extends_documentation_fragment: [gpufabric.rdma.reading.deciding]
options:
  kind:
    description:
      - V(verification) judges nodes, fabric and cluster by named checks, and prints them.
      - V(matrix) judges the tests of the bandwidth matrix, and prints them.
      - V(nccl_job) makes the nccl-tests job of O(job) from the facts of O(hosts). Evidence level E5, real hardware; no
        test of this project has run it.
      - V(nccl_log) evaluates the log of an nccl-tests job. It fails if traffic went over TCP (C(NET/Socket)),
        GPUDirect RDMA was absent, a rail stayed idle, a GID index was set, a value was wrong or the bandwidth is too
        low.
      - V(saved) writes C(report.html), C(report.json) and C(report.xml) (JUnit) from files of results.
      - V(facts) prints what nodes have and their problems, or with O(query) the result for each.
      - V(capture) writes what M(gpufabric.rdma.hca_facts) captured.
      - V(drift) marks where a comparison begins and ends, for the callback plugin P(gpufabric.rdma.drift#callback).
      - V(text) prints O(text) without its control characters, V(warning) prints it as a warning.
      - V(findings) fails with O(findings), and passes if there are none.
    type: str
    required: true
    choices: [verification, matrix, nccl_job, nccl_log, saved, facts, capture, drift, text, warning, findings]
  hosts:
    description:
      - Hosts to report on. For V(verification) all of the play; one without C(read) fails its check.
      - For V(nccl_job) those that it runs on, for V(nccl_log) those whose HCAs must be in use. Empty accepts any.
    type: list
    elements: str
    default: []
  variables:
    description:
      - Names of variables. For each host C(read), as M(gpufabric.rdma.plan) takes it; for V(facts) C(node), with
        C(facts) or C(failure) and C(expected_ports). C(started) and C(collected), what M(gpufabric.rdma.fabric_tests)
        returned. For V(verification) C(cni), what M(gpufabric.rdma.cni_lint) returned, and C(unasked), why the node's
        ports were not probed.
      - For the host that runs the task, for V(verification) C(planned) and C(ports), what M(gpufabric.rdma.plan)
        returned, and with its O(gpufabric.rdma.plan#module:tests) C(paired) and C(pods), for V(matrix) C(planned),
        C(pods) and C(pod_rounds); C(offered), what M(gpufabric.rdma.cluster_info) returned; and what
        M(gpufabric.rdma.test_pods) did, C(ran) and for V(verification) C(stopped), for V(matrix) C(sent) and
        C(removed).
    type: dict
    default: {}
  pods: {description: Whether test pods are part of a V(verification) or V(matrix)., type: bool, default: false}
  results:
    description: The results document, which V(verification) writes if it is set, and V(saved) reads.
    type: path
  drift: {description: 'For V(saved), a file with a drift document, which replaces the one in O(results).', type: path}
  matrix:
    description: For V(saved), a file with a matrix document, which replaces the one in O(results).
    type: path
  mark:
    description:
      - For V(drift). V(begin) gives the hosts that need a verdict and the files, and removes those of an earlier run;
        it fails if the recorder is not loaded or the run is not in check mode.
      - V(note) adds O(text) to the reasons of a host, V(end) closes the records of O(hosts).
    type: str
    choices: [begin, note, end]
  text:
    description: What to print, for O(mark=note) the remark, and for V(findings) the first line of the message.
    type: str
    default: ""
  findings:
    description: For V(findings), what to fail with.
    type: list
    elements: dict
    default: []
    suboptions:
      object: {description: The object., type: str, required: true}
      wanted: {description: The wanted state., type: str, required: true}
      seen: {description: What was found., type: str, required: true}
      next_step: {description: What to do., type: str, required: true}
      id: {description: 'Id of a known finding, if it is one.', type: str, default: ""}
      host: {description: Not used. Findings of M(gpufabric.rdma.plan) have it., type: raw}
      role: {description: Not used. Findings of M(gpufabric.rdma.plan) have it., type: raw}
  libraries:
    description: For V(findings), Python libraries. Each one that the controller cannot import is a finding too.
    type: list
    elements: str
    default: []
  run: {description: 'For O(mark=begin), the name of this run, which the verdict file repeats.', type: str, default: ""}
  directory: {description: 'The folder that V(saved) writes into, and V(drift). It need not exist.', type: path}
  junit_file:
    description: For O(mark=begin), where the JUnit XML goes, in O(directory). Empty writes none.
    type: path
  verdict_file:
    description: For O(mark=begin), where the verdict goes, in O(directory). Empty writes none.
    type: path
  page: {description: 'Whether V(verification) writes its page, and prints where it is.', type: bool, default: false}
  file:
    description:
      - Where V(capture), V(nccl_job) and the page of a V(verification) go. The folder need not exist.
      - If not set, a job is printed, and the page goes next to the inventory, as C(NAME-report.html) of an inventory
        C(NAME) or C(NAME.yml); for an inventory that is not a file, it is C(report.html) in the working directory.
    type: path
  title: {description: The title of the page., type: str, default: RDMA report}
  json_file:
    description: Where to write the document of a V(matrix) or V(drift), or the answers to O(query).
    type: path
  text_file: {description: Where to write what was printed of a V(matrix)., type: path}
  job:
    description: For V(nccl_job), the parts of the job.
    type: dict
    suboptions:
      form: {description: C(job) or C(mpijob)., type: str}
      image: {description: The image with its digest., type: str}
      namespace: {description: Namespace of the job., type: str}
      networks: {description: Network attachments of its pods., type: list, elements: str}
      gpus_per_node: {description: Null takes what each node has., type: int}
      address_range: {description: 'The address range; if null, derived from the rails.', type: str}
      resources: {description: As C(device_plugin_resources)., type: raw}
      fabric_plan: {description: As C(fabric_plan)., type: raw}
      script: {description: What C(job) runs., type: str}
  log: {description: 'For V(nccl_log), a file on the controller, produced with NCCL_DEBUG=INFO.', type: path}
  minimum_gbyte_per_s: {description: 'For V(nccl_log), the minimum bus bandwidth of the largest size.', type: float}
  query:
    description: For V(facts), a JMESPath expression, see U(https://jmespath.org), such as V(hcas[].[name,firmware]).
      An invalid one is an error even without O(hosts).
    type: str
  fixture: {description: 'For V(capture), the RV(gpufabric.rdma.hca_facts#module:fixture).', type: dict}
"""

EXAMPLES = r"""
- name: Write the page of saved results
  gpufabric.rdma.report:
    kind: saved
    results: results.json
    directory: report

- name: Evaluate the log of a job
  gpufabric.rdma.report:
    kind: nccl_log
    log: all_reduce.log

- name: Print the tables of the play's nodes
  gpufabric.rdma.report:
    kind: facts
    hosts: "{{ ansible_play_hosts_all }}"
    variables: {node: known}
  run_once: true

- name: Ask for consent
  gpufabric.rdma.report:
    kind: findings
    findings:
      - object: variable k3s_reset_allowed
        wanted: true or false
        seen: not set
        next_step: run again with -e k3s_reset_allowed=true
  when: k3s_reset_allowed is none
"""

RETURN = r"""
checks:
  description: The checks of each host.
  returned: O(kind=verification)
  type: dict
tally: {description: How many tests have each verdict., returned: O(kind=matrix), type: dict}
failing:
  description: For each of O(hosts) how many of its checks failed, those of the cluster included.
  returned: O(kind=verification)
  type: dict
document: {description: The matrix document., returned: O(kind=matrix), type: dict}
pods_failure: {description: 'Why the pods could not be measured, or empty.', returned: O(kind=matrix), type: str}
objects:
  description: The namespace and the job.
  returned: O(kind=nccl_job) without O(file)
  type: list
  elements: dict
files:
  description: The files, each with C(path), C(bytes) and C(changed). In check mode none of them is written.
  returned: if there are any
  type: list
  elements: dict
findings:
  description: What is wrong, each with C(host), C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: O(kind=findings), and if O(kind=saved) fails
  type: list
  elements: dict
"""
