"""Fixtures shared by the whole suite."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
# Programs that a test starts import the package of this checkout, whatever is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def pytest_configure() -> None:
    """The whole suite on another device: ``BOTORCH_DP_TEST_DEVICE=cuda``."""
    name = os.environ.get("BOTORCH_DP_TEST_DEVICE")
    if not name:
        return
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        problem = str(error).splitlines()[0]
        pytest.exit(f"BOTORCH_DP_TEST_DEVICE={name} cannot be used here: {problem}", returncode=2)
    torch.set_default_device(name)


@pytest.fixture(autouse=True, scope="session")
def _no_stale_builds() -> None:
    """A killed build of BoTorch's kernel leaves a lock for which each later one waits for ever."""
    from torch.utils.cpp_extension import get_default_build_root

    for lock in Path(get_default_build_root()).glob("*/*/lock"):
        if time.time() - lock.stat().st_mtime > 300:
            lock.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _reproducible_search() -> None:
    """Search randomness repeats; privacy noise never follows this seed."""
    # `torch.manual_seed` would keep a note, with its place in the program, to seed accelerators.
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Workers share two cores: more threads than that only wait for each other."""
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What has been loaded by now stays: no collection of garbage need look through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, before pytest leaves that out, and what lacks its data."""
    cases: Counter[str] = Counter()
    for item in items:
        marker, name = item.get_closest_marker("one_in"), item.nodeid.partition("[")[0]
        if marker is not None and cases[name] % marker.args[0]:
            item.add_marker("slow")
        cases[name] += 1
    if os.environ.get("BOTORCH_DP_DATA"):
        return
    skip = pytest.mark.skip(reason="set BOTORCH_DP_DATA to the folder of the real data sets")
    for item in items:
        if "data" in item.keywords:
            item.add_marker(skip)
