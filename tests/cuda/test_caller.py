"""The generated function: three roads to a launch, the same checks on each."""

import struct

import pytest

from tests.cuda.fake import fake_driver
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import INT32, dtype
from tilewright.ir.expr import Var, wrap
from tilewright.ir.op import Dim, Program
from tilewright.support.errors import LaunchError
from tilewright.targets import arrays as views
from tilewright.targets import torch_tensors
from tilewright.targets.arrays import ArrayView, ProgramCheck
from tilewright.targets.cuda import caller as roads
from tilewright.targets.cuda.caller import make_caller
from tilewright.targets.cuda.launch import (
    CudaModule,
    LaunchSpec,
    Map,
    Scalar,
    Size,
    TensorArg,
    TensorPointer,
)
from tilewright.targets.cuda.tensormap import TensorMapSpec
from tilewright.targets.torch_tensors import guards_work

BF16, FLOAT = dtype("bfloat16"), dtype("float32")
M, N = Var("M", INT32), Var("N", INT32)


def tensor(name, shape, strides=None):
    return Buffer(name, tuple(map(wrap, shape)), BF16, Space.GLOBAL, strides=strides)


PROGRAM = Program(
    "add", (tensor("A", (M, N)), tensor("B", (M, N)), tensor("C", (M, N))), (), (Dim(M), Dim(N))
)
SPEC = LaunchSpec(
    "add",
    (1,),
    32,
    (TensorPointer("A"), TensorPointer("B"), TensorPointer("C"), Size("M"), Size("N")),
)
KERNEL = {"params": [8, 8, 8, 4, 4]}


def view(address, shape=(4, 8), strides=None, **more):
    return ArrayView(address, shape, strides or (shape[-1], 1), BF16, 0, **more)


def make(params=(), spec=SPEC, kernel=KERNEL, devices=1, scratch=(), program=PROGRAM, **more):
    api, found = fake_driver(devices, **{spec.kernel: kernel})
    api.contexts = [0xC0]
    m = CudaModule(b"\x7fELF", [spec], using=found, scratch=scratch)
    args = [TensorArg(t.name, **more.get(t.name, {})) for t in program.tensors]
    return api, make_caller(m, [*args, *params], ProgramCheck(program, written={"C"}))


# ---------------------------------------------------------------------------- counts and names


def test_arguments_by_name_and_their_count():
    api, call = make()
    a, b, c = view(0x100), view(0x200), view(0x300)
    call(a, C=c, B=b)
    assert struct.unpack("<QQQ", b"".join(api.launches[0].params[:3])) == (0x100, 0x200, 0x300)
    for wrong, text in [
        (lambda: call(a, b), "add takes 3 arguments, got 2"),
        (lambda: call(a, b, c, c), "add takes 3 arguments, got 4"),
        (lambda: call(a, b, c, D=c), "no free parameter named 'D'"),
        (lambda: call(a, b, c, A=a), "no free parameter named 'A'"),
        (lambda: call(a, C=c), "needs an argument for 'B'"),
    ]:
        with pytest.raises(LaunchError, match=text):
            wrong()
    assert len(api.launches) == 1


def test_a_parameter_may_be_called_stream():
    spec = LaunchSpec("add", (1,), 32, (TensorPointer("C"), Scalar("stream", FLOAT)))
    program = Program("add", (tensor("C", (M, N)),), (), (Dim(M), Dim(N)))
    api, call = make([Scalar("stream", FLOAT)], spec, {"params": [8, 4]}, program=program)
    call(view(0x100), stream=2.0)
    assert api.launches[0].params[1] == struct.pack("<f", 2.0) and api.launches[0].stream == 0


def test_none_for_what_no_kernel_touches():
    spec = LaunchSpec("add", (1,), 32, (TensorPointer("A"), TensorPointer("C")))
    api, call = make(spec=spec, kernel={"params": [8, 8]}, B={"optional": True})
    call(view(0x100), None, view(0x300))
    assert len(api.launches) == 1
    with pytest.raises(LaunchError, match="A must be an array in GPU memory"):
        call(None, None, view(0x300))


# -------------------------------------------------------------------------------------- scratch


