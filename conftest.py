"""Kernels that tests compile are kept apart from the user's, between runs: `pytest --cache-clear`
forgets them. TILEWRIGHT_CACHE_DIR says otherwise."""

import os
import tempfile


def pytest_configure(config):
    if "TILEWRIGHT_CACHE_DIR" in os.environ:
        return
    cache = getattr(config, "cache", None)
    folder = cache.mkdir("tilewright") if cache else tempfile.mkdtemp(prefix="tilewright-tests-")
    # a folder in it, which the store makes: nobody else may write to that one
    os.environ["TILEWRIGHT_CACHE_DIR"] = os.path.join(folder, "kernels")
