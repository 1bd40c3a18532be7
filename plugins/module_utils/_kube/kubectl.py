"""The one kubectl client: every call has a time limit, a missing program is a result, truncated output is not."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .._core.change import Finding, Refused

MANAGER = "gpufabric.rdma"
SEE_K3S = "see systemctl status k3s on the first server (journalctl -u k3s) and run again"
# The command on a server of k3s.
OF_K3S = ("k3s", "kubectl")
POLL_SECONDS = 3
# How long an API server that does not answer is asked again before it is reported.
API_SECONDS = 60
# How long a working one may take to answer; kubectl gives up a connection after 30 s, and reports the address.
ANSWER_SECONDS = 45
# Instead of an exit status, outside the range of programs: kubectl was cut off, or could not be started.
NO_END, NOT_STARTED = -1, -2
CANNOT_START = "cannot be started"
_AGAIN = "fix what the message reports and run again"
BROKE_OFF = "the answer broke off"
# kubectl's suffix to the output of a program in a pod, which may be about the program's own connection.
_OWN_END = "command terminated with exit code"
# sudo and non-interactive SSH leave /usr/local/bin, where k3s is, out of PATH.
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")
# The API server creates this namespace, and recreates it whenever it is gone.
_ANCHOR = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
_UNREACHABLE = re.compile(
    r"connection to the server|connection refused|Unable to connect to the server|TLS handshake timeout|i/o timeout"
    r"|unable to read .*k3s\.yaml|no configuration has been provided|k3s\.yaml: no such file"
    r"|currently unable to handle the request|etcdserver: |no route to host|ServiceUnavailable"
    r"|apiserver not ready|connection reset by peer|unexpected EOF|client connection lost|stream error: stream ID"
    r"|couldn't get (?:resource list|current server API group list)",
    re.IGNORECASE,
)
_LOGGED = re.compile(r"^[EWIF]\d{4} .*?\] ?")
_UNKNOWN_TYPE = re.compile(r"doesn't have a resource type \"([^\"]+)\"")
_LIST_FAILED = re.compile(r"couldn't get resource list for ([^/\s]+)/")


class KubectlError(Refused):
    """A kubectl call failed that its caller depends on. reason: kubectl's output."""

    def __init__(self, wanted: str, reason: str, next_step: str = _AGAIN):
        seen = " ".join(reason.split())[:600] or "no reason given"
        super().__init__([Finding("API server", wanted, seen, next_step)])
        self.reason = reason.strip()


class Unreachable(KubectlError):
    """No API server responds, or kubectl is missing."""

    def __init__(self, reason: str, next_step: str):
        # The last such line: a failed list of types is only a log line, and kubectl then ends with a type that the
        # server allegedly lacks.
        silent = [_LOGGED.sub("", line).strip()[:300] for line in reason.splitlines() if unreachable(line)]
        super().__init__("an answer", silent[-1] if silent else last_words(reason), next_step)


# --- kubectl's messages -----------------------------------------------------------------------------------------------


def unreachable(text: str) -> bool:
    """Whether kubectl's message means that no API server responds (not that it rejected something)."""
    return bool(_UNREACHABLE.search(text))


def lost(code: int, error: str) -> bool:
    """Whether a call got no answer, which says nothing about the object."""
    return code == NO_END or (code != 0 and unreachable(error) and _OWN_END not in error)


def last_words(text: str) -> str:
    """kubectl's last sentence, without the log lines before it."""
    lines = [line for line in text.splitlines() if line.strip() and not _LOGGED.match(line)]
    return (lines or text.splitlines() or ["no reason given"])[-1].strip()[:300]


def about(asked: str, error: str) -> str:
    """kubectl's message without its log lines about other API groups.

    Before each answer kubectl lists the types of all groups. Those of another server, such as metrics.k8s.io, fail
    while that server is down; that says nothing about the answer.
    """
    kept = []
    for line in error.splitlines(keepends=True):
        failed = _LIST_FAILED.search(line)
        group = failed.group(1) if failed else ""
        kubernetes = "." not in group or (group.endswith(".k8s.io") and not group.endswith("metrics.k8s.io"))
        if kubernetes or group in asked:
            kept.append(line)
    return "".join(kept)