def test_scratch_is_made_and_freed_in_the_order_of_the_stream():
    api, call = make(
        spec=LaunchSpec("add", (1,), 32, (TensorPointer("A"), TensorPointer("W"))),
        kernel={"params": [8, 8]},
        scratch=[tensor("V", (M, 3)), tensor("W", (N, 5))],
    )
    for _ in range(2):
        call(view(0x100), view(0x200), view(0x300), stream=9)
    # V takes 4 × 3 × 2 bytes, W begins on the next boundary
    assert api.done == [("allocate", 2048, 9), ("free", 2048, 9)] * 2 and not api.live
    addresses = [struct.unpack("<QQ", b"".join(done.params)) for done in api.launches]
    assert addresses == [(0x100, 0x7000_0000 + 1024)] * 2
    api.live[0x7000_0000] = 1  # the memory is somebody else's now
    call(view(0x100), view(0x200), view(0x300), stream=9)
    assert struct.unpack("<Q", api.launches[-1].params[1]) == (0x7100_0000 + 1024,)


def test_scratch_goes_back_when_a_launch_fails():
    api, call = make(
        spec=LaunchSpec("add", (1,), 32, (TensorPointer("W"),)),
        kernel={"params": [8]},
        scratch=[tensor("W", (M, 5))],
    )
    api.status = 1
    with pytest.raises(LaunchError, match="INVALID_VALUE"):
        call(view(0x100), view(0x200), view(0x300))
    assert not api.live


def test_borrowed_arrays_stay_until_the_kernel_has_run():
    api, call = make()
    api.finished = False
    owners = [type("Owner", (), {})() for _ in range(2)]
    import weakref

    seen = [weakref.ref(o) for o in owners]
    for i in range(2):
        given = view(0x100, owner=owners.pop(), borrowed=True)
        call(given, view(0x200), view(0x300))
        del given
    assert all(ref() is not None for ref in seen)
    api.finished = True
    call(view(0x100, owner=object(), borrowed=True), view(0x200), view(0x300))
    assert all(ref() is None for ref in seen)


def test_names_are_the_kernels_own():
    """x0 and x1 are what the generated function would call its own."""
    program = Program("add", (tensor("x1", (M, N)), tensor("x0", (M, N))), (), (Dim(M), Dim(N)))
    spec = LaunchSpec("add", (1,), 32, (TensorPointer("x1"), TensorPointer("x0")))
    api, call = make(spec=spec, kernel={"params": [8, 8]}, program=program)
    call(x0=view(0x200), x1=view(0x100))
    assert struct.unpack("<QQ", b"".join(api.launches[-1].params)) == (0x100, 0x200)


# --------------------------------------------------------------------- with PyTorch's own tensors


@pytest.fixture
def torch(monkeypatch):
    """PyTorch with tensors that claim to be on a GPU, as far as a launch asks."""
    torch = pytest.importorskip("torch")
    state = {"stream": 0x55, "device": 0}
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: state["stream"], raising=False
    )
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state["device"], raising=False)

    def read(t, name, *_):
        return ArrayView(
            t.data_ptr(), tuple(t.shape), tuple(t.stride()), dtype(t.dtype), 0, state["stream"],
            owner=t, recorded=torch_tensors.is_recorded(t),
        )  # fmt: skip

    monkeypatch.setitem(views._READERS, "torch", read)
    torch.state = state
    yield torch
    del torch.state


@pytest.fixture
def counted(monkeypatch):
    """How often each road behind the first was taken."""
    made = []
    real = roads.guard_of
    monkeypatch.setattr(roads, "guard_of", lambda t, w: made.append(t) or real(t, w))
    return made


def three(torch, shape=(4, 8), **more):
    return [torch.zeros(shape, dtype=torch.bfloat16, **more) for _ in range(3)]


def test_the_first_road(torch, counted):
    assert guards_work()
    api, call = make()
    a, b, c = three(torch)
    d = torch.zeros_like(c)
    for last in (c, c, d, c, d):
        call(a, b, last)
    assert len(counted) == 1
    sent = [struct.unpack("<QQQII", b"".join(done.params)) for done in api.launches]
    assert [s[2] for s in sent] == [t.data_ptr() for t in (c, c, d, c, d)]
    assert {s[:2] + s[3:] for s in sent} == {(a.data_ptr(), b.data_ptr(), 4, 8)}
    torch.state["stream"] = 0x66
    call(a, b, c)
    assert api.launches[-1].stream == 0x66


def test_what_changes_on_a_tensor_is_seen(torch):
    api, call = make()
    a, b, c = three(torch, (8, 8))
    for _ in range(3):
        call(a, b, c)
    a.t_()  # the same object, address and shape
    with pytest.raises(LaunchError, match="A must be contiguous"):
        call(a, b, c)
    a.t_()
    call(a, b, c)
    for t in (a, b, c):
        t.resize_(4, 16)
    call(a, b, c)
    assert struct.unpack("<II", b"".join(api.launches[-1].params[3:])) == (4, 16)
    a.data = torch.zeros(4, 16, dtype=torch.float16)
    with pytest.raises(LaunchError, match="A has the wrong dtype"):
        call(a, b, c)
    assert len(api.launches) == 5


