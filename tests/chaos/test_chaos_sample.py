"""A small sample of `make chaos`: each fault once."""

import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1] / "e2e")]
import chaos  # noqa: E402
from faults import KINDS  # noqa: E402

FIRST = 14


@pytest.mark.slow
def test_each_fault_once(tmp_path):
    assert chaos.run(range(FIRST, FIRST + len(KINDS)), KINDS, tmp_path / "report", small=True)
