"""A crowd of slow and idle clients costs a good one nothing that it would notice. bench/slow_clients.py measures it; here it
must hold on a machine that does other things besides."""

import os
import pathlib
import resource
import statistics
import sys

import pytest

from cluster import Server, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import slow_clients  # noqa: E402


@pytest.mark.slow
@pytest.mark.speed
def test_slow_clients():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5000:
        pytest.skip("too few files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server("-t", "1")
    try:
        files = len(os.listdir(f"/proc/{server.pid}/fd"))
        quiet, loaded, grown, share = slow_clients.measure(server, n=4000, rounds=2, requests=30)
        assert statistics.median(loaded) < 1.5 * statistics.median(quiet), (quiet, loaded)
        assert share < 0.2, share  # of a core, for all of them
        assert grown < 150  # MiB
        wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= files, "sockets are closed", 60)
        server.check_no_leak()
    finally:
        server.stop()
