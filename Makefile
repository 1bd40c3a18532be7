# gpufabric.rdma: `make lab` and `make test` are all a newcomer needs; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

VENV := .venv
PLUGIN_VENV := .cache/plugin-venv
BIN := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export LC_ALL := C.UTF-8
export VENV
# The virtual environment holds the collections; nothing of the user's own ~/.ansible may shadow the checkout.
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/$(VENV)/collections
export ANSIBLE_HOME := $(CURDIR)/.ansible

# The tests lay out whole machines, thousands of small files: memory is the place for them where there is one.
SCRATCH := $(shell test -w /dev/shm && echo /dev/shm || echo $(CURDIR)/.cache)/gpufabric-rdma-tests

LAB_FOLDER := $(or $(LAB_DIR),.lab)
INVENTORY ?= inventory/lab
ARGS ?=
NODE ?= node1
N ?= 16
MINUTES ?= 10

##@ The two commands
.PHONY: lab test
lab: venv lab-packages ## Boot the lab's two nodes, run playbooks/site.yml on them, print a summary and where the report page is
	@lab/progress "the lab's nodes and bundle" lab/labctl up --bundle
	@lab/progress "site.yml on inventory/lab" ansible-playbook -i inventory/lab playbooks/site.yml \
		$$([ ! -e $(LAB_FOLDER)/cluster.yml ] || echo "-e @$(LAB_FOLDER)/cluster.yml") $(ARGS)

test: venv lab-packages $(PLUGIN_VENV)/.ready plugin-wheels ## Unit tests, linters, ansible-test sanity, tarball, the fast molecule scenario
	@tests/run-test

##@ Real nodes
.PHONY: site check drift
site: venv ## Run playbooks/site.yml: INVENTORY=… [ARGS=…]
	@ansible-playbook -i $(INVENTORY) playbooks/site.yml $(ARGS)

check: venv ## Say what site would change, and change nothing: INVENTORY=… [ARGS=…]
	@ansible-playbook -i $(INVENTORY) playbooks/site.yml --check --diff $(ARGS)

drift: venv ## Compare nodes with the inventory: 0 converged, 2 drift, 3 reboot pending, 4 unsafe: INVENTORY=… [ARGS=…]
	@python3 bin/drift.py -i $(INVENTORY) $(ARGS)

##@ The lab
.PHONY: lab-up lab-down lab-ssh lab-test lab-pitfalls lab-matrix lab-cluster lab-scenarios reboot-test driver-root driver-lab kill-sweep kill-modules bad-network kubelet-lab plugin-lab bench-peer rails restore-test lab-mirror dra-judge
lab-up: venv lab-packages ## Build the image once and boot the nodes (they are reused while they run)
	@lab/labctl up

lab-down: ## Remove the lab: nodes, disks, keys, image (KEEP_IMAGE=1 keeps the image)
	@lab/labctl down $(if $(KEEP_IMAGE),--keep-image)

lab-ssh: ## Open a shell on a node: NODE=node1
	@lab/labctl ssh $(NODE)

lab-test: venv lab-packages ## The VM scenario as molecule runs it
	@lab/progress "molecule scenario default" molecule test --scenario-name default

lab-pitfalls: export LAB_DIR := .lab/pitfalls
lab-pitfalls: export LAB_PORT_BASE := 22320
lab-pitfalls: lab-up ## What goes wrong on a real kernel: a busy namespace, a foreign file, a pulled cable; check mode against the run
	@lab/progress "host layer on a lab of its own" ansible-playbook -i inventory/lab playbooks/host.yml
	@lab/progress "pitfalls on the lab" pytest -v -n0 -rP --durations=10 tests/lab $(ARGS)
	@lab/labctl down --keep-image

lab-matrix: lab-up ## The bandwidth matrix on the nodes that `make lab` has set up: untouched, then with one rail throttled
	@lab/progress "bandwidth matrix on the lab" pytest -v -n0 tests/lab_matrix $(ARGS)

