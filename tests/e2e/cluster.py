"""Real servers for tests: starts processes on free loopback ports, reads their ready lines, ends them, and checks that no
page is left behind."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("BATON_BIN", str(ROOT / "build/release/baton"))
MODEL = os.environ.get("BATON_MODEL", str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
# sanitizers make everything slower, starting included
PATIENCE_S = 180


def wait_until(condition, what, seconds=PATIENCE_S, every=0.02):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not in {seconds} s: {what}")
        time.sleep(every)


class Server:
    """One `baton serve` process."""

    def __init__(self, *flags, model=MODEL, env=None, ready=True, new_group=False):
        self.flags = [str(f) for f in flags]
        command = [BIN, "serve", "-m", str(model), "--port", "0", *self.flags]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BATON_ARG_")}
        environment.update(env or {})
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
                                        start_new_session=new_group)
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.serving = None
        if ready:
            self.wait_ready()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def pid(self):
        return self.process.pid

    def find(self, pattern):
        for line in list(self.lines):
            m = re.search(pattern, line)
            if m:
                return m
        return None

    def wait_line(self, pattern, seconds=PATIENCE_S):
        def look():
            m = self.find(pattern)
            if not m and self.process.poll() is not None:
                time.sleep(0.1)
                m = self.find(pattern)
                assert m, f"ended with {self.process.returncode}: {self.tail()}"
            return m

        return wait_until(look, f"{pattern} in the log of {self.flags}", seconds)

    def wait_ready(self):
        self.url = "http://" + self.wait_line(r"msg=ready .*listener=http addr=(\S+)").group(1)
        if self.find(r"role=(prefill|decode) listener=http"):
            self.serving = self.wait_line(r"msg=ready .*listener=serving addr=(\S+)").group(1)
        return self

    def tail(self):
        return "\n".join(self.lines[-30:])

    def request(self, method, path, body=None, headers=None, timeout=PATIENCE_S):
        parts = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()

    def post(self, path, body):
        status, _, data = self.request("POST", path, body)
        assert status == 200, (status, data)
        return data

    def stats(self):
        status, _, data = self.request("GET", "/router/stats")
        assert status == 200, data
        return json.loads(data)

    def wait_healthy(self):
        wait_until(lambda: self.request("GET", "/health")[0] == 200, f"/health 200 of {self.flags}\n{self.tail()}")
        return self

    def check_no_leak(self):
        """Every page is free or cached, and nothing is held, soon after the last answer."""
        def clean():
            p = self.stats()["pages"]
            return p["held"] == 0 and p["free"] + p["cached"] == p["total"]

        wait_until(clean, f"pages given back: {self.stats()}", 10 if "tsan" not in BIN and "asan" not in BIN else 60)

    def stop(self, expect=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop: {self.tail()}")
        self._reader.join(5)
        if expect is not None:
            assert code == expect, f"exit {code}: {self.tail()}"
        reports = [l for l in self.lines if "Sanitizer" in l or "runtime error" in l]
        assert not reports, "\n".join(self.lines[-80:])
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()


class Cluster:
    """A router, prefill and decode nodes, each a process."""

    def __init__(self, n_prefill=1, n_decode=1, flags=(), prefill_flags=(), decode_flags=(), router_flags=()):
        threads = ["-t", "1"]
        self.decode = [Server("--node-role", "decode", "--node-id", f"decode-{i}", "--serving-bind", "127.0.0.1:0", *threads,
                              *flags, *decode_flags, ready=False) for i in range(n_decode)]
        for d in self.decode:
            d.wait_ready()
        peers = ",".join(d.serving for d in self.decode)
        self.prefill = [Server("--node-role", "prefill", "--node-id", f"prefill-{i}", "--serving-bind", "127.0.0.1:0",
                               "--decode-peers", peers, *threads, *flags, *prefill_flags, ready=False) for i in range(n_prefill)]
        for p in self.prefill:
            p.wait_ready()
        self.router = Server("--node-role", "router", "--node-id", "router-0", "--prefill-peers",
                             ",".join(p.serving for p in self.prefill), "--decode-peers", peers, *router_flags)
        for s in self.servers:
            s.wait_healthy()
        self.url = self.router.url

    @property
    def servers(self):
        return [self.router, *self.prefill, *self.decode]

    @property
    def workers(self):
        return [*self.prefill, *self.decode]

    def request(self, *args, **kwargs):
        return self.router.request(*args, **kwargs)

    def post(self, path, body):
        return self.router.post(path, body)

    def check_no_leak(self):
        for w in self.workers:
            w.check_no_leak()

    def stop(self):
        for s in self.servers:
            s.stop()
