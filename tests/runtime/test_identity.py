"""What a kernel is: its text, and the type and content of every value that the trace read."""

import enum
import functools
import importlib
import linecache
import os
import sys
import types
from dataclasses import dataclass, field

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T

X = np.ones(2, np.int32)


@tw.jit(target="interp", out_idx=[-1])
def weighted(config):
    """Its result tells types apart: integers divide down, floats do not, and signs are kept."""
    w = config() if callable(config) else getattr(config, "w", config)
    while isinstance(w, (list, tuple, dict)):
        w = w[0]
    w = getattr(w, "value", w)

    @T.prim_func
    def main(A: T.Tensor((2,), "int32"), B: T.Tensor((2,), "float64")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(2):
                B[i] = (
                    A[i] * w // 2
                    if isinstance(w, (int, np.integer))
                    else T.copysign(T.cast(A[i], "float64") + abs(float(w)), float(w))
                )

    return main


@tw.jit(target="interp")
def weighted_direct(A, config):
    N = T.const("N")
    A: T.Tensor((N,), "int32")
    B = T.empty((N,), "float64")
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            B[i] = (
                A[i] * config[0] // 2
                if isinstance(config[0], int)
                else T.copysign(T.cast(A[i], "float64") + abs(config[0]), config[0])
            )
    return B


@dataclass(frozen=True)
class Frozen:
    w: object


@dataclass
class Hidden:
    name: str
    w: object = field(repr=False, compare=False, default=None)


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w):
        self.w = w


class ThreeInt(enum.Enum):
    A = 3


class ThreeFloat(enum.Enum):
    A = 3.0


def value_of(w):
    return w


def closing_over(w):
    return lambda: w


class Holder:
    def __init__(self, w):
        self.w = w

    def __call__(self):
        return self.w

    def give(self):
        return self.w