# What every commit is tested with: a bare node to pods with verbs, and a second run over planted pitfalls.
# ARGS=tests/cluster takes all scenarios.
lab-cluster: export LAB_NODES := node1
lab-cluster: export LAB_CLUSTER := testbed
lab-cluster: export LAB_MEMORY_MIB := 4096
lab-cluster: export LAB_DIR := .lab/cluster-single
lab-cluster: export LAB_PORT_BASE := 22700
lab-cluster: venv lab-packages ## One bare node to pods with verbs, then a second run that heals five pitfalls; needs Go
	@lab/progress "one node's cluster" pytest -v -rs -n0 $(or $(ARGS),tests/cluster/test_first_run.py tests/cluster/test_second_run_heals.py)

lab-mirror: venv lab-packages ## The way of the release, natively: a registry and a site on loopback, bundle.yml over them, compared with the test bed; needs Go
	@lab/packages mirror
	@lab/progress "bundle folder from a mirror" pytest -v -n0 -rP tests/lab_mirror $(ARGS)

lab-scenarios: venv lab-packages ## The cluster on a lab of its own: second run, drift, pitfalls, reboots, from a saved state; needs Go
	@LAB_DIR=.lab/cluster LAB_PORT_BASE=22600 lab/progress "scenarios of the lab's cluster" pytest -v -rs -n0 tests/cluster $(ARGS)

# Where: a fast node (native, host layer and device plugin), or a lab node with a cluster (BED=lab, needs Go).
BED ?= fast
KILL_LAB = $(if $(filter lab,$(BED)),LAB_NODES=node1 LAB_CLUSTER=testbed LAB_MEMORY_MIB=4096 LAB_DIR=.lab/kill LAB_PORT_BASE=22800)

kill-sweep: venv lab-packages plugin-wheels ## site.yml killed right after each task that changed something and after a sample: BED=fast|lab [CASES=N] [ARGS='-k limits']
	@$(KILL_LAB) lab/progress "killed after each task ($(BED))" python tests/interrupted/kill_sweep.py $(BED) $(if $(CASES),--cases $(CASES)) $(ARGS)

kill-modules: venv lab-packages plugin-wheels ## Modules killed on a fast node at random moments, then a run that must converge: [MODULE_KILLS=15]
	@lab/progress "modules killed on the node" pytest -n0 -v -rs tests/interrupted/test_killed_modules.py $(ARGS)

bad-network: venv lab-packages plugin-wheels ## A first run over 100 ms, 2 % loss and 1 Mbit/s, with full disks and without DNS (BED=lab: API server hangs, clock off, tc netem; needs Go)
	@$(KILL_LAB) lab/progress "bad network and broken nodes ($(BED))" pytest -n0 -v -rs \
		$(if $(filter lab,$(BED)),tests/cluster/test_bad_conditions.py,tests/interrupted/test_bad_network.py tests/interrupted/test_broken_nodes.py) $(ARGS)

reboot-test: venv ## Reboots of three servers with real members of etcd on this machine's loopback; needs Go
	@lab/progress "reboots of three servers" pytest -n0 -v tests/reboot $(ARGS)

restore-test: venv ## Backup, restore and the shared address on three servers with real etcd and keepalived, in network namespaces; needs root and Go
	@lab/packages servers
	@lab/progress "backup, restore and address of three servers" pytest -n0 -v -rs tests/restore $(ARGS)

dra-judge: venv $(PLUGIN_VENV)/.ready ## The DRA driver judged by the kubelet's and the scheduler's own code, without a machine; needs Go; [ARGS='-k scheduler']
	@DRA_JUDGE=1 lab/progress "DRA under Kubernetes' own code" pytest -n0 -v -rs tests/dra_judge $(ARGS)

plugin-lab: venv lab-packages ## The device plugin on a lab node of its own: hot-plug, links, kubelet restarts, config swaps, growth
	@lab/progress "device plugin on a lab node" python tests/device_plugin_lab/plugin_lab.py $(ARGS)