def test_every_check_holds_on_the_first_road(torch):
    api, call = make()
    a, b, c = three(torch)
    for _ in range(3):
        call(a, b, c)
    whole = torch.zeros(100, dtype=torch.bfloat16)
    odd = whole.view(torch.uint8)[1:65].untyped_storage()
    assert odd  # keeps the bytes alive
    for wrong, text in [
        ((a, b), "takes 3 arguments"),
        ((a.half(), b, c), "A has the wrong dtype"),
        ((a[0], b, c), "A must have 2 dimensions"),
        ((a[:2], b, c), "both M but differ"),
        ((a.reshape(8, 4).t(), b, c), "A must be contiguous"),
        ((c, b, c), "C is written and overlaps A"),
        ((a, b, a), "C is written and overlaps A"),
        ((a, b, None), "C must be an array"),
    ]:
        for _ in range(2):
            with pytest.raises(LaunchError, match=text):
                call(*wrong)
            call(a, b, c)
    call(a, a, c)  # reading one twice is fine
    assert len(api.launches) == 3 + 16 + 1


def test_shapes_in_turn(torch, counted):
    api, call = make()
    small, large = three(torch), three(torch, (16, 8))
    for _ in range(4):
        call(*small)
        call(*large)
    assert len(counted) == 2
    sizes = [struct.unpack("<I", done.params[3])[0] for done in api.launches]
    assert sizes == [4, 16] * 4


def test_tensors_that_differ_in_autograd_only(torch, counted):
    api, call = make()
    a, b, c = three(torch)
    call(a, b, c)
    p = torch.nn.Parameter(a)
    with torch.no_grad():
        for _ in range(50):
            call(p, b, c)
            call(a, b, c)
            call(a, a, c)
    assert len(api.launches) == 151 and len(counted) <= roads._GUARDS + 1


@pytest.mark.parametrize("guards", [True, False])
def test_writes_that_autograd_follows_are_refused_on_every_road(torch, monkeypatch, guards):
    if not guards:
        monkeypatch.setattr(torch_tensors, "guards_work", lambda: False)
    api, call = make(A={"written": False}, B={"written": False})
    a, b, c = three(torch)
    p, q = (torch.nn.Parameter(torch.zeros_like(a)) for _ in range(2))
    for _ in range(3):
        with torch.no_grad():
            for _ in range(3):
                call(p, b, q)
        for _ in range(2):
            call(p, b, c)
            with pytest.raises(LaunchError, match="C requires a gradient"):
                call(p, b, q)
        call(a, b, q.detach())
    assert len(api.launches) == 18


def test_without_guards(torch, monkeypatch):
    monkeypatch.setattr(torch_tensors, "guards_work", lambda: False)
    api, call = make()
    a, b, c = three(torch)
    for _ in range(3):
        call(a, b, c)
    with pytest.raises(LaunchError, match="A has the wrong dtype"):
        call(a.half(), b, c)
    assert len(api.launches) == 3


def test_no_tensor_is_kept_alive(torch):
    import gc
    import weakref

    _, call = make()
    a, b, c = three(torch)
    for _ in range(3):
        call(a, b, c)
    seen = weakref.ref(a)
    del a
    gc.collect()
    assert seen() is None


def test_scalars_on_the_first_road(torch):
    spec = LaunchSpec("add", (1,), 32, (TensorPointer("A"), Scalar("x", FLOAT)))
    api, call = make([Scalar("x", FLOAT)], spec, {"params": [8, 4]})
    a, b, c = three(torch)
    for x in (1.0, 1.0, -0.0, 0.0, True, 1):
        call(a, b, c, x)
    sent = [struct.unpack("<f", done.params[1])[0] for done in api.launches]
    assert sent == [1.0, 1.0, -0.0, 0.0, 1.0, 1.0]
    assert str(sent[2]) == "-0.0" and str(sent[3]) == "0.0"
    with pytest.raises(LaunchError, match="x must be a number of type float32"):
        call(a, b, c, "1")


@pytest.fixture
def prepared(monkeypatch):
    """The calls that were read and checked from the beginning."""
    made, real = [], roads.read_arguments
    monkeypatch.setattr(roads, "read_arguments", lambda *a: made.append(a) or real(*a))
    return made


