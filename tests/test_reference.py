"""The reference is what docstrings say, names everything, and every example in it is true."""

from __future__ import annotations

import doctest
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tests.roads  # noqa: F401  (cuda_threads, cuda_arrays)
import tilewright as tw
import tilewright.language as T
from devtools import reference
from devtools.__main__ import main
from tilewright import layout

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
NAMES = [(page, name) for page in reference.PAGES for name in page.names()]
IDS = [f"{page.prefix}.{name}" for page, name in NAMES]


def test_pages_are_up_to_date():
    made = reference.pages(FOLDER)
    stale = [p.name for p, text in made.items() if not p.exists() or p.read_text() != text]
    assert not stale, "run: python -m devtools reference"
    assert set(made) == set(FOLDER.glob("*.md"))


def test_command(tmp_path):
    done = CliRunner().invoke(main, ["reference", str(tmp_path)])
    assert done.exit_code == 0 and "launch.md" in done.output
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in FOLDER.glob("*.md")}
    assert not CliRunner().invoke(main, ["reference", str(tmp_path)]).output  # nothing changed


def test_what_a_jitted_function_can_do_is_there():
    page = next(page for page in reference.PAGES if page.file == "python")
    entry = reference.render(page).split("### `tw.compile`")[0]
    for method in ("compile", "on", "with_schedule"):
        assert f"- `.{method}(" in entry
    assert ".explain()" in entry


@pytest.mark.parametrize("prefix", ["T", "tw", "layout"])
def test_every_name_is_there_once(prefix):
    pages = [page for page in reference.PAGES if page.prefix == prefix]
    listed = [name for page in pages for name in page.names()]
    also = [o for page in pages for n in page.names() for o in reference.aliases(page.module, n)]
    assert len(listed) == len(set(listed))
    assert not set(listed) & set(also)
    assert set(listed) | set(also) == reference.public_names(pages[0].module)


def run_in_frame(code, target):
    """Run an example and compare what its comments say of the tensors."""
    arrays = {
        "X": (np.arange(64)[None, :] - np.arange(64)[:, None]).astype(np.float32),
        "N": np.arange(64, dtype=np.int32),
        "Y": np.zeros((64, 64), np.float32),
        "M": np.zeros(64, np.int32),
    }
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of hints that have no meaning, and of infinities
        tw.compile(traced(code), target=target)(*arrays.values())
    claims = re.findall(r"^# ([YM][^:]*(?:\[.*\])?): (.*)$", code, re.M)
    for what, values in claims:
        want = np.array([float(v) for v in values.split()])
        got = np.atleast_1d(eval(what, {}, arrays))[: len(want)]
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=f"{what} on {target}")
    return claims


def traced(code):
    names = {"T": T}
    exec(compile_text(reference.in_frame(code)), names)
    return names["example"]


def compile_text(text):
    import linecache

    file = f"<example {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")


def check(page, name, target, capsys):
    found = reference.examples(getattr(page.module, name))
    assert found, f"{name} has no example in its docstring"
    for example in found:
        if example.kind == "run":
            claims = run_in_frame(example.code, target)
            assert claims or "T.print" in example.code, f"the example of {name} shows nothing"
        elif example.kind == "cuda":
            tw.compile(traced(example.code), target="cuda")
        elif example.kind == "traced":
            traced(example.code)
        else:
            names = {"tw": tw, "T": T, "np": np, name: getattr(page.module, name)}
            if page.prefix == "layout" or name in vars(layout):
                names.update(vars(layout))
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            test = doctest.DocTestParser().get_doctest(example.code, names, name, None, None)
            assert test.examples and "+SKIP" not in example.code
            runner.run(test)
            assert not runner.failures, capsys.readouterr().out


@pytest.mark.parametrize(("page", "name"), NAMES, ids=IDS)
def test_example(page, name, capsys):
    check(page, name, "interp -sanitize", capsys)


# What a target refuses, as the pages say: barriers and clusters on the CPU. One that is no longer
# refused belongs out of here.
REFUSED = {
    "cpu": "alloc_barrier barrier_arrive barrier_wait mbarrier_arrive mbarrier_wait_parity "
    "mbarrier_expect_tx named_barrier_arrive set_max_nreg inc_max_nreg dec_max_nreg cluster_sync "
    "copy_cluster block_rank_in_cluster",
    "cuda": "",
}
FRAMED = [
    (name, example.code)
    for page, name in NAMES
    for example in reference.examples(getattr(page.module, name))
    if example.kind == "run"
]


def framed(refused=""):
    marks = {
        name: pytest.mark.xfail(reason="refused", raises=tw.TilewrightError)
        for name in refused.split()
    }
    return [pytest.param(code, id=name, marks=marks.get(name, [])) for name, code in FRAMED]


@pytest.mark.parametrize("code", framed(REFUSED["cpu"]))
def test_on_the_cpu(code):
    run_in_frame(code, "cpu")


@pytest.mark.parametrize("code", framed(REFUSED["cuda"]))
def test_as_thread_code(code):
    """What a GPU would run, thread by thread."""
    run_in_frame(code, "cuda_threads")


@pytest.mark.gpu
@pytest.mark.parametrize("code", framed(REFUSED["cuda"]))
def test_on_a_gpu(code):
    run_in_frame(code, "cuda_arrays")


@pytest.mark.slow
def test_all_compile_for_cuda():
    for name, code in FRAMED:
        if name not in REFUSED["cuda"].split():
            tw.compile(traced(code), target="cuda")
