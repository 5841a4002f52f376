"""The stage: a router, two prefill and two decode nodes, a fault proxy in every link, and somebody who starts again
whatever dies."""

import os
import re
import signal
import socket
import threading
import time

from cluster import Server, wait_until
from fault_proxy import FaultProxy

PREFILL, DECODE = ("prefill-0", "prefill-1"), ("decode-0", "decode-1")
WORKERS = (*PREFILL, *DECODE)
LINKS = tuple([("router-0", w) for w in WORKERS] + [(p, d) for p in PREFILL for d in DECODE])
RESTART_S = 0.3
SETTLE_S = 20
COMMON = ("-t", "1", "-c", "2048", "--kv-mem", "96M")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stage:
    def __init__(self):
        self.closing, self.lock = False, threading.RLock()
        self.serving = {w: f"127.0.0.1:{free_port()}" for w in WORKERS}
        self.proxies = {(a, b): FaultProxy(self.serving[b]) for a, b in LINKS}
        self.servers, self.past, self.restarts, self.log_from = {}, [], 0, {}
        for w in WORKERS:
            self.servers[w] = self._worker(w)
        for w in WORKERS:
            self.servers[w].wait_ready()
        self.servers["router-0"] = Server("--node-role", "router", "--node-id", "router-0", "--log-level", "debug",
                                          "--prefill-peers", self._addresses("router-0", PREFILL),
                                          "--decode-peers", self._addresses("router-0", DECODE))
        self.url = self.servers["router-0"].url
        self.keeper = threading.Thread(target=self._keep, daemon=True)
        self.keeper.start()
        self.settle()
        self.base_fds = {name: self.n_fds(name) for name in self.servers}
        self.forget_logs()

    def _addresses(self, who, whom):
        return ",".join(self.proxies[who, w].address for w in whom)

    def _worker(self, name):
        role = name.split("-")[0]
        more = ("--decode-peers", self._addresses(name, DECODE)) if role == "prefill" else ()
        return Server("--node-role", role, "--node-id", name, "--serving-bind", self.serving[name], *COMMON, *more, ready=False)

    @property
    def router(self):
        return self.servers["router-0"]

    def pid(self, name):
        return self.servers[name].pid

    # ---- who dies is started again ----

    def _keep(self):
        while not self.closing:
            for w in WORKERS:
                if self.servers[w].process.poll() is not None and not self.closing:
                    time.sleep(RESTART_S)
                    with self.lock:
                        if self.closing:
                            return
                        self.past.append((w, self.servers[w]))
                        self.servers[w] = self._worker(w)
                        self.restarts += 1
            time.sleep(0.02)

    def signal(self, name, number):
        """What happens to a worker happens to the process that is there now."""
        server = self.servers[name]
        if server.process.poll() is None:
            server.process.send_signal(number)
        return server

    # ---- what the logs say ----

    def forget_logs(self):
        """The logs that belong to a seed begin here."""
        self.past, self.client_ids, self.attempts, self.again = [], {}, {}, set()
        self.read_to = len(self.router.lines)
        for name, s in self.servers.items():
            self.log_from[name] = (s, len(s.lines))

    def lines(self, name):
        s = self.servers[name]
        known, at = self.log_from.get(name, (s, 0))
        return s.lines[at:] if known is s else list(s.lines)

    def save_logs(self, folder):
        os.makedirs(folder, exist_ok=True)
        for name in self.servers:
            with open(os.path.join(folder, name + ".log"), "w") as f:
                for n, (who, s) in enumerate(p for p in self.past if p[0] == name):
                    known, at = self.log_from.get(name, (None, 0))
                    f.write("\n".join(s.lines[at if known is s else 0:]) + f"\n---- died: {s.process.returncode}\n")
                f.write("\n".join(self.lines(name)) + "\n")

    def _read_router(self):
        """The router's lines since the last look."""
        lines = self.router.lines
        for line in lines[self.read_to:]:
            self.read_to += 1
            m = re.search(r'msg="request ([a-z ]+)" node=\S+ req=(\S+)(.*)', line)
            if not m:
                continue
            what, own, rest = m.groups()
            if what == "accepted":
                self.client_ids[own] = re.search(r"client_req=(\S+)", rest).group(1).strip('"')
            theirs = self.client_ids.get(own, own)
            if what in ("sent", "opened"):
                attempt, prefill, decode = re.search(r"attempt=(\d+) prefill=(\S+) decode=(\S+)", rest).groups()
                took = (None, decode) if prefill in DECODE else (prefill, decode if what == "opened" else None)
                self.attempts.setdefault(theirs, []).append((int(attempt), *took))
            elif what in ("resumed elsewhere", "queued again"):
                self.again.add(theirs)

    def sent(self, request_id):
        """(attempt, prefill, None) of each time a prefill node got the request, (attempt, prefill, decode) of each time a decode
        node took it, in the router's order; (attempt, None, decode) where a decode node reads the prompt itself."""
        with self.lock:
            self._read_router()
            return list(self.attempts.get(request_id, []))

    def resumed(self):
        """The requests that had to be tried again."""
        with self.lock:
            self._read_router()
            return set(self.again)

    def accepted(self, request_id):
        with self.lock:
            self._read_router()
            return request_id in self.client_ids.values()

    # ---- is everything as it was ----

    def n_fds(self, name):
        return len(os.listdir(f"/proc/{self.pid(name)}/fd"))

    def resident_bytes(self, name):
        with open(f"/proc/{self.pid(name)}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def _stats(self, name):
        s = self.servers[name]
        if s.url is None:
            m = s.find(r"msg=ready .*listener=http addr=(\S+)")
            if not m:
                return {}
            s.url = "http://" + m.group(1)
        try:
            return s.stats()
        except (OSError, AssertionError, ValueError):
            return {}

    def unsettled(self):
        """What is not yet as it should be when nobody asks for anything, in words; "" if all is well."""
        stats = {name: self._stats(name) for name in self.servers}
        router = stats["router-0"]
        linked = router.get("nodes", {})
        for w in WORKERS:
            s = stats[w]
            if not s:
                return f"{w} does not answer"
            if w not in linked:
                return f"router-0 has no link to {w}"
            if linked[w].get("draining"):
                return f"router-0 takes {w} for draining"
            if w in PREFILL and sum(n.startswith("decode") for n in s.get("links", {})) != len(DECODE):
                return f"{w} has links {sorted(s.get('links', {}))}"
            if s["requests"] or s["engine"]["running"] or s["engine"]["waiting"] or s["engine"]["importing"]:
                return f"{w} has requests={s['requests']} engine={s['engine']}"
            if s["pages"]["held"] or s["pages"]["free"] + s["pages"]["cached"] != s["pages"]["total"]:
                return f"{w} holds pages: {s['pages']}"
            if s.get("handoff_sent", {}).get("open") or s.get("handoff_received", {}).get("open"):
                return f"{w} has a hand-off open"
        if router["requests"] or router["waiting"] or router["journal_bytes"]:
            return f"router-0 has requests={router['requests']} journal_bytes={router['journal_bytes']}"
        for name, n in getattr(self, "base_fds", {}).items():
            if self.n_fds(name) > n:
                return f"{name} has {self.n_fds(name)} files open, {n} at first"
        return ""

    def settle(self, seconds=SETTLE_S * 9):
        """Waits until all is well. Returns how long that took; raises with what is still wrong."""
        begin, last = time.monotonic(), ""

        def well():
            nonlocal last
            try:
                last = self.unsettled()
            except (OSError, KeyError) as e:  # somebody is just being started
                last = f"{type(e).__name__}: {e}"
            return not last

        try:
            wait_until(well, "", seconds, 0.05)
        except AssertionError:
            raise AssertionError(f"after {seconds} s: {last}") from None
        return time.monotonic() - begin

    def heal(self):
        """No fault is left in any link. Connections that a fault has touched are gone."""
        for proxy in self.proxies.values():
            proxy.rule = None
            for c in proxy.open_connections():
                if c.up.wrong or c.down.wrong:
                    c.cut()
                c.up.heal()
                c.down.heal()
            proxy.forget_closed()

    def stop(self):
        with self.lock:
            self.closing = True
        self.keeper.join(5)
        for s in self.servers.values():
            if s.process.poll() is None:
                s.process.send_signal(signal.SIGCONT)
                s.process.kill()
        for s in self.servers.values():
            s.process.wait()
        for p in self.proxies.values():
            p.close()