def places(torch, shape, count, kind=None):
    """Tensors at different addresses, each as aligned as PyTorch's allocator makes them."""
    whole = torch.zeros(count * 512 + 512, dtype=kind or torch.bfloat16)
    skip = -whole.data_ptr() // whole.itemsize % 256
    rows = (whole[skip + 512 * i :] for i in range(count))
    return [each[: shape[0] * shape[1]].view(shape) for each in rows]


@pytest.mark.parametrize("scratch", [False, True])
def test_tensors_elsewhere_are_filled_in(torch, prepared, scratch):
    """What was checked once is not checked again, but what hangs on addresses is."""
    maps = Map(TensorMapSpec("B", BF16, (4, 8)))
    more = [tensor("S", (M, N))] if scratch else []
    params = (TensorPointer("A"), maps, TensorPointer("C"), Scalar("x", FLOAT), Size("M"))
    spec = LaunchSpec("add", (1,), 32, (*params, *(TensorPointer(b.name) for b in more)))
    sizes = [8, 128, 8, 4, 4] + [8] * scratch
    api, call = make([Scalar("x", FLOAT)], spec, {"params": sizes}, scratch=more)
    found = places(torch, (4, 8), 12)
    for n, (a, b, c) in enumerate(zip(found, found[1:], found[2:], strict=False)):
        call(a, b, c, n / 2)
    assert len(prepared) == 1
    for n, (done, (a, b, c)) in enumerate(
        zip(api.launches, zip(found, found[1:], found[2:], strict=False), strict=True)
    ):
        sent = [done.params[i] for i in (0, 2, 3, 4)]
        assert b"".join(sent) == struct.pack("<QQfI", a.data_ptr(), c.data_ptr(), n / 2, 4)
        assert api.encoded[n].address == b.data_ptr()
    before = len(api.launches)
    for a, b, c in ((found[0], found[1], found[0]), (found[0], found[2][:, :], found[2])):
        with pytest.raises(LaunchError, match="C is written and overlaps"):
            call(a, b, c, 1.0)
    whole = torch.zeros(4 * 8 + 1, dtype=torch.bfloat16)
    with pytest.raises(LaunchError, match="start is not aligned"):
        call(found[0], whole[1:].view(4, 8), found[5], 1.0)
    gone = torch.zeros(4, 8, dtype=torch.bfloat16)
    gone.untyped_storage().resize_(0)
    with pytest.raises(LaunchError, match="A has no memory"):
        call(gone, found[1], found[5], 1.0)
    assert len(api.launches) == before
    call(*places(torch, (8, 8), 3), 1.0)  # of another size
    assert struct.unpack("<I", api.launches[-1].params[4]) == (8,)


def test_a_size_that_a_caller_passes_is_part_of_what_is_known(torch, prepared):
    spec = LaunchSpec("add", ("n",), 32, (TensorPointer("C"), Scalar("n", INT32)))
    program = Program("add", (tensor("C", (M, N)),), (), (Dim(M), Dim(N)))
    api, call = make([Scalar("n", INT32)], spec, {"params": [8, 4]}, program=program)
    for n, c in zip((1, 1, 2, 2, 1), places(torch, (4, 8), 5), strict=True):
        call(c, n)
    assert [done.grid[0] for done in api.launches] == [1, 1, 2, 2, 1] and len(prepared) == 2


def test_several_gpus(torch):
    api, call = make(devices=2)
    a, b, c = three(torch)
    torch.state["device"] = a.get_device()  # -1: these are on the host
    for _ in range(3):
        call(a, b, c)
    torch.state["device"] = 1  # the thread is elsewhere: the general road finds the context
    call(a, b, c)
    assert len(api.launches) == 4 and {done.context for done in api.launches} == {0xC0}


def test_many_addresses_do_not_pile_up(torch, monkeypatch):
    monkeypatch.setattr(roads, "KEPT", 8)
    api, call = make()
    kept = [three(torch) for _ in range(20)]
    for given in kept * 2:
        call(*given)
    assert len(api.launches) == 40


def test_a_kernel_without_parameters():
    spec = LaunchSpec("add", (1,), 32, ())
    api, call = make(spec=spec, kernel={"params": []}, program=Program("add", (), ()))
    call()
    call()
    assert len(api.launches) == 2
    with pytest.raises(LaunchError, match="takes 0 arguments, got 1"):
        call(view(0x100))