dra-objects: venv ## Our objects for DRA and the examples before Kubernetes' own code: decoding, CEL, the policy; needs Go
	@pytest -n0 -rs tests/dra_objects

driver-root: venv lab-packages ## The module driver in a root of the lab's image: faults, install, upgrade, downgrade, back to inbox
	@DRIVER_IMAGE=$$(lab/labctl image | tail -n 1) pytest -n0 -x -rs tests/driver/test_in_root.py

driver-lab: venv lab-packages ## The role driver on a lab node of its own: install, upgrade, downgrade, back to inbox
	@tests/run-driver-lab $(ARGS)

kubelet-lab: venv lab-packages plugin-image ## The device plugin under a real kubelet, on a lab node of its own; needs Go for the first run
	@KUBELET_LAB=1 lab/progress "device plugin under a real kubelet" pytest -v -x tests/kubelet $(ARGS)

bench-peer: venv lab-packages ## The Go plugin and ours on one lab node, in one run: ratios; needs Go
	@lab/progress "the Go plugin beside ours" python tests/device_plugin_lab/bench_peer.py $(ARGS)

rails: venv lab-packages plugin-wheels ## The fast scenario with many nodes: N=16
	@RAILS_NODES=$(N) lab/progress "molecule scenario rails ($(N) nodes)" molecule test --scenario-name rails

##@ Single stages
.PHONY: venv unit report-test plugin-test plugin-dra soak plugin-faults plugin-wheels plugin-image bench-facts bench-modules bench-plugin scale scale-actions lint sanity build test-versions gates judges judge-gates molecule-rails bench lab-packages dev-packages clean
venv: $(VENV)/.ready ## The virtual environment with the pinned tools and a link to this checkout

$(VENV)/.ready: requirements-dev.txt tests/tools/junit_schema.txt lab/packages | dev-packages
	@echo "== Python tools (requirements-dev.txt) into $(VENV)"
	@python3 -m venv $(VENV)
	@$(BIN)/pip --quiet install --requirement requirements-dev.txt
	@lab/link-collection $(VENV)
	@$(BIN)/python tests/tools/junit_schema.py
	@touch $@

dev-packages:
	@lab/packages dev

lab-packages:
	@lab/packages lab

unit: venv ## Unit tests, and the node side under Python 3.9 where one is installed
	@pytest -n auto --dist worksteal --durations=12 --basetemp=$(SCRATCH)
	@tests/run-node-pythons 3.9

REPORT_VENV := .cache/report-venv

report-test: venv $(REPORT_VENV)/.ready ## The report page in headless Chromium: size, load, requests, axe-core, keyboard, print; pictures
	@lab/packages browser
	@python tests/report/pages.py build/report
	@$(REPORT_VENV)/bin/python tests/report/browser.py build/report --pictures build/report/pictures $(ARGS)

$(REPORT_VENV)/.ready: tests/report/requirements.txt | dev-packages
	@echo "== the browser's driver and axe-core (tests/report/requirements.txt) into $(REPORT_VENV)"
	@python3 -m venv $(REPORT_VENV)
	@$(REPORT_VENV)/bin/pip --quiet install --requirement tests/report/requirements.txt
	@touch $@

plugin-test: $(PLUGIN_VENV)/.ready ## The device plugin against a kubelet double, in a virtual environment of its own
	@$(PLUGIN_VENV)/bin/python -m pytest -n 2 --basetemp=$(SCRATCH)-plugin tests/device_plugin $(ARGS)

plugin-dra: $(PLUGIN_VENV)/.ready ## The DRA driver's ResourceSlices on a real API server of this machine, with its gates on and off; needs Go
	@DRA_K3S=$${DRA_K3S:-build} $(PLUGIN_VENV)/bin/python -m pytest -n0 -v -rs --basetemp=$(SCRATCH)-dra tests/device_plugin/test_dra_real.py $(ARGS)

soak: $(PLUGIN_VENV)/.ready ## The device plugin under everything at once, against doubles: MINUTES=10 [ARGS='--seed 7 --legacy']; figures in build/soak.json
	@$(PLUGIN_VENV)/bin/python tests/device_plugin/soak.py $(MINUTES) --json build/soak.json $(ARGS)

