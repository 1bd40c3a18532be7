# gpufabric.rdma: start with `make lab` and `make test`; `make` lists the rest.
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
# The virtual environment holds the collections; nothing in the user's ~/.ansible may shadow the checkout.
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/$(VENV)/collections
export ANSIBLE_HOME := $(CURDIR)/.ansible

# The tests write the files of whole machines, thousands of small ones: keep them in memory where possible.
SCRATCH := $(shell test -w /dev/shm && echo /dev/shm || echo $(CURDIR)/.cache)/gpufabric-rdma-tests

LAB_FOLDER := $(or $(LAB_DIR),.lab)
ARGS ?=
MINUTES ?= 10
SCENARIO ?= rails

.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(lastword $(MAKEFILE_LIST)))

##@ The two commands
lab: $(VENV)/.ready ## Boot the lab's two nodes, run playbooks/site.yml on them, print a summary and the path of the report
	@lab/packages lab
	@lab/progress "the lab's nodes and bundle" lab/labctl up --bundle
	@lab/progress "site.yml on inventory/lab" env $$(cat $(LAB_FOLDER)/environment 2>/dev/null) ansible-playbook -i inventory/lab playbooks/site.yml \
		$$([ ! -e $(LAB_FOLDER)/cluster.yml ] || echo "-e @$(LAB_FOLDER)/cluster.yml") $(ARGS)

lab-down: ## Remove the lab: nodes, disks, keys, image (KEEP_IMAGE=1 keeps the image); a shell on a node: lab/labctl ssh node1
	@lab/labctl down $(if $(KEEP_IMAGE),--keep-image)

test: $(VENV)/.ready $(PLUGIN_VENV)/.ready ## All stages of the next group, in two parallel lanes
	@lab/packages lab
	@tests/run-test

##@ Stages of make test
unit: $(VENV)/.ready ## Unit tests, and the node side under Python 3.9 if it is installed
	@pytest -n auto --dist worksteal --durations=12 --basetemp=$(SCRATCH) $(ARGS)
	@tests/run-node-pythons 3.9

plugin-test: $(PLUGIN_VENV)/.ready ## The device plugin against a kubelet double, in a separate virtual environment
	@$(PLUGIN_VENV)/bin/python -m pytest -n 2 --basetemp=$(SCRATCH)-plugin $(or $(ARGS),tests/device_plugin)

lint: $(VENV)/.ready ## ruff, import-linter, ansible-lint (production), schemas of the example pipelines
	@ruff check .
	@ruff format --check .
	@PYTHONPATH=device_plugin lint-imports --no-cache --no-logo
	@python tests/figures.py
	@ansible-lint --offline
	@check-jsonschema --builtin-schema vendor.github-workflows docs/examples/drift/github-actions.yml .github/workflows/*.yml
	@check-jsonschema --builtin-schema vendor.gitlab-ci docs/examples/drift/gitlab-ci.yml

sanity: $(VENV)/.ready ## ansible-test sanity on a copy of what git tracks
	@tests/run-sanity $(ARGS)

build: $(VENV)/.ready ## Build and install the tarball, check its contents
	@tests/run-build

molecule: $(VENV)/.ready ## A molecule scenario: SCENARIO=rails (fast nodes, RAILS_NODES=16) or default (the VM lab)
	@lab/packages lab
	@python device_plugin/fetch_wheels.py build/wheels
	@lab/progress "molecule scenario $(SCENARIO)" molecule test --scenario-name $(SCENARIO)

##@ Stages of .ci/run and .ci/release
# From a bare node to pods with verbs, then a second run over planted faults. All scenarios, on two nodes:
# make cluster LAB_NODES="node1 node2" ARGS=tests/cluster
cluster: export LAB_NODES ?= node1
cluster: export LAB_CLUSTER ?= testbed
cluster: export LAB_MEMORY_MIB ?= 4096
cluster: export LAB_DIR ?= .lab/cluster
cluster: export LAB_PORT_BASE ?= 22700
cluster: $(VENV)/.ready ## A cluster in the lab, from bare nodes to pods with verbs; ARGS=tests/cluster runs all scenarios; needs Go
	@lab/packages lab
	@lab/progress "the lab's cluster" pytest -v -rs -n0 $(or $(ARGS),tests/cluster/test_first_run.py tests/cluster/test_second_run_heals.py)

servers-test: $(VENV)/.ready ## Three servers on this machine: reboots with real etcd, the shared address with real keepalived; needs root and Go
	@lab/packages servers
	@lab/progress "three servers" pytest -n0 -v -rs tests/three_servers $(ARGS)

driver-root: $(VENV)/.ready ## The driver module in a root of the lab's image: faults, install, upgrade, downgrade, back to inbox; NODE=1: the role on a lab node
	@lab/packages lab
	@$(if $(NODE),tests/run-driver-lab $(ARGS),DRIVER_IMAGE=$$(lab/labctl image | tail -n 1) pytest -n0 -x -rs tests/driver/test_in_root.py)

judges: $(VENV)/.ready ## Third-party checkers over the collection and what it writes
	@tests/run-judges

soak: $(PLUGIN_VENV)/.ready ## The device plugin under all disturbances at once: MINUTES=10 [ARGS='--seed 7']
	@$(PLUGIN_VENV)/bin/python tests/endurance/soak.py $(MINUTES) $(ARGS)

kill-sweep: $(VENV)/.ready ## site.yml killed after each task that changed something, and after a sample of the others, on fast nodes: [ARGS='--cases 5']
	@lab/packages lab
	@python device_plugin/fetch_wheels.py build/wheels
	@python tests/endurance/kill_sweep.py $(ARGS)

scale: $(VENV)/.ready ## Cost of each additional fast node, for first run, second run and drift: [ARGS='1 2 4']
	@lab/packages lab
	@python device_plugin/fetch_wheels.py build/wheels
	@python tests/endurance/scale.py $(ARGS)

bench-facts: $(VENV)/.ready ## Time hca_facts against raw reads of the same files
	@python tests/endurance/bench_facts.py $(ARGS)

bench-peer: $(VENV)/.ready ## Compare the Go plugin and ours on one lab node, in one run: ratios; needs Go
	@lab/packages lab
	@python tests/endurance/bench_peer.py $(ARGS)

##@ Tools
venv: $(VENV)/.ready ## The virtual environment with the pinned tools and a link to this checkout

$(VENV)/.ready: requirements-dev.txt
	@lab/packages dev
	@echo "== Python tools (requirements-dev.txt) into $(VENV)"
	@python3 -m venv $(VENV)
	@$(BIN)/pip --quiet install --requirement requirements-dev.txt
	@lab/link-collection $(VENV)
	@touch $@

$(PLUGIN_VENV)/.ready: device_plugin/requirements.txt device_plugin/requirements-dev.txt
	@lab/packages dev
	@echo "== the device plugin's libraries (device_plugin/requirements-dev.txt) into $(PLUGIN_VENV)"
	@python3 -m venv $(PLUGIN_VENV)
	@$(PLUGIN_VENV)/bin/pip --quiet install --requirement device_plugin/requirements-dev.txt
	@touch $@

help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
