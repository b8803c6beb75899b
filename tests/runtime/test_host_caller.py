"""The generated function of the CPU target: which calls take the short road, and what it costs."""

import ctypes
import os
import sys
import threading
import time
from operator import is_

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.runtime import host_caller
from tilewright.runtime.launch import Launcher
from tilewright.targets.cpu import native, threads
from tilewright.targets.cpu.native import FREE, LENT, RECORD
from tilewright.targets.cpu.threads import Memory


def add(n=64, **more):
    @T.prim_func
    def add(
        A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = A[i] + B[i]

    return tw.compile(add, target="cpu", **more)


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_names_are_the_kernels_own(target):
    """x0 and x1 are what the generated function would call its own."""

    @T.prim_func
    def copy(x1: T.Tensor((8,), "float32"), x0: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                x0[i] = x1[i]

    kernel = tw.compile(copy, target=target)
    for _ in range(2):
        a, b = np.ones(8, np.float32), np.zeros(8, np.float32)
        kernel(x0=b, x1=a)
        assert (b == 1).all()
        b[:] = 0
        kernel(a, x0=b)
        assert (b == 1).all()


@pytest.fixture
def checked(monkeypatch):
    """The calls that were checked at length."""
    seen = []
    real = Launcher.prepare

    def prepare(self, given, named=None):
        seen.append(given)
        return real(self, given, named)

    monkeypatch.setattr(Launcher, "prepare", prepare)
    return seen


def three(n=64):
    return [np.ones(n, np.float32) for _ in range(3)]


def test_calls_that_look_alike_are_checked_once(checked):
    kernel = add(T.dynamic("n"))
    for n in (64, 8, 64, 8, 64):
        for _ in range(3):
            a, b, c = three(n)
            kernel(a, b, c)
            assert (c == 2).all()
    assert len(checked) == 2
    kernel(a, C=c, B=b)  # names take the long road
    assert len(checked) == 3


def test_outputs_too(checked):
    kernel = add(T.dynamic("n"), out_idx=-1)
    for n in (64, 8, 64, 8):
        assert kernel(*three(n)[:2]).tolist() == [2.0] * n
    assert len(checked) == 2


def test_tensors_too(checked):
    torch = pytest.importorskip("torch")
    kernel, made = add(T.dynamic("n")), add(T.dynamic("n"), out_idx=-1)
    for n in (64, 8, 64, 8):
        for _ in range(3):
            a, b, c = torch.ones(n), torch.ones(n), torch.zeros(n)
            kernel(a, b, c)
            assert c.tolist() == made(a, b).tolist() == made(a, a).tolist() == [2.0] * n
    assert len(checked) == 4  # one tensor twice looks like two


def test_tensors_whose_storage_was_freed():
    """PyTorch looks at their types, shapes and strides alone."""
    torch = pytest.importorskip("torch")
    kernel, n = add(T.dynamic("n")), 64
    for _ in range(2):
        gone = torch.ones(n)
        gone.untyped_storage().resize_(0)
        for _ in range(2):
            with pytest.raises(tw.LaunchError, match="B has no memory"):
                kernel(torch.ones(n), gone, torch.ones(n))
        kernel(torch.ones(n), torch.ones(n), torch.ones(n))
    empty = torch.ones(0)
    kernel(empty, empty, empty)


def test_tensors_where_pytorch_has_no_guards(checked, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(host_caller, "guard_of", lambda *_: host_caller.never)
    kernel = add(T.dynamic("n"))
    for n in (64, 8, 64, 8):
        a, b, c = torch.ones(n), torch.ones(n), torch.zeros(n)
        kernel(a, b, c)
        assert c.tolist() == [2.0] * n
    assert len(checked) == 2
    kernel(a.requires_grad_(), b, c)
    with pytest.raises(tw.LaunchError, match="C requires a gradient"):
        kernel(a, b, c.requires_grad_())
    with torch.no_grad():
        kernel(a, b, c)


def checks_of(kernel):
    """The Python function, where machine code calls it."""
    cell = getattr(kernel.__call__, "__self__", None)
    return kernel.__call__ if cell is None else cell.cell_contents.alive[0]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(host_caller, "KEPT", 4)
    kernel = add(T.dynamic("n"))
    for n in range(1, 12):
        a, b, c = three(n)
        kernel(a, b, c)
        assert (c == 2).all()
    assert len(checks_of(kernel).__globals__["kept"]) <= 4


def test_addresses_are_read_or_asked_for(monkeypatch):
    assert native.reads_arrays()
    monkeypatch.setattr(native, "reads_arrays", lambda: False)  # as where nothing is known of them
    kernel = add()
    for _ in range(3):
        a, b, c = three()
        kernel(a, b, c)
        assert (c == 2).all()


def of_machine_code(call):
    """The words it reads, by name."""
    cell = getattr(call.__call__, "__self__", None)
    if cell is None:
        pytest.skip("this Python's arrays are not read by machine code")
    return cell.cell_contents, {name: at for at, name in enumerate(RECORD)}


@pytest.mark.parametrize("makes", [False, True])
def test_machine_code_takes_calls_like_the_one_before(makes):
    kernel = add(T.dynamic("n"), out_idx=-1 if makes else None)
    given = three()[: 3 - makes]
    for _ in range(2):  # the second is measured, and leads to machine code
        kernel(*given)
    asked = []

    def slow(*given, **named):
        asked.append((given, named))

    record, at = of_machine_code(kernel)
    record[at["slow"]] = id(slow)
    given[-1][:] = 3 if makes else 0
    found = kernel(*given)
    assert (found if makes else given[-1]).tolist() == [4.0 if makes else 2.0] * 64
    assert not asked
    a, *rest = given
    frozen = a.copy()
    frozen.flags.writeable = False
    others = [three(8)[: len(given)], [np.ones(128, np.float32)[::2], *rest]]
    others += [
        [a.astype(">f4"), *rest],
        [a.astype(np.int32), *rest],
        [a.tolist(), *rest],
        given[:1],
    ]
    others += [[a.reshape(8, 8), *rest], [np.ma.array(a), *rest], [*given, a]]
    others += [[np.frombuffer(b" " * 257, np.uint8)[1:].view(np.float32), *rest]]
    if not makes:  # what is written may not be read-only, nor lie in what is read
        whole = np.ones(80, np.float32)
        others += [[a, rest[0], frozen], [a, rest[0], a], [a, whole[:64], whole[16:]]]
    for other in others:
        kernel(*other)
        ((there, named),) = asked
        assert len(there) == len(other) and all(map(is_, there, other)) and not named
        asked.clear()
    kernel(*given[:-1], **{"B" if makes else "C": given[-1]})
    assert len(asked) == 1 and len(asked[0][1]) == 1


def test_what_machine_code_knows_never_changes():
    """Another thread may be reading it: calls that look otherwise bring a record of their own."""
    made = add(T.dynamic("n"), out_idx=-1)
    few, many = three(8)[:2], three(64)[:2]
    records = []
    for given in (few, many, few, many):
        for _ in range(3):
            assert made(*given).tolist() == [2.0] * len(given[0])
        record, _ = of_machine_code(made)
        records.append((record, record.copy()))
    assert records[0][0] is records[2][0] is not records[1][0] is records[3][0]
    assert all((record == before).all() for record, before in records)


def test_machine_code_asks_how_many_threads_there_may_be(monkeypatch):
    @T.prim_func
    def copy(A: T.Tensor((4096,), "float32"), B: T.Tensor((4096,), "float32")):
        with T.Kernel(64, threads=32) as block:
            for i in T.Parallel(64):
                B[block * 64 + i] = A[block * 64 + i]

    monkeypatch.setattr("tilewright.targets.cpu.kernel._WORTH_SHARING", 0)
    kernel = tw.compile(copy, target="cpu")
    a, b = np.zeros(4096, np.float32), np.zeros(4096, np.float32)
    for count in ("1", "2", "3", "1"):
        monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", count)
        for _ in range(3):
            kernel(a, b)
        record, at = of_machine_code(kernel)
        assert record[at["chunk"]] == {"1": 0, "2": 4, "3": 2}[count]
        assert record[at["setting"]] == id(os.environ._data[b"TILEWRIGHT_NUM_THREADS"])


def test_machine_code_raises_what_making_the_result_raises():
    made = add(T.dynamic("n"), out_idx=-1)
    a, b, _ = three()
    for _ in range(3):
        made(a, b)

    def fails(*_):
        raise MemoryError("none left")

    record, at = of_machine_code(made)
    kept = int(record[at["empty"]])
    record[at["empty"]] = id(fails)
    for _ in range(2):
        with pytest.raises(MemoryError, match="none left"):
            made(a, b)
    record[at["empty"]] = kept
    assert made(a, b).tolist() == [2.0] * 64


def test_machine_code_lends_its_memory_to_one_call():
    """Another thread's call comes meanwhile: it takes the Python road."""
    made = add(T.dynamic("n"), out_idx=-1)
    a, b, _ = three()
    for _ in range(3):
        made(a, b)
    of_machine_code(made)
    words = threads.pool.words
    address, words[FREE] = words[FREE], 0
    assert address == words[LENT]
    assert made(a, b).tolist() == [2.0] * 64 and not words[FREE]
    words[FREE] = address
    assert made(a, b).tolist() == [2.0] * 64 and words[FREE] == address


def test_machine_code_counts_references():
    kernel, made = add(T.dynamic("n")), add(T.dynamic("n"), out_idx=-1)
    a, b, c = three()
    for call, more in ((kernel, (c,)), (made, ())):
        for _ in range(3):
            call(a, b, *more)
        before = [sys.getrefcount(x) for x in (a, b, c, a.dtype, None)]
        for _ in range(1000):
            call(a, b, *more)
        after = [sys.getrefcount(x) for x in (a, b, c, a.dtype, None)]
        assert all(abs(x - y) < 50 for x, y in zip(before, after))
    assert sys.getrefcount(made(a, b)) <= 2


LITTLE = 26  # of NumPy's additions of 64 numbers: 20 µs where one takes 0.77


def additions(call, repeat=100, times=200):
    """How many additions of 64 numbers by NumPy a call takes: both run in turn, since a machine may
    be slow for a while, and the bursts count that nothing disturbed."""
    a = np.zeros(64, np.float32)

    def burst(run):
        started = time.perf_counter()
        for _ in range(times):
            run()
        return time.perf_counter() - started

    bursts = [(burst(call), burst(lambda: np.add(a, a, out=a))) for _ in range(repeat)]
    return min(own for own, _ in bursts) / min(other for _, other in bursts)


def test_a_checked_call_costs_little():
    """More than the machine code; measured: 6 to 8 with NumPy's arrays, and with tensors."""
    kernel = add()
    a, b, c = three()
    kernel(a, b, c)
    (launch,) = kernel.executable.launches
    block = (ctypes.c_int64 * 8)(*(x.ctypes.data for x in (a, b, c)))
    address, arena, entry = ctypes.addressof(block), Memory(launch.arena_bytes), launch.entry
    bare = additions(lambda: entry(address, arena.address, 0, 1))
    assert additions(lambda: kernel(a, b, c)) - bare < LITTLE
    made = add(out_idx=-1)
    assert additions(lambda: made(a, b)) - bare < LITTLE


def test_a_checked_call_of_tensors_costs_little():
    torch = pytest.importorskip("torch")
    kernel = add()
    a, b, c = torch.ones(64), torch.ones(64), torch.ones(64)
    assert additions(lambda: kernel(a, b, c)) < LITTLE


def test_a_kernel_written_directly_costs_little():
    @tw.jit(target="cpu")
    def shift(A):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B = T.empty((N,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] + 1
        return B

    a = np.ones(64, np.float32)
    assert additions(lambda: shift(a)) < LITTLE


TARGETS = pytest.mark.parametrize("target", ["cpu", "interp"])


@TARGETS
def test_kernels_without_inputs(target):
    @T.prim_func
    def count(out: T.Tensor((8,), "float32"), twice: T.Tensor((4, 2), "int8")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                out[i] = 3
                twice[i // 2, i % 2] = i

    kernel = tw.compile(count, target=target, out_idx=[0, 1])
    for _ in range(3):
        out, twice = kernel()
        assert (out == 3).all() and (twice.ravel() == range(8)).all()
    with pytest.raises(tw.LaunchError, match="takes 0 arguments, got 1"):
        kernel(out)


@TARGETS
def test_factories_and_direct_kernels_without_inputs(target):
    @tw.jit(target=target, out_idx=-1)
    def factory(n):
        @T.prim_func
        def main(out: T.Tensor((n,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    out[i] = i

        return main

    @tw.jit(target=target)
    def direct(n: int):
        out = T.empty((n,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                out[i] = i
        return out

    @tw.jit(target=target)
    def bare():
        out = T.empty((4,), "float32")
        with T.Kernel(1, threads=32):
            T.fill(out, 2)
        return out

    for n in (4, 5, 4):
        assert (factory(n)() == range(n)).all() and (direct(n) == range(n)).all()
        assert (bare() == 2).all()


@TARGETS
def test_a_size_that_nothing_gives_is_refused(target):
    n = T.dynamic("n")

    @T.prim_func
    def main(out: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                out[i] = 1

    with pytest.raises(tw.LaunchError, match="no tensor's shape gives n"):
        tw.compile(main, target=target, out_idx=-1)()


def test_calls_of_many_threads_at_many_sizes(monkeypatch):
    """Each takes any of the roads, with any form of arguments; nothing around them is written."""
    monkeypatch.setattr(host_caller, "KEPT", 16)
    n, w = T.dynamic("n"), T.dynamic("w")

    @T.prim_func
    def add(
        A: T.Tensor((n, w), "float32"), B: T.Tensor((n, w), "float32"),
        C: T.Tensor((n, w), "float32"),
    ):  # fmt: skip
        with T.Kernel(n, threads=32) as row:
            for i in T.Parallel(w):
                C[row, i] = A[row, i] + B[row, i]

    kernel, made = tw.compile(add, target="cpu"), tw.compile(add, target="cpu", out_idx=-1)
    wrong = []

    def calls(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            rows, columns, form = (int(x) for x in rng.integers(0, (7, 30, 5)))
            a, b = rng.integers(0, 9, (2, rows, columns)).astype(np.float32)
            around = np.full(rows * columns + 32, 7, np.float32)
            c = around[16 : 16 + rows * columns].reshape(rows, columns)
            for _ in range(3):
                c[:] = 0
                kernel(a, b, c)
                assert (c == a + b).all() and (around[:16] == 7).all() and (around[-16:] == 7).all()
                assert np.array_equal(made(a, b), a + b)
                other = [a, b[:-1], b.astype(int), b[None], b[:, ::-1]][form]
                if form and b.size and columns > 1:
                    with pytest.raises(tw.LaunchError):
                        made(a, other)

    def worker(seed):
        try:
            calls(seed)
        except BaseException as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    workers = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    sys.setswitchinterval(before)
    assert not wrong, wrong[0]
