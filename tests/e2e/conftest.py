import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cluster as c  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: only in the full check")
    config.addinivalue_line("markers", "speed: depends on how fast the build is")


def pytest_collection_modifyitems(config, items):
    for path, what in ((c.BIN, "build it with `make`"), (c.MODEL, "fetch it with `make model`")):
        if not os.path.exists(path):
            pytest.exit(f"{path} is not there: {what}", 1)


@pytest.fixture(scope="session")
def hybrid_server():
    server = c.Server("--node-id", "hybrid-0")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster_servers():
    cluster = c.Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def hybrid(hybrid_server):
    """A running single node; after each test it holds no page."""
    yield hybrid_server
    hybrid_server.check_no_leak()


@pytest.fixture
def cluster(cluster_servers):
    """A running router, prefill and decode node; after each test none holds a page."""
    yield cluster_servers
    cluster_servers.check_no_leak()