def parse_items(text: str) -> list[dict]:
    """The objects of `kubectl -o json`, which prints one object or a list."""
    document = json.loads(text)
    return document.get("items") or [] if document.get("kind", "").endswith("List") else [document]


def conditions(item: dict) -> dict[str, str]:
    """{type: status} of an object's conditions."""
    return {row["type"]: row["status"] for row in (item.get("status") or {}).get("conditions") or ()}


def whole_json(words, text: str) -> bool:
    """Whether the JSON output is complete. A real answer is never empty: see Kubectl.existing()."""
    if "--output=json" not in words:
        return True
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def complete(answer: tuple[int, str, str], whole: Callable[[str], bool]) -> tuple[int, str, str]:
    """What Kubectl.run() returned, with NO_END if the output is not whole."""
    code, out, _error = answer
    return (NO_END, out, BROKE_OFF) if code == 0 and not whole(out) else answer


def _is_anchor(item: dict) -> bool:
    return (item["kind"], item["metadata"]["name"]) == (_ANCHOR["kind"], _ANCHOR["metadata"]["name"])


def as_list(objects: list[dict]) -> str:
    """The objects as one document for kubectl's standard input."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def of_each(ask: Callable, items: list, silent: Callable, at_once: int) -> list:
    """ask(item) of each, in parallel; silent(reason) once the API server is silent, so that the others do not wait."""
    answered: list = []

    def one(item):
        try:
            return answered[0] if answered else ask(item)
        except Unreachable as nobody:
            answered.append(silent(nobody.reason))
            return answered[0]

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return list(pool.map(one, items))


# --- the client -------------------------------------------------------------------------------------------------------


def patient(argv, seconds: float) -> Kubectl:
    """A client that reports an API server after this many seconds of silence, having asked it twice."""
    return Kubectl(argv, limit=(seconds or API_SECONDS) / 2, patience=seconds)


class Kubectl:
    """Runs kubectl. Texts go to standard input, so secrets never appear on a command line.

    argv: the command, word by word. limit: seconds for one call. patience: seconds for which an idempotent call is
    repeated while no API server responds. next_step: what to do if none does. calls: how many times kubectl was run.
    """

    def __init__(
        self,
        argv,
        limit: float = 60,
        patience: float = 0,
        next_step: str = SEE_K3S,
        clock=time.monotonic,
        sleep=time.sleep,
    ):
        self.calls = 0
        self._argv, self._limit, self._patience, self._next_step = list(argv), limit, patience, next_step
        self._of_k3s = os.path.basename(self._argv[0]) == OF_K3S[0]
        self._clock, self._sleep = clock, sleep
        # kubectl remembers the types of a server by its address for hours, also those of a cluster that is gone.
        self._types = tempfile.mkdtemp(prefix="gpufabric-rdma-kubectl-")
        weakref.finalize(self, shutil.rmtree, self._types, ignore_errors=True)

    def run(self, *words: str, text: str | None = None, limit: float | None = None) -> tuple[int, str, str]:
        """(exit status, output, error) of one call; NOT_STARTED and NO_END if there is no exit status."""
        self.calls += 1
        limit = limit or self._limit
        try:
            done = subprocess.run(
                [*self._command(), *words],
                input=text or "",
                capture_output=True,
                timeout=limit,
                check=False,
                encoding="utf-8",
                errors="replace",
                env=self._environment(),
            )
        except subprocess.TimeoutExpired as late:
            out = late.stdout or ""
            return NO_END, out if isinstance(out, str) else out.decode(errors="replace"), f"no end after {limit} s"
        except OSError as error:
            return NOT_STARTED, "", f"{self._argv[0]} {CANNOT_START}: {error.strerror}"
        if done.returncode < 0:
            return NO_END, done.stdout, f"kubectl was ended by signal {-done.returncode}"
        return done.returncode, done.stdout, about(f"{' '.join(words)} {text or ''}", done.stderr)

    def run_retrying(self, *words: str, text: str | None = None, limit: float | None = None) -> tuple[int, str, str]:
        """run() for an idempotent call; raises Unreachable if no API server responds in time.

        Time counts from the start of the first call without a response; a call that used up all of it is still repeated
        once if there is patience. Truncated JSON is requested again at least once.
        """
        since = None
        while True:
            start = self._clock()
            answer = self.run(*words, text=text, limit=limit)
            code, out, error = complete(answer, functools.partial(whole_json, words))
            if code != NOT_STARTED and not lost(code, error):
                return code, out, error
            again = since is None and (self._patience > 0 or error == BROKE_OFF)
            since = start if since is None else since
            if code == NOT_STARTED or (self._clock() >= since + self._patience and not again):
                raise Unreachable(error, self._next_step)
            self._sleep(POLL_SECONDS)

    def await_server(self) -> None:
        """Raises Unreachable if the API server does not answer.

        A call for objects would first ask for the types of all groups and, if packets are dropped, dial for minutes.
        """
        self.run_retrying("get", "--raw=/readyz", limit=min(self._limit, ANSWER_SECONDS))

    def items(self, *words: str) -> list[dict]:
        """The objects of a get; raises KubectlError."""
        return parse_items(self.output(f"an answer to get {' '.join(words)}", "get", *words, "--output=json"))

    def items_of(self, optional, *words: str, always=()) -> tuple[list[dict], list[str]]:
        """The objects of all types that the server has, and these types; raises KubectlError."""
        types = [*always, *optional]
        while types:
            try:
                return self.items(",".join(types), *words), types
            except KubectlError as refused:
                # kubectl names one type that the server does not have.
                absent = {name.partition(".")[0] for name in _UNKNOWN_TYPE.findall(refused.reason)}
                served = [name for name in types if name in always or name.partition(".")[0] not in absent]
                if served == types:
                    raise
                types = served
        return [], []

    def output(self, wanted: str, *words: str, next_step: str = _AGAIN, **options) -> str:
        """The output of run_retrying(); raises KubectlError if the call fails."""
        code, out, error = self.run_retrying(*words, **options)
        if code:
            raise KubectlError(wanted, error or out or f"exit status {code}", next_step)
        return out

    def existing(self, objects: list[dict], *words: str) -> list[dict]:
        """The existing ones of these objects; raises KubectlError.

        If none exists, kubectl prints nothing, but so does a call that is cut off before its first byte. So the call
        also requests an object that always exists.
        """
        words = ("get", "--filename=-", "--ignore-not-found", *words, "--output=json")
        out = self.output("the objects in the cluster", *words, text=as_list([*objects, _ANCHOR]))
        return [item for item in parse_items(out) if not _is_anchor(item) or any(map(_is_anchor, objects))]

    def apply(self, objects: list[dict], *words: str) -> tuple[int, str, str]:
        """Apply objects server-side as the collection's field manager; returns what run_retrying() returns."""
        # The server validates better than kubectl, which would first fetch all types to check one object.
        how = ("--server-side", "--validate=false", f"--field-manager={MANAGER}", "--filename=-")
        return self.run_retrying("apply", *how, *words, text=as_list(objects))

    def serve(self, pod: str, argv: list[str], namespace: str) -> subprocess.Popen:
        """Start a command in a pod without waiting for its end."""
        return subprocess.Popen(
            [*self._command(), "exec", "-n", namespace, pod, "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        # With KUBECONFIG, k3s kubectl asks the cluster of that file; a kuberc changes what an option left out means.
        inherited = {name: value for name, value in os.environ.items() if name != "KUBECONFIG" or not self._of_k3s}
        return {**inherited, "KUBECACHEDIR": self._types, "KUBERC": "off"}

    def _command(self) -> list[str]:
        folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
        return [shutil.which(self._argv[0], path=folders) or self._argv[0], *self._argv[1:]]
