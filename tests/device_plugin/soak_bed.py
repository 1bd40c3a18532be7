"""What a soak runs on and does: the bed, what is true on it, single events, clients that ask all the while, checks."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict, deque

import bench
import grpc
import measure
import stepped
from api_server_double import ApiServer
from kubelet_double import Kubelet
from node import Node
from rdma_device_plugin import cdi, claimspecs, links
from rdma_device_plugin.devices import DRIVER
from rdma_device_plugin.kubelet import deviceplugin_pb2 as api

RAILS = {f"rdma/rail{number}": f"mlx5_{number}" for number in range(6)}
OVER_DRA = ("mlx5_6", "mlx5_7")
SHARES = 4
UNITS = (90, 100, 110)
UP, DOWN = "4: ACTIVE", "1: DOWN"
DISK = 256  # KiB
_BAD = grpc.StatusCode.INVALID_ARGUMENT
_UNFINISHED = re.compile(r"\.new$|^\..*\.sock\.\d+$")


class Violation(AssertionError):
    """An invariant does not hold; the text names it, what was wanted and what was seen."""


class Truth:
    """What the node and the config say, and which events there were.

    bound: seconds within which everything has to be right again after the last event.
    """

    def __init__(self, bound):
        self.bound = bound
        self.lock = threading.RLock()
        self.up = dict.fromkeys([*RAILS.values(), *OVER_DRA], True)
        self.plugged = dict(self.up)
        self.counts = dict.fromkeys(RAILS, UNITS[1])
        self.known = dict(self.counts)
        self.events = Counter()
        self.last = deque(maxlen=30)
        self._active, self._touched, self._right = Counter(), {}, 0.0

    @contextlib.contextmanager
    def changing(self, kind, *subjects):
        """An event; until `bound` seconds after it, its subjects may be in between."""
        with self.lock:
            self.last.append((round(time.monotonic(), 2), kind, subjects))
            self.events[kind, None] += 1
            for subject in subjects:
                self.events[kind, subject] += 1
                self._active[subject] += 1
        try:
            yield
        finally:
            with self.lock:
                for subject in subjects:
                    self._active[subject] -= 1
                    self._touched[subject] = time.monotonic()

    def in_between(self, begun, *subjects):
        """Whether a call that began then may have met an event; not if all was right between the two."""
        with self.lock:
            touched = [self._touched[one] for one in subjects if one in self._touched]
            return any(self._active[one] for one in subjects) or any(
                moment > begun - self.bound and not moment <= self._right < begun for moment in touched
            )

    def settled(self):
        with self.lock:
            self._right = time.monotonic()

    def ready(self, hca):
        return self.up[hca] and self.plugged[hca]

    def healthy(self, resource):
        return self.counts.get(resource, 0) if self.ready(RAILS[resource]) else 0

    def devices(self):
        label = [hca.replace("_", "-") for hca in OVER_DRA if self.ready(hca)]
        return sorted(f"{name}-u{unit:02d}" for name in label for unit in range(SHARES))

    def asked(self, kind, subject):
        with self.lock:
            self.events[kind, None] += 1
            self.events[kind, subject] += 1

    def count(self, *kinds, of=None):
        with self.lock:
            return sum(self.events[kind, of] for kind in kinds)


class Bed:
    """The plugin with all that is around it, below `base`. over_dra: mode both; else its own API by Register alone.

    announce: the kernel's event after a plug; None: the scan each second sees it.
    """

    def __init__(self, base, bound, over_dra=True, announce=None):
        self.base, self.over_dra, self.announce = pathlib.Path(base), over_dra, announce
        self.node = Node(self.base / "node", "h100-8x-cx7-ib")
        self.truth = Truth(bound)
        self.disk = self.base / "disk"
        self.disk.mkdir()
        size = ["-o", f"size={DISK}k"]
        made = subprocess.run(["mount", "-t", "tmpfs", *size, "soak", self.disk], capture_output=True, check=False)
        self.no_disk = made.stderr.decode().strip() if made.returncode else ""
        self.clock = self.base / "clock"
        self.clock.write_bytes(bytes(8))
        self.clock_is = 0
        self.config = self.base / "config" / "config.json"
        self.config.parent.mkdir()
        self.config.write_bytes(self._document())
        self.api = ApiServer(self.base).start() if over_dra else None
        self.kubelet = Kubelet(self.base, watches=over_dra, started=self.api.wipe if over_dra else lambda: None)
        self.kubelet.start()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = self.base / "log"
        self.process = measure.Process(measure.Subject("ours", self._command(), bench.ENVIRONMENT), self.log)
        self.hardware, self.rotated = threading.Lock(), 0.0
        self.claims = {}
        self.answers = Counter()

    def _command(self):
        flags = {
            "config-file": self.config,
            "root": self.node.root,
            "kubelet-root": self.base,
            "device-plugin-dir": self.kubelet.plugins,
            "cdi-dir": self.disk / "cdi",
            "metrics-address": f"127.0.0.1:{self.port}",
        }
        if self.over_dra:
            flags |= {
                "mode": "both",
                "kubeconfig": self.api.kubeconfig,
                "node-name": self.api.node,
                "plugins-dir": self.disk / "plugins",
            }
        words = [str(word) for name, value in flags.items() for word in (f"-{name}", value)]
        return (sys.executable, stepped.__file__, str(self.clock), "-use-cdi", *words)

    def _document(self):
        entries = [
            {"resourceName": name.partition("/")[2], "rdmaHcaMax": count, "rdmaDevices": [RAILS[name]]}
            for name, count in self.truth.counts.items()
        ]
        if self.over_dra:
            entries.append({"resourceName": "fabric", "rdmaHcaMax": SHARES, "rdmaDevices": OVER_DRA, "api": "dra"})
        for entry in entries:
            entry["extraSelectors"] = {"rdmaDevices": entry.pop("rdmaDevices")}
            entry["health"] = {"upSeconds": 0.5}
        interval = 60 if self.announce else 1
        return json.dumps({"periodicUpdateInterval": interval, "configList": entries}).encode()

    def close(self):
        self.process.kill()
        self.kubelet.stop()
        if self.api:
            self.api.stop()
        if not self.no_disk:
            subprocess.run(["umount", "--lazy", self.disk], check=False)

    # Single events. Each returns (its name, the moment of its last change).

    def flap(self, chance):
        with self.hardware:
            there = [hca for hca, plugged in self.truth.plugged.items() if plugged]
            hca = _rather(chance, [one for one in there if not self.truth.up[one]], there)
            up = not self.truth.up[hca]
            self._port(hca, up)
            if chance.random() < 0.2:  # a blip, shorter than downSeconds or upSeconds
                time.sleep(chance.uniform(0.02, 0.2))
                self._port(hca, not up)
                return "port blip", time.monotonic()
        return f"port {'up' if up else 'down'}", time.monotonic()

    def _port(self, hca, up):
        with self.truth.changing("port", hca, self._subject(hca)):
            self.truth.up[hca] = up
            self.node.port(hca, UP if up else DOWN)

    def swap(self, chance):
        with self.hardware:
            gone = [hca for hca, there in self.truth.plugged.items() if not there]
            hca = _rather(chance, gone, list(self.truth.plugged))
            there = not self.truth.plugged[hca]
            with self.truth.changing("plug", hca, self._subject(hca)):
                self.truth.plugged[hca] = there
                (self.node.plug if there else self.node.unplug)(hca)
                if self.announce:
                    self.announce()
        return f"HCA {'plugged' if there else 'unplugged'}", time.monotonic()

    def restart_kubelet(self, chance):
        refuses = chance.random() < 0.5
        with self.truth.changing("kubelet", "kubelet", *RAILS):
            self.kubelet.stop(unlink=chance.random() < 0.7)
            time.sleep(chance.uniform(0, 1.5))
            if refuses:
                with self.truth.changing("kubelet", "kubelet", *RAILS):
                    self.kubelet.refuse = f"no room {self.truth.count('kubelet')}"
                    self.kubelet.start()
                    time.sleep(chance.uniform(0.1, 2))
                    self.kubelet.stop()
                    self.kubelet.refuse = ""
            self.kubelet.log.clear()
            self.kubelet.start()
        return f"kubelet restart{', refused once' if refuses else ''}", time.monotonic()

    def configure(self, chance):
        how = chance.choice(("rename", "in place", "invalid", "without a rail", "SIGHUP"))
        with self.truth.changing("config", *RAILS, "config"):
            if how == "SIGHUP":
                os.kill(self.process.pid, signal.SIGHUP)
                return "config: SIGHUP", time.monotonic()
            if how == "invalid":
                self.config.write_bytes(b'{"configList": [{"resourceName": "%d"' % chance.randrange(1000))
                time.sleep(chance.uniform(0.1, 1))
            for name in RAILS:
                if name in self.truth.counts:
                    count = chance.choice(UNITS)
                    self.truth.counts[name] = count
                    self.truth.known[name] = max(self.truth.known[name], count)
            if how == "without a rail" and not self.truth.counts.pop("rdma/rail5", None):
                self.truth.counts["rdma/rail5"] = self.truth.known["rdma/rail5"] = UNITS[0]
            if how == "rename":
                unfinished = self.config.with_suffix(".new")
                unfinished.write_bytes(self._document())
                os.rename(unfinished, self.config)
            else:
                self.config.write_bytes(self._document())
        return f"config: {how}", time.monotonic()

    def step_clock(self, chance):
        """To now, or far from it; or back, in the middle of a port's hysteresis."""
        far = chance.choice((3600, 86400, 10 * 365 * 86400))
        target = chance.choice((0, far, -far))
        if chance.random() < 0.7:
            self.flap(chance)
            target = self.clock_is - 3600
        with self.truth.changing("clock", "clock"):
            self.clock_is = target
            stepped.step(self.clock, target)
        return "clock step", time.monotonic()

    def fill_disk(self, chance):
        with self.truth.changing("disk", "disk"):
            filler = self.disk / "filler"
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            time.sleep(chance.uniform(0.2, 2.5))
            filler.unlink()
        return "disk full and free", time.monotonic()

    def lose_api(self, chance):
        how = chance.choice(("away", "token", "too old"))
        with self.truth.changing("api", "api"):
            if how == "away":
                self.api.stop()
                time.sleep(chance.uniform(0.1, 2))
                self.api.start()
            elif how == "token":
                self.api.rotate()
                self.rotated = time.monotonic()  # a call finds out, and the kubelet's next one has read the new token
            else:
                self.api.expire()
            self.api.calls.clear()
        return f"API server: {how}", time.monotonic()

    def claim(self, chance):
        """Prepare one more claim, as the kubelet does: again until it works, or give it up; or end one."""
        if self.claims and (len(self.claims) >= 8 or chance.random() < 0.5):
            self.unprepare(chance.choice(list(self.claims)))
            return "claim unprepared", time.monotonic()
        published = self.api.devices()
        if not published:
            return "no device for a claim", time.monotonic()
        uid = f"uid-{self.truth.count('claim')}"
        device = chance.choice(published)
        key = self.api.allocate(f"claim-{uid}", {"rail": device}, uid=uid)
        hca = device.partition("-u")[0].replace("-", "_")
        self.claims[uid] = key
        answer = self._ask(lambda driver: driver.prepare(key, timeout=10)[uid], hca)
        if answer is None or not self.truth.ready(hca):
            self.unprepare(uid)
        elif [one.device_name for one in answer.devices] != [device]:
            raise Violation(f"claim {uid}: wanted device {device}, prepared {answer}")
        else:
            self.answers["claims prepared"] += 1
        return "claim prepared", time.monotonic()

    def unprepare(self, uid):
        key = self.claims[uid]
        if self._ask(lambda driver: driver.unprepare(key, timeout=10)[uid], *OVER_DRA) is None:
            raise Violation(f"claim {uid}: it could not be unprepared in {2 * self.truth.bound:.0f} s")
        del self.claims[uid]
        del self.api.claims[key[:2]]

    def _ask(self, call, *hcas):
        """The answer without an error, asked again while something is in between; None when its time is over."""
        subjects = ("kubelet", "api", "disk", "config", "dra", *hcas)
        deadline = time.monotonic() + 2 * self.truth.bound
        while time.monotonic() < deadline:
            begun, problem = time.monotonic(), "the driver is not registered"
            driver = self.kubelet.drivers.get(DRIVER)
            try:
                self.truth.asked("claim", "dra")
                answer = call(driver) if driver else None
                problem = answer.error if driver else problem
                if not problem:
                    return answer
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed before the call
                problem = str(error)
            unknown = "Unauthorized" in problem and time.monotonic() - self.rotated < self.truth.bound
            if not unknown and not self.truth.in_between(begun, *subjects):
                raise Violation(
                    f"a claim's call failed, and nothing has happened for {self.truth.bound:.0f} s: {problem}"
                )
            if "is not on this node" in problem:
                return None
            time.sleep(0.1)
        return None

    @staticmethod
    def _subject(hca):
        return next((name for name, one in RAILS.items() if one == hca), "dra")

    # What asks all the while.

    def allocate(self, chance):
        """One Allocate: the right HCA, or an error that something explains."""
        resource = chance.choice(list(RAILS))
        hca, begun = RAILS[resource], time.monotonic()
        unit = str(chance.randrange(self.truth.known[resource]))
        self.truth.asked("allocate", resource)
        subjects = (resource, "kubelet", "config")
        client = self.kubelet.clients.get(resource)
        try:
            answer = client.stub.Allocate(_one(unit), timeout=10).container_responses[0]
        except (AttributeError, ValueError, grpc.RpcError) as error:  # no client; a closed channel; the plugin's word
            code = error.code() if isinstance(error, grpc.RpcError) else None
            if code == _BAD and not self.truth.plugged[hca]:
                self.answers["refused: no HCA"] += 1
            elif code == grpc.StatusCode.DEADLINE_EXCEEDED or not (
                self.truth.in_between(begun, *subjects)
                or resource not in self.truth.counts
                or self.kubelet.clients.get(resource) is not client
            ):
                raise Violation(f"Allocate {resource} {unit}: wanted {hca}, got {error}") from None
            else:
                self.answers["in between"] += 1
            return
        named = [one.name.rpartition(":")[2] for one in answer.cdi_devices]
        number = hca.partition("_")[2]
        files = [one.host_path for one in answer.devices if one.host_path.endswith(f"uverbs{number}")]
        if named != [hca] and not (files and not named and self.truth.in_between(begun, "disk", *subjects)):
            raise Violation(f"Allocate {resource} {unit}: wanted the CDI device of {hca}, got {answer}")
        self.answers["granted"] += 1

    def get(self, page):
        """(code, text) of a page of the plugin."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{page}", timeout=self.truth.bound) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def scrape(self):
        for page, wanted in (("metrics", "rdma_device_plugin_devices{"), ("healthz", "ok")):
            code, text = self.get(page)
            if code != 200 or wanted not in text:
                raise Violation(f"/{page}: wanted 200 and {wanted}, got {code}: {text[:200]}")
        self.answers["scrapes"] += 1

    # What has to be right once nothing changes.

    def differences(self):
        """What is not as the node and the config say; empty when all is."""
        truth, found = self.truth, []
        with truth.lock:
            for resource in RAILS:
                seen, wanted = self.kubelet.allocatable(resource), truth.healthy(resource)
                if seen != wanted:
                    found.append(f"{resource}: wanted {wanted} healthy units at the kubelet, seen {seen}")
            if self.over_dra:
                seen, wanted = self.api.devices(), truth.devices()
                if seen != wanted and (seen or wanted):
                    found.append(f"ResourceSlices: wanted {wanted}, seen {seen}")
                found += self._claims_kept()
            found += self._specs() + self._sockets()
        if not found:
            # A port that is down hides at the kubelet whether the HCA behind it and the new count are known.
            _code, text = self.get("metrics")
            wanted = {name: (count, 1) for name, count in truth.counts.items() if truth.plugged[RAILS[name]]}
            seen = {name: (_sum(text, "devices", name), _sum(text, "hcas", name)) for name in wanted}
            if seen != wanted:
                found.append(f"/metrics: wanted devices and HCAs {wanted}, seen {seen}")
            gone = [name for name in set(truth.counts) - set(wanted) if _sum(text, "hcas", name)]
            found += [f"/metrics: {name} has an HCA that is unplugged" for name in gone]
        if not found:
            code, text = self.get("readyz")
            if code != 200:
                found.append(f"/readyz: wanted 200, seen {code}: {text.strip()}")
        return found

    def _claims_kept(self):
        path = self.disk / "plugins" / DRIVER / "checkpoint.json"
        seen = set(json.loads(path.read_text())["claims"]) if path.exists() else set()
        if seen != set(self.claims):
            return [f"checkpoint: wanted claims {sorted(self.claims)}, seen {sorted(seen)}"]
        return []

    def _specs(self):
        names = {resource: resource.partition("/")[2] for resource in self.truth.counts}
        may = {cdi.file(name): RAILS[resource] for resource, name in names.items()}
        must = {name for name, hca in may.items() if self.truth.plugged[hca]}
        claims = {claimspecs.file(uid) for uid in self.claims}
        directory = self.disk / "cdi"
        seen = set(_listed(directory))
        found = [f"CDI spec {name}: wanted it, it is not there" for name in sorted((must | claims) - seen)]
        found += [f"CDI spec {name}: left behind" for name in sorted(seen - set(may) - claims)]
        for name in must & seen:
            with contextlib.suppress(ValueError, LookupError):
                devices = json.loads((directory / name).read_text())["devices"]
                if [one["name"].rpartition(":")[2] for one in devices] == [may[name]]:
                    continue
            found.append(f"CDI spec {name}: wanted {may[name]}, it does not say so")
        return found

    def _sockets(self):
        wanted = {f"{resource.partition('/')[2]}.sock" for resource in self.truth.counts}
        if self.over_dra:
            wanted.add(f"{DRIVER}-reg.sock")
        place = self.kubelet.registry if self.over_dra else self.kubelet.plugins
        there = set(os.listdir(place))
        ours = {name for name in there if re.match(rf"{re.escape(DRIVER)}|rail", name)}
        found = [f"sockets in {place}: wanted {sorted(wanted)}, seen {sorted(ours)}"] if ours != wanted else []
        names = [*there, *os.listdir(self.kubelet.plugins), *_listed(self.disk / "cdi")]
        return found + [f"{name}: left unfinished" for name in names if _UNFINISHED.search(name)]

    def left_behind(self):
        """Files of a plugin that has ended: none but what it may leave for running pods and for its next start."""
        places = [self.kubelet.plugins] + [self.kubelet.registry] * self.over_dra
        return sorted(f"{place}/{name}" for place in places for name in os.listdir(place) if name != "kubelet.sock")


def _rather(chance, broken, all_of_them):
    """Mostly what is broken is repaired, so that most of the node works most of the time."""
    return chance.choice(broken if broken and chance.random() < 0.6 else all_of_them)


def _sum(text, metric, resource):
    """Of all samples of a resource in a page of metrics."""
    name, label = f"rdma_device_plugin_{metric}", re.escape(f'resource="{resource}"')
    return sum(int(float(value)) for value in re.findall(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)", text, re.MULTILINE))


def _listed(directory):
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _one(unit):
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=[unit])])


def loopback_up():
    links.set_up("lo")


class Log:
    """The plugin's log: no line more often than there were events that call for it."""

    # (pattern, kinds of events that call for such a line, lines for each; the group of the pattern is their subject, if
    # it has one). A kubelet that is slow to look into plugins_registry is registered with in both ways, one by one.
    CALLED_FOR = (
        (r"port (mlx5_\d+)/1 is ", ("port", "plug"), 1),
        (r"(rdma/rail\d+): (?:offer |has |stopped, )", ("port", "plug", "config"), 1),
        (r"(rdma/rail\d+): (?:registered|stream lost|waiting for the kubelet|refused)", ("kubelet", "config"), 2),
        (rf"{DRIVER}: (?:registered|stream lost|waiting for the kubelet|refused)", ("kubelet",), 2),
        (rf"{DRIVER}: devices", ("port", "plug", "config"), 1),
        (r"(?:the|cannot write the) CDI spec of ", ("disk", "config", "plug"), 1),
        (r"config applied|the changed config cannot be used", ("config",), 1),
        (r"Allocate refused", ("allocate",), 1),
        (r"claim not prepared", ("claim",), 1),
        (r"ResourceSlices written", ("port", "plug", "config", "kubelet", "api"), 1),
        (r"the ResourceSlices cannot be kept|form of the ResourceSlices", ("api", "kubelet"), 1),
        (r"\S+: No space left on device", ("disk",), 1),
        (r"rdma/fabric: has |RDMA network namespace mode|metrics, healthz and readyz on", (), 1),
        (r"prepared claims known|Using ", (), 1),
    )

    def __init__(self, path, truth):
        self._path, self._place = path, 0
        self._truth, self._rest = truth, ""
        self.texts, self.kinds, self.lines = Counter(), defaultdict(int), 0

    def read(self):
        """Judge the lines that are new. Violation for one that nothing called for."""
        with open(self._path, encoding="utf-8") as file:
            file.seek(self._place)
            data = self._rest + file.read()
            self._place = file.tell()
        *lines, self._rest = data.split("\n")
        for line in lines:
            self._judge(re.sub(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (?:Warning: |Error: )?", "", line))

    def _judge(self, text):
        self.lines += 1
        self.texts[text] += 1
        for pattern, kinds, each in self.CALLED_FOR:
            match = re.match(pattern, text)
            if match:
                self.kinds[pattern] += 1
                most = each + each * self._truth.count(*kinds, of=match.group(1) if match.groups() else None)
                if self.texts[text] > most:
                    raise Violation(f"log: {self.texts[text]} times, wanted at most {most} (its events): {text}")
                return
        raise Violation(f"log: a line that no event calls for: {text}")


def actors(bed):
    """{name: (step, shortest and longest pause in seconds)} of what changes the bed."""
    found = {
        "flaps": (bed.flap, 0.1, 1.0),
        "swaps": (bed.swap, 0.3, 2.5),
        "kubelet": (bed.restart_kubelet, 1.5, 6.0),
        "config": (bed.configure, 0.8, 4.0),
        "clock": (bed.step_clock, 0.5, 3.0),
    }
    if not bed.no_disk:
        found["disk"] = (bed.fill_disk, 1.0, 5.0)
    if bed.over_dra:
        found["api"] = (bed.lose_api, 2.0, 8.0)
        found["claims"] = (bed.claim, 0.05, 0.6)
    return found


class Gate:
    """Actors pass one step at a time; closing it waits for the steps that are under way."""

    def __init__(self):
        self._changed = threading.Condition()
        self._open, self._busy = False, 0

    @contextlib.contextmanager
    def step(self):
        with self._changed:
            while not self._open:
                self._changed.wait()
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def open(self):
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def close(self):
        with self._changed:
            self._open = False
            while self._busy:
                self._changed.wait()


class Load:
    """Threads over a bed: actors that wait at the gate, clients that do not. failure: the first violation."""

    def __init__(self, bed, seed):
        self.gate, self.failure = Gate(), None
        self._stop = threading.Event()
        self._clients = []
        for name, (step, short, long) in actors(bed).items():
            self._thread(self._acting, step, random.Random(f"{seed}/{name}"), short, long)
        for number in range(3):
            chance = random.Random(f"{seed}/client{number}")
            client = self._thread(self._asking, lambda one=chance: bed.allocate(one), chance, 0.02, 0.2)
            self._clients.append(client)
        chance = random.Random(f"{seed}/scrapes")
        self._clients.append(self._thread(self._asking, bed.scrape, chance, 0.2, 1.5))

    def _thread(self, target, *arguments):
        thread = threading.Thread(target=self._guarded, args=(target, *arguments), daemon=True)
        thread.start()
        return thread

    def _guarded(self, target, *arguments):
        try:
            target(*arguments)
        except Exception as error:  # noqa: BLE001 - the run ends with it
            self.failure = self.failure or error

    def _acting(self, step, chance, short, long):
        while True:
            time.sleep(chance.uniform(short, long))
            with self.gate.step():
                step(chance)

    def _asking(self, ask, chance, short, long):
        while not self._stop.wait(chance.uniform(short, long)):
            ask()

    def end_clients(self):
        self._stop.set()
        for client in self._clients:
            client.join(20)