plugin-faults: $(PLUGIN_VENV)/.ready ## Plant the Go plugin's behaviour, fault by fault, and see the named test fail
	@$(PLUGIN_VENV)/bin/python tests/device_plugin/faults.py $(ARGS)

$(PLUGIN_VENV)/.ready: device_plugin/requirements.txt device_plugin/requirements-dev.txt | dev-packages
	@echo "== the device plugin's libraries (device_plugin/requirements-dev.txt) into $(PLUGIN_VENV)"
	@python3 -m venv $(PLUGIN_VENV)
	@$(PLUGIN_VENV)/bin/pip --quiet install --requirement device_plugin/requirements-dev.txt
	@touch $@

# ARGS are those of the goal that was asked for: `make kubelet-lab ARGS=…` speaks to pytest.
plugin-wheels: venv ## The device plugin's locked wheels into build/wheels, for nodes and image: [ARGS='--python 3.12']
	@python device_plugin/fetch_wheels.py build/wheels $(if $(filter $@,$(MAKECMDGOALS)),$(ARGS))

plugin-image: plugin-wheels ## The device plugin's image on a Debian base, offline but for the mirror: build/plugin-image.tar
	@lab/packages image
	@python lab/plugin-image

lint: venv ## ruff and ansible-lint (production)
	@ruff check .
	@ruff format --check .
	@ansible-lint --offline

sanity: venv ## ansible-test sanity on a copy of what git tracks
	@tests/run-sanity

build: venv ## Build and install the tarball, compare what it holds
	@tests/run-build

test-versions: venv lab-packages plugin-wheels ## Sanity, unit tests and the fast scenario on each ansible-core and Python that is claimed: [ARGS='2.21.5/3.13 sanity']
	@tests/run-versions $(ARGS)

gates: venv ## Plant a fault for each gate and see it fail
	@tests/run-gates

judges: venv $(PLUGIN_VENV)/.ready ## Tools nobody here wrote over the collection and what it writes: a table; [ARGS='shellcheck reuse']
	@python tests/judges/judges.py $(ARGS)

judge-gates: venv $(PLUGIN_VENV)/.ready ## Plant a fault for each judge of make judges and see it refused
	@tests/run-judge-gates $(ARGS)

molecule-rails: venv lab-packages plugin-wheels
	@lab/progress "molecule scenario rails" molecule test --scenario-name rails

bench: bench-facts bench-plugin ## All figures; on a quiet machine

bench-facts: venv ## Time hca_facts against raw reads and against the command-line route
	@python tests/benchmarks/bench_facts.py $(ARGS)

# N is one number for other goals.
scale: venv lab-packages plugin-wheels ## What each further fast node costs, first and second run and drift: table, projection, plot: [N='1 2'] [ARGS='--rounds 2']
	@python tests/benchmarks/bench_scale.py $(if $(filter command line environment,$(origin N)),$(N),1 2 4 8 16 32 64) --plot build/scale/scale.svg $(ARGS)

scale-actions: venv ## Processor time of what handles all nodes at once, at 64 and 1,000 synthetic nodes: [ARGS='--only report --profile']
	@python tests/benchmarks/bench_actions.py $(ARGS)

bench-modules: venv ## What a call of each node module carries (bytes, files of ours) and the time of its imports: [ARGS=hca_facts]
	@python tests/benchmarks/bench_modules.py $(ARGS)

bench-plugin: $(PLUGIN_VENV)/.ready ## Time the device plugin over the kubelet double: [N=5] [ARGS=--realtime]
	@$(PLUGIN_VENV)/bin/python tests/device_plugin/bench.py $(if $(filter command line environment,$(origin N)),$(N),5) $(ARGS)

clean: ## Remove the virtual environment and all caches of this checkout
	@rm -rf $(VENV) .ansible .cache build .pytest_cache .ruff_cache

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