FORMS = {
    "alone": lambda w: w,
    "tuple": lambda w: (w, 1),
    "list": lambda w: [w],
    "dict": lambda w: {0: w},
    "deep": lambda w: ([{0: w}],),
    "frozen dataclass": Frozen,
    "field without repr": lambda w: Hidden("a", w),
    "slots": Slotted,
    "object": lambda w: types.SimpleNamespace(w=w),
    "callable object": Holder,
    "closure": closing_over,
    "partial": lambda w: functools.partial(value_of, w),
    "bound method": lambda w: Holder(w).give,
    "default": lambda w: lambda w=w: w,
    "keyword default": lambda w: lambda *, w=w: w,
    "NumPy": lambda w: types.SimpleNamespace(w=np.array([w, 0])[0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_equal_values_of_different_types_or_signs(form):
    """3 == 3.0 and 0.0 == -0.0, but the kernels differ."""
    make = FORMS[form]
    results = [weighted(make(w))(X)[0] for w in (3, 3.0, 0.0, -0.0)]
    assert results[:3] == [1, 4, 1] and results[3] == -1
    assert weighted(make(3)) is weighted(make(3))


def test_true_is_not_one():
    kernels = {id(weighted(w)): weighted(w) for w in (1, True, 1.0, np.int32(1), np.int64(1))}
    assert len(kernels) == 5


def test_nan_is_itself():
    nan = float("nan")
    assert weighted(nan) is weighted(float("nan"))
    assert weighted([nan]) is weighted([float("nan")])
    # as a constant of a kernel it has no sign, whichever came first
    assert weighted(-nan).ir() == weighted(nan).ir()
    assert not np.signbit(weighted(-nan)(X)).any()


def test_direct_kernels_too():
    results = [weighted_direct(X, (w, "s"))[0] for w in (3, 3.0, 0.0, -0.0)]
    assert results[:3] == [1, 4, 1] and results[3] == -1
    config = [3]
    assert weighted_direct(X, config)[0] == 1
    config[0] = 5
    assert weighted_direct(X, config)[0] == 2
    assert weighted_direct(X, config=[3])[0] == 1


def test_a_tuple_is_not_an_array_of_that_form():
    keys = weighted_direct.calls._kinds
    arrays = keys({"A": np.ones((2, 2), np.float32)}, None)
    assert arrays != keys({"A": (2, "float32")}, None) != keys({"A": ("array", 2, "float32")}, None)


@tw.jit(target="interp", out_idx=[-1])
def middle(values):
    w = float(values.reshape(-1)[values.size // 2])

    @T.prim_func
    def main(A: T.Tensor((2,), "int32"), B: T.Tensor((2,), "float64")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(2):
                B[i] = T.cast(A[i], "float64") * w

    return main


def test_arrays_count_by_content():
    long = np.zeros(2001)
    other = long.copy()
    other[1000] = 5
    assert [middle(a)(X)[0] for a in (long, other, long)] == [0, 5, 0]
    assert [middle(np.array([0, w]))(X)[0] for w in (1.0, 1.000000001)] == [1, 1.000000001]
    long[1000] = 7  # the same array, changed
    assert middle(long)(X)[0] == 7
    assert middle(long) is middle(long.copy()) is middle(long[::1])
    assert middle(np.ones((2, 3))) is not middle(np.ones((3, 2)))
    assert middle(np.ones(2, "f4")) is not middle(np.ones(2, "f8"))
    assert middle(np.asfortranarray(np.ones((2, 3)))) is middle(np.ones((2, 3)))
    assert middle(np.arange(6.0)[::2]) is middle(np.array([0.0, 2.0, 4.0]))


def test_tensors_count_by_content():
    torch = pytest.importorskip("torch")
    a = torch.zeros(4, dtype=torch.bfloat16)

    @tw.jit(target="interp", out_idx=[-1])
    def second(t):
        w = float(t[2])

        @T.prim_func
        def main(A: T.Tensor((2,), "int32"), B: T.Tensor((2,), "float64")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(2):
                    B[i] = A[i] * w

        return main

    assert second(a)(X)[0] == 0
    a[2] = 5
    assert second(a)(X)[0] == 5
    assert second(a) is second(a.clone()) is not second(a.float())
    assert second.compile(a) is not second.compile(a.double())


class Changing:
    def __init__(self):
        self.w = 3
        self.inner = {"deep": [3]}


def test_objects_that_change():
    one = Changing()
    first = weighted(one)
    assert weighted(one) is first
    one.w = 5
    assert weighted(one)(X)[0] == 2
    one.inner["deep"].append(1)
    assert weighted(one) is not weighted(Changing())
    one.__init__()
    assert weighted(one) is first


def test_classes_that_change():
    class Config:
        w = 3

    assert weighted(Config())(X)[0] == 1
    Config.w = 5
    assert weighted(Config())(X)[0] == 2

    class Base:
        w = 3

    class Derived(Base):
        pass

    derived = Derived()
    assert weighted(derived)(X)[0] == 1
    Base.w = 5
    assert weighted(derived)(X)[0] == 2
    Derived.w = 7
    assert weighted(derived)(X)[0] == 3


def test_enums():
    assert weighted(ThreeInt.A)(X)[0] == 1 and weighted(ThreeFloat.A)(X)[0] == 4
    assert weighted(ThreeInt.A) is weighted(ThreeInt.A)


def test_lambdas_on_one_line():
    made = [lambda: 3, lambda: 5, lambda: 3.0]
    assert [weighted(f)(X)[0] for f in made] == [1, 2, 4]
    made = [lambda: w for w in (3, 5)]
    assert weighted(made[0]) is weighted(made[1])  # one cell, and one value in it


def test_cycles_have_keys():
    ring = [3]
    ring.append(ring)
    assert weighted(ring)(X)[0] == 1
    node = types.SimpleNamespace(w=3)
    node.self = node
    assert weighted(node) is weighted(node)
    deep = 3
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(tw.CompileError, match="nested too deeply"):
        weighted(deep)


# ── closures and globals ─────────────────────────────────────────────────────────────────────

SCALE = 3
TABLE = {"scale": 3}
NOTHING = None


def global_scale():
    return SCALE + TABLE["scale"]


class Settings:
    scale = 3


@tw.jit(target="interp", out_idx=[-1])
def by_globals(n):
    total = SCALE * 100 + global_scale() * 10 + Settings.scale

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[i] * total

    return main


def test_globals_that_change(monkeypatch):
    first = by_globals(2)
    assert first(X)[0] == 363 and by_globals(2) is first
    monkeypatch.setitem(globals(), "SCALE", 4)
    assert by_globals(2)(X)[0] == 473
    monkeypatch.setitem(TABLE, "scale", 5)
    assert by_globals(2)(X)[0] == 493
    monkeypatch.setattr(Settings, "scale", 4)
    assert by_globals(2)(X)[0] == 494
    monkeypatch.setitem(globals(), "global_scale", lambda: 1)
    assert by_globals(2)(X)[0] == 414
    monkeypatch.undo()
    assert by_globals(2) is first


def test_closures_that_change():
    scale, table = 3, [3]

    @tw.jit(target="interp")
    def direct(A):
        N = T.const("N")
        A: T.Tensor((N,), "int32")
        B = T.empty((N,), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] * (scale * 10 + table[0])
        return B

    assert direct(X)[0] == 33
    table[0] = 4
    assert direct(X)[0] == 34
    scale = 5
    assert direct(X)[0] == 54
    table[0] = 4.0
    assert direct(X)[0] == 54 and len(direct._kernels) == 4


def test_globals_that_are_named_by_strings(monkeypatch):
    @tw.jit(target="interp", out_idx=[-1])
    def fac(n):
        total = globals()["SCALE"] * 10 + eval("TABLE['scale']")

        @T.prim_func
        def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    B[i] = A[i] * total

        return main

    assert fac(2)(X)[0] == 33 and fac(2) is fac(2)
    monkeypatch.setitem(globals(), "SCALE", 4)
    assert fac(2)(X)[0] == 43
    monkeypatch.setitem(TABLE, "scale", 5)
    assert fac(2)(X)[0] == 45


def test_only_the_attributes_that_are_read_count():
    class Model:
        def __init__(self):
            self.block, self.table, self.rows = 3, [3], iter(())

            @tw.jit(target="interp", out_idx=[-1])
            def kernel(n):
                total = self.block * 10 + self.table[0]

                @T.prim_func
                def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
                    with T.Kernel(1, threads=32):
                        for i in T.Parallel(n):
                            B[i] = A[i] * total

                return main

            self.kernel = kernel

    model = Model()
    first = model.kernel(2)
    assert first(X)[0] == 33
    model.rows = 5
    assert model.kernel(2) is first
    model.block = 4
    assert model.kernel(2)(X)[0] == 43
    model.table[0] = 4
    assert model.kernel(2)(X)[0] == 44
    model.table = [5]
    assert model.kernel(2)(X)[0] == 45


DTYPE = T.int32


def test_names_that_only_annotations_of_locals_have(monkeypatch):
    @tw.jit(target="interp")
    def direct(A, way):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B = T.empty((N,), "float32")
        with T.Kernel(1, threads=32):
            s: DTYPE
            s = 0
            for k in T.serial(N):
                s += A[k]
            B[0] = s
        return B

    half = np.full(4, 0.5, np.float32)
    assert direct(half, 0)[0] == 0
    monkeypatch.setitem(globals(), "DTYPE", T.float32)
    assert direct(half, 0)[0] == 2


def test_macros_that_change(monkeypatch):
    by = [3]

    def by_list(x):
        return x * by[0]

    def by_five(x):
        return x * 5

    scaled = T.macro(by_list)

    @tw.jit(target="interp")
    def direct(A):
        N = T.const("N")
        A: T.Tensor((N,), "int32")
        B = T.empty((N,), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = scaled(A[i])
        return B

    assert direct(X)[0] == 3
    by[0] = 4
    assert direct(X)[0] == 4

    scaled = T.macro(by_five)
    assert direct(X)[0] == 5


def test_modules_that_change(tmp_path, monkeypatch):
    config = types.ModuleType("identity_config")
    config.scale, config.lock = 3, iter(())  # what is not read does not matter

    @tw.jit(target="interp", out_idx=[-1])
    def fac(n):
        import identity_config as lazily

        total = config.scale + lazily.scale

        @T.prim_func
        def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    B[i] = A[i] * total

        return main

    other = types.ModuleType("identity_config")
    other.scale = 10
    monkeypatch.setitem(sys.modules, "identity_config", other)
    assert fac(2)(X)[0] == 13
    config.scale = 4
    assert fac(2)(X)[0] == 14
    other.scale = 20
    assert fac(2)(X)[0] == 24


def test_options_are_read_when_the_function_is_decorated():
    out = [-1]

    @tw.jit(target="interp", out_idx=out)
    def fac(n):
        @T.prim_func
        def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    B[i] = A[i]

        return main

    out.clear()
    assert fac(2)(X)[0] == 1


# ── what has no key ──────────────────────────────────────────────────────────────────────────


def test_what_has_no_key_is_refused():
    with pytest.raises(tw.CompileError) as info:
        weighted([1, {"rows": (n for n in range(3))}])
    said = info.value.diagnostic
    assert "a generator is used up by reading it (at config[1]['rows'])" in said.message
    assert said.loc.file == __file__ and "weighted([1" in said.loc.source
    assert said.fix == "pass a list or a tuple of its items"
    with pytest.raises(tw.CompileError, match="hides its contents"):
        weighted(Frozen(sys._getframe()))
    with pytest.raises(tw.CompileError, match="used up"), open(os.devnull) as file:
        weighted_direct(X, file)


def test_what_has_no_key_is_refused_where_it_is_read():
    rows = iter([1, 2])

    @tw.jit(target="interp", out_idx=[-1])
    def fac(n):
        total = next(rows)

        @T.prim_func
        def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    B[i] = A[i] * total

        return main

    with pytest.raises(tw.CompileError, match="rows, which fac reads, .* used up") as info:
        fac(2)
    assert "next(rows)" in info.value.diagnostic.loc.source


def test_locks_and_loggers_are_no_obstacle():
    import logging
    import threading

    lock, log = threading.Lock(), logging.getLogger("identity")

    @tw.jit(target="interp", out_idx=[-1])
    def fac(n):
        with lock:
            log.debug("building")

        @T.prim_func
        def main(A: T.Tensor((n,), "int32"), B: T.Tensor((n,), "int32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    B[i] = A[i]

        return main

    assert fac(2) is fac(2)


# ── texts ────────────────────────────────────────────────────────────────────────────────────

KERNEL = """import tilewright as tw
import tilewright.language as T


{decorator}
def total(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            s: T.{kind}
            s = {start}
            for k in T.serial(n):
                s += A[k]
            B[0] = s

    return main
"""
HALVES = np.full(4, 0.5, np.float32)


def text(kind="int32", start=0, decorator='@tw.jit(target="interp")'):
    return KERNEL.format(kind=kind, start=start, decorator=decorator)


def run(total):
    b = np.zeros(1, np.float32)
    made = total(4)
    kernel = made if isinstance(made, tw.CompiledKernel) else tw.compile(made, target="interp")
    kernel(HALVES, b)
    return b[0]


def cell(source, name):
    """Run as a notebook runs a cell."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), scope)
    return scope["total"]


UNDECORATED = "# a plain factory"


@pytest.mark.parametrize("decorator", ['@tw.jit(target="interp")', UNDECORATED])
@pytest.mark.parametrize("same_name", [True, False])
def test_cells_that_are_edited(decorator, same_name):
    names = [f"<ipython-input-{1 if same_name else at}-{decorator[:2]}>" for at in range(4)]
    seen = []
    for (kind, start), name in zip(
        [("int32", 0), ("float32", 0), ("float32", 7), ("int32", 0)], names, strict=True
    ):
        seen.append(run(cell(text(kind, start, decorator), name)))
    assert seen == [0, 2, 9, 0]


def test_functions_of_cells_that_are_gone():
    """The old function is still the old one after its cell was edited and run again."""
    name = "<ipython-input-7>"
    old = cell(text("int32"), name)
    new = cell(text("float32"), name)
    assert (run(old), run(new), run(old)) == (0, 2, 0)
    plain = cell(text("float32", 7, UNDECORATED), name)
    cell(text("float32", 8, UNDECORATED), name)
    with pytest.raises(tw.CompileError, match="has changed since it was loaded"):
        run(plain)


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    names = iter(range(100))

    class Module:
        def __init__(self, source):
            self.name = f"identity_module_{next(names)}_{os.getpid()}"
            self.path = tmp_path / f"{self.name}.py"
            self.times = iter(range(1, 100))
            self.write(source)
            self.loaded = importlib.import_module(self.name)

        def write(self, source):
            self.path.write_text(source)
            at = os.stat(self.path).st_mtime + 2 * next(self.times)
            os.utime(self.path, (at, at))  # Python tells versions of a file apart by seconds

        def reload(self):
            importlib.invalidate_caches()
            importlib.reload(self.loaded)

    yield Module
    for name in [name for name in sys.modules if name.startswith("identity_module_")]:
        del sys.modules[name]


@pytest.mark.parametrize("decorator", ['@tw.jit(target="interp")', UNDECORATED])
def test_modules_that_are_reloaded(module, decorator):
    loaded = module(text("int32", 0, decorator))
    assert run(loaded.loaded.total) == 0
    old = loaded.loaded.total
    for kind, start, want in [("float32", 0, 2), ("float32", 7, 9), ("int32", 0, 0)]:
        loaded.write(text(kind, start, decorator))
        loaded.reload()
        assert run(loaded.loaded.total) == want
        assert run(old) == 0


def test_files_that_are_edited_and_not_reloaded(module):
    loaded = module(text("int32"))
    loaded.write(text("float32", 7))
    linecache.checkcache()
    assert run(loaded.loaded.total) == 0  # what was loaded
    plain = module(text("int32", 0, UNDECORATED))
    plain.write(text("int32", 7, UNDECORATED))
    with pytest.raises(tw.CompileError, match="has changed since it was loaded"):
        run(plain.loaded.total)
    plain.write(text("float32", 0, UNDECORATED))  # bytecode would not tell
    if not sys.dont_write_bytecode:
        with pytest.raises(tw.CompileError, match="has changed since it was loaded"):
            run(plain.loaded.total)
    plain.reload()
    assert run(plain.loaded.total) == 2


def test_files_that_differ_in_an_annotation(module):
    kinds = {"int32": 0, "float32": 2}
    made = {kind: module(text(kind)).loaded.total for kind in kinds}
    assert {kind: run(total) for kind, total in made.items()} == kinds


def test_errors_name_their_own_file(module):
    wrong = text().replace("s += A[k]", "s += A[k, 0]")
    first, second = module(wrong), module(wrong)
    for each in (first, second, first):
        with pytest.raises(tw.CompileError) as info:
            run(each.loaded.total)
        assert info.value.loc.file == str(each.path)


def test_source_that_is_not_at_hand():
    scope = {}
    exec(compile(text(decorator=UNDECORATED), "<string>", "exec"), scope)
    with pytest.raises(tw.CompileError, match="not at hand"):
        run(scope["total"])


def test_code_that_is_replaced(module):
    """As IPython's autoreload does."""
    loaded = module(text("int32"))
    other = module(text("float32"))
    total = loaded.loaded.total
    assert run(total) == 0
    total.fn.__code__ = other.loaded.total.fn.__code__
    assert run(total) == 2


def test_autotune_follows(monkeypatch):
    configs = [{"block": 16}]
    base = tw.jit(target="interp")(_tuned)
    tuned = tw.autotune(configs=configs, warmup=0, rep=0)(base)
    first = tuned(32, [2])
    assert tuned(32, [2]) is first is not tuned(32, [2.0])
    configs[0] = {"block": 32}
    assert tuned(32, [2]).config == {"block": 32}


def _tuned(N, by, block):
    factor = by[0]

    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
            for j in T.Parallel(block):
                Y[bx * block + j] = X[bx * block + j] * factor

    return main
