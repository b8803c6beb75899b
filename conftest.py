"""Kernels that tests compile are kept apart from the user's, between runs: `pytest --cache-clear`
forgets them. TILEWRIGHT_CACHE_DIR says otherwise."""

import gc
import os
import sys
import tempfile

# Many tests start Python: without bytecode each of them compiles the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.set_threshold(5_000_000, 20, 20)  # within a test; see pytest_runtest_logfinish


def pytest_configure(config):
    if "TILEWRIGHT_CACHE_DIR" in os.environ:
        return
    cache = getattr(config, "cache", None)
    folder = cache.mkdir("tilewright") if cache else tempfile.mkdtemp(prefix="tilewright-tests-")
    # a folder in it, which the store makes: nobody else may write to that one
    os.environ["TILEWRIGHT_CACHE_DIR"] = os.path.join(folder, "kernels")


def pytest_collection_finish():
    """Tests and modules stay: collecting garbage leaves them out."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish(nodeid):
    """Between tests, when most of what they made is gone, what is left is looked at once and then
    left out too: a test that collects garbage would look at gigabytes of compiled kernels."""
    if gc.get_count()[0] > 200_000:
        gc.collect(1)
        gc.freeze()
