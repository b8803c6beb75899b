"""What graphs do besides computing: views, aliases, sizes that change, what PyTorch keeps."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import tilewright.torch  # noqa: E402
from tests.torch.common import compare, compiled  # noqa: E402
from tilewright.frameworks.torch.backend import backend  # noqa: E402
from tilewright.support.errors import TilewrightError  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def check(fn, *args, **options):
    """Results, and what becomes of arguments, are those of eager; what became of the graphs."""
    found = []
    call = torch.compile(fn, backend=lambda m, x: backend(m, x, found=found), **options)
    ours, theirs = ([a.clone() if isinstance(a, torch.Tensor) else a for a in args] for _ in "ab")
    compare(call(*ours), fn(*theirs))
    compare(ours, theirs)
    return found


def operators(found):
    """Those of each group, and those that PyTorch keeps."""
    groups = [[n.target._opname for n in r.members if hasattr(n.target, "_opname")]
              for each in found for r in each.runners]  # fmt: skip
    kept = {str(n.target): why for each in found for n, why in each.facts.stays.items()}
    return groups, kept


def test_registered():
    assert "tilewright" in torch._dynamo.list_backends()
    x = torch.randn(4, 8)
    compare(torch.compile(lambda x: x * 2 + 1, backend="tilewright")(x), x * 2 + 1)


def test_options_are_refused():
    with pytest.raises(Exception, match="no option 'tiles'") as error:
        torch.compile(lambda x: x + 1, backend="tilewright", options={"tiles": 1})(torch.ones(2))
    assert isinstance(error.value.inner_exception, TilewrightError)


def test_what_is_one_kernel():
    found = check(lambda x, w, b: F.layer_norm(x + w, (8,)) * b,
                  torch.randn(4, 8), torch.randn(8), torch.randn(8))  # fmt: skip
    assert operators(found) == ([["add", "native_layer_norm", "mul"]], {})
    q = torch.randn(2, 16, 8)
    found = check(lambda q: (q @ q.mT * 0.3).softmax(-1) @ q, q)
    assert operators(found) == ([["bmm", "mul", "_softmax", "bmm"]], {})
    assert len(found[0].runners[0].kernels.made.program.kernels) == 1


def test_no_group_waits_for_itself():
    """The sort is between two uses of what is computed before it."""

    def function(x):
        y = x * 2
        return y + torch.sort(y)[0] + y.sum()

    groups, kept = operators(check(function, torch.randn(8)))
    assert kept == {"aten.sort.default": "sorting is no fold"}
    assert all(set(g) != {"mul", "add"} for g in groups)


def test_no_group_waits_for_another_that_waits_for_it():
    """The scatter reads what one sum computes and is read by another, which the first waits for."""

    def function(x, y, i, j):
        table = x * 2
        other = table[j] * 2
        k = i + 1
        return table + 1 + torch.zeros(6).scatter_reduce(0, k, y, "sum"), other + y.index_select(
            0, k
        )

    x, y, i = torch.randn(6), torch.randn(3), torch.tensor([1, 0, 1])
    check(function, x, y, i, i)


def test_what_nobody_reads_is_not_computed():
    x, i = torch.randn(6), torch.tensor([1, 4] * 5)
    groups, kept = operators(check(torch.func.grad(lambda x: x.sin().sum()), x))
    assert (groups, kept) == ([["cos", "mul"]], {})

    def function(x, i):  # PyTorch's scatter reads an array of the shape of what is no array
        y = x.exp()
        return torch.full_like(y, 3.0).scatter(0, i, 1.0), y.sum()

    groups, _ = operators(check(function, x, i))
    assert groups == [["exp", "sum"]]


def test_repeated_layers_share_kernels():
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    found = check(layers, torch.randn(2, 8))
    assert len({r.kernels for r in found[0].runners}) == 1


@pytest.mark.parametrize("make", [
    lambda x: x.t(), lambda x: x[::2, 1:], lambda x: x[:, :1].expand(-1, 6),
    lambda x: x.view(2, 4, 6).permute(2, 0, 1), lambda x: x.as_strided((3, 3), (6, 1), 2),
    lambda x: x[0, 0],
])  # fmt: skip
def test_inputs_of_any_strides(make):
    check(lambda x: x.exp() + x, make(torch.randn(8, 6)))
    check(lambda x: make(x) * 2, torch.randn(8, 6))


def test_channels_last_stays():
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    conv = torch.nn.Conv2d(8, 4, 3, padding=1).to(memory_format=torch.channels_last)
    check(lambda x: F.relu(conv(x)), x)


def test_in_place_and_aliases():
    def update(x, y):
        x.add_(y)
        x[1:].mul_(2)
        z = x.view(-1)
        z[0] = 7
        return x.t(), y, z[2:]

    check(update, torch.randn(3, 4), torch.randn(3, 4))
    x = torch.randn(3, 4)
    out = torch.compile(lambda x: (x, x.t(), x + 1), backend="tilewright")(x)
    assert out[0] is x or out[0].data_ptr() == x.data_ptr()
    assert out[1].data_ptr() == x.data_ptr()


def test_graph_breaks():
    def function(x):
        y = x * 2 + 1
        if float(y.sum()) > 0:
            return y.relu()
        return y.exp()

    check(function, torch.ones(4))
    check(function, -torch.ones(4) * 9)


def test_types_that_meet():
    """Tensors of no axes and numbers do not decide types beside others."""
    x, y = torch.randn(4).half(), torch.tensor(1.7, dtype=torch.float64)
    check(lambda x, y: (x * y, x > y, x + 1.5, x.long() / 3, x.int() + y, x + x.bfloat16()), x, y)
    check(lambda x: (x.bool() + x.bool(), x + 1, x // 3, x % 3, ~x), torch.arange(-4, 5))


def test_indices_are_no_numbers_of_the_other_type():
    """bfloat16 has no 257: classes stay integers beside gradients in bfloat16."""
    target = torch.tensor([257, 299, 3, -100])
    x = torch.randn(4, 300, dtype=torch.bfloat16, requires_grad=True)
    fast = torch.compile(lambda x: F.cross_entropy(x, target), backend="tilewright")
    found, expected = (torch.autograd.grad(f(x), x)[0]
                       for f in (fast, lambda x: F.cross_entropy(x, target)))  # fmt: skip
    compare(found, expected)
    assert found[0, 257] < -0.2


def test_the_type_of_three():
    """What the third argument is, too, decides the type in which all are computed."""
    x, low = torch.tensor([100.3, -7.0]).bfloat16(), torch.tensor([-1.3, -1.3]).bfloat16()
    check(lambda x, low, high: x.clamp(low, high), x, low, torch.tensor([99.9, 99.9]))
    found = torch.compile(torch.clamp, backend="tilewright")(x, low, torch.tensor([99.9, 99.9]))
    assert found[0] == torch.tensor(99.9)


def test_integers_at_their_ends():
    x = torch.tensor([0, 1, 5, -128, 127, -7], dtype=torch.int8)
    by = torch.tensor([0, 1, -1, 3, 7, 9], dtype=torch.int8)
    found = check(
        lambda x, by: (x.fmod(3), x.fmod(-3), x % -3, x << 3, x >> 2, 7 % by, x << by, x >> by,
                       (x & 127) >> by, x.to(torch.uint8) >> by.to(torch.uint8), x << 8, x >> -1),
        x, by * 1 + (by == 0),
    )  # fmt: skip
    assert not operators(found)[1]


def test_casts_round_where_they_are():
    x = torch.tensor([1.3, -7.7, 300.2, -1000.4])
    for dtype in (torch.float16, torch.bfloat16):
        check(lambda x, dtype=dtype: (x.to(dtype).float(), x.to(dtype).float() - x), x)
    check(lambda x: (x.to(torch.uint8), (x / 100).to(torch.int8).float()), x)


def test_floors_of_special_quotients():
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, nan, inf, -inf])
    b = torch.tensor([2.0, -2.0, 0.3, inf, -inf, 0.0, -0.0, nan, 1.0])
    a, b = a.repeat(9), b.repeat_interleave(9)

    def function(a, b):  # quotients have the sign of zeros
        found = a // b, *(a // n for n in (2, -2, 0.3, inf, -inf, 0.0))
        return *found, *(1 / x for x in found)

    check(function, a, b)
    check(function, a.double(), b.double())


def test_few_writes_are_compared():
    """And an index outside of a row leaves NaN."""

    def function(x, i, y):
        return x.scatter(1, i, y), x.scatter_add(0, i[:2], y), x.scatter(1, i[:1], 2.5)

    x, y, i = torch.randn(4, 9), torch.randn(4, 2), torch.tensor([[1, 0], [1, 1], [2, 3], [0, 3]])
    assert not operators(check(function, x, i, y))[1]
    found = torch.compile(function, backend="tilewright")(x, i - 1, y)[0]
    assert found[0].isnan().all() and not found[2].isnan().any()
    x.requires_grad_()
    report = tilewright.torch.explain(lambda x: x.max(1)[0] + x.topk(2)[0].sum(1), x)
    assert not any(graph.kept for graph in report.graphs), report


def test_a_token_is_written_to_a_cache():
    def write(cache, table, place, new):
        cache.index_copy_(1, place, new)
        table[:, :, place - 9] += 1
        table[:, place[0]] = new[0, 0, 0]
        row = table.index_put((place[0] - 2,), new[0, 0, :, None], accumulate=True)
        return row, cache[:, place[0]].exp()

    for at in ([3], [3, 2]):
        place, new = torch.tensor(at), torch.randn(2, len(at), 4)
        args = torch.randn(2, 9, 4), torch.randn(3, 9, 4).mT, place, new
        assert not operators(check(write, *args))[1]


def test_gradients_of_distances():
    """Rows that are equal have none."""
    x, y = torch.randn(2, 5, 3, requires_grad=True), torch.randn(4, 3)
    y[1] = x[0, 2].detach()

    def function(x):
        return sum(torch.cdist(x, y, p).sin() for p in (0.0, 1.0, 1.5, 2.0, 3.0, float("inf")))

    report = tilewright.torch.explain(function, x)
    assert not any(graph.kept for graph in report.graphs), report
    fast = torch.compile(function, backend="tilewright")
    compare(*(torch.autograd.grad(f(x).sum(), x) for f in (fast, function)))


def test_samples_of_a_grid():
    """Far outside, and at corners."""
    x, grid = torch.randn(2, 3, 5, 6), torch.randn(2, 4, 4, 2) * 2
    grid[0, 0] = torch.tensor([[-1, -1], [1, 1], [1e9, 0], [-1e9, 3]])
    for mode in ("bilinear", "nearest"):
        for pad in ("zeros", "border"):
            found = check(
                lambda x, grid, how=(mode, pad): (F.grid_sample(x, grid, *how, False),
                                                  F.grid_sample(x, grid, *how, True)), x, grid,
            )  # fmt: skip
            assert not operators(found)[1]


def test_numbers_along_axes():
    """A tensor of no axes has an axis 0 to PyTorch."""
    found = check(
        lambda x: (x.softmax(0), x.log_softmax(-1), x.cumsum(0), x.cumprod(-1), x.cummax(0)[1],
                   x.logcumsumexp(0), x.flip(0), x.gather(0, x.long()), x.argmax(0), x.max(0)[0],
                   x.sum(0), x.mean(0), x.prod(0), x.amax(0), x.any(0), x.logsumexp(0)),
        torch.tensor(0.75),
    )  # fmt: skip
    assert not operators(found)[1]


def test_extremes_of_bools():
    a, b = torch.tensor([[True, True, False, False], [True, False, True, False]])
    found = check(lambda a, b: (a.maximum(b), a.minimum(b), a.fmax(b), a.fmin(b)), a, b)
    assert not operators(found)[1]
    assert not any(r.kernels.refused for each in found for r in each.runners)


def test_what_windows_and_diagonals_leave_stays_ours():
    def function(x):
        pooled = F.max_pool3d(x, 3, (1, 2, 3), 1), F.adaptive_avg_pool2d(x[0], (3, 2))
        return *pooled, x[0, 0].diagonal(1) * 2

    x = torch.randn(1, 2, 5, 5, 7, requires_grad=True)
    report = tilewright.torch.explain(function, x)
    assert not any(graph.kept for graph in report.graphs), report
    fast = torch.compile(function, backend="tilewright")
    sums = (sum(y.square().sum() for y in f(x)) for f in (fast, function))
    compare(*(torch.autograd.grad(y, x)[0] for y in sums))


def test_special_numbers():
    def function(x):
        rounded = x.relu(), x.sign(), x.clamp(-1, 1), x.floor(), x > 0, x.nan_to_num()
        return *rounded, x.max(), x.argmax(), x.softmax(0), torch.maximum(x, -x), x.logsumexp(0)

    x = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), -2.5])
    check(function, x)
    check(lambda x: x.masked_fill(x < 9, -float("inf")).softmax(-1), x[:3])


def test_places_are_found_in_one_walk():
    """A NaN is an extreme, and an array is read once."""
    x = torch.randn(3, 9, 5)
    x[0, 4, 1] = x[0, 7, 1] = x[1, 0, 2] = float("nan")
    for function in (lambda x: x.argmax(1), lambda x: x.argmin(1), lambda x: x.max(1)):
        check(function, x)
        (kernel,) = tilewright.torch.explain(function, x).graphs[0].kernels
        assert kernel.tile.count("(Arg0_1[") == 1


def test_scans_are_one_kernel_with_what_they_read():
    """And with zeros before, in 16 bits as PyTorch rounds them."""

    def exclusive(x, mask):
        sums = (x * mask).narrow(1, 0, x.shape[1] - 1).cumsum(1)
        return torch.cat((torch.zeros_like(x[:, :1]), sums), 1)

    for dtype in (torch.float32, torch.bfloat16):
        x, mask = torch.randn(3, 37).to(dtype), torch.rand(3, 37) < 0.5
        check(exclusive, x, mask)
        (kernel,) = tilewright.torch.explain(exclusive, x, mask).graphs[0].kernels
        assert kernel.launches == 1


def test_places_are_found_with_what_they_are_of():
    """Equal elements are those that are equal once rounded, as they lie in memory for PyTorch."""

    def least(x):
        value, place = (x / 64).exp().min(1)
        return value + 1, place, (x / 64).exp().argmax(1, keepdim=True).amax(1)

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.arange(21.0).flip(0).repeat(3, 1).to(dtype)
        check(least, x)
        assert len(tilewright.torch.explain(least, x).graphs[0].kernels) == 2


def test_rows_without_keys():
    """Attention of rows whose mask leaves nothing is zero, and so are their gradients."""
    q, mask = torch.randn(1, 2, 5, 4, requires_grad=True), torch.ones(5, 5).tril(-1) > 0
    fast = torch.compile(F.scaled_dot_product_attention, backend="tilewright")
    found, expected = fast(q, q, q, mask), F.scaled_dot_product_attention(q, q, q, mask)
    compare(found, expected)
    compare(*(torch.autograd.grad(out.square().sum(), q) for out in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_the_lowest_number(dtype):
    """Masks of models hold it: rows of nothing else are equal numbers."""
    q, low = torch.randn(1, 2, 9, 4, dtype=dtype), torch.finfo(dtype).min
    mask = torch.zeros(9, 9, dtype=dtype).masked_fill(torch.ones(9, 9).tril() == 0, low)
    mask[3] = low
    check(lambda q, mask: (q @ q.mT * 0.4 + mask).softmax(-1) @ q, q, mask)
    check(lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), q, mask)
    check(lambda x: x.softmax(-1), mask)


def test_gradients_of_shared_heads():
    q, k, v = (torch.randn(2, n, 5, 8, requires_grad=True) for n in (4, 2, 2))

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    report = tilewright.torch.explain(attend, q, k, v)
    assert not any(graph.kept for graph in report.graphs), report
    calls = attend, torch.compile(attend, backend="tilewright")
    sums = (call(q, k, v).square().sum() for call in calls)
    compare(*(torch.autograd.grad(y, (q, k, v)) for y in sums))


@pytest.mark.parametrize("first", [True, False])
def test_layers_that_are_one_operator_in_inference(first):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first,
                                             activation="gelu" if first else "relu")  # fmt: skip
    x, padding = torch.randn(2, 5, 8), torch.arange(5) > torch.tensor([[2], [4]])
    with torch.no_grad():
        found = check(lambda x: layer.eval()(x, src_key_padding_mask=padding), x)
        assert not operators(found)[1]
        for more in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            found = check(lambda x, more=more: layer.self_attn(x, x, x, **more), x)
            assert not operators(found)[1]


def test_gradients_of_attention_with_dropout():
    """They need the mask, which PyTorch drew."""
    q, sums = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5)
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = compiled(lambda q, sums: back(q, q, q, q, q, sums, 0.5, False), (q, sums))
    assert operators([found]) == ([], {str(back.default): "dropout inside attention"})


def test_autocast():
    linear = torch.nn.Linear(8, 8)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x).softmax(-1)

    check(function, torch.randn(4, 8))


def drawn(fn, *args, seed=1):
    """What compiled code gives, and eager code with our random numbers; the compiled graphs."""
    found = []
    call = torch.compile(fn, backend=lambda m, x: backend(m, x, found=found))
    torch.manual_seed(seed)
    ours = call(*args)
    torch.manual_seed(seed)
    with tilewright.torch.random_numbers():
        compare(ours, fn(*args))
    assert not any(each.facts.stays for each in found)
    return call, ours


def test_dropout_counts():
    def function(x):
        return F.dropout(F.dropout(x * 2, 0.5) + 1, 0.25), F.dropout(x, 0.0), F.dropout(x, 1.0)

    call, found = drawn(function, torch.randn(64, 33))
    assert (call(torch.ones(64, 33))[0] > 5).float().mean() == pytest.approx(0.375, abs=0.03)
    with pytest.raises(AssertionError):  # another seed, another mask
        torch.manual_seed(2)
        compare(found, call(torch.randn(64, 33)))


def test_gradients_of_dropout():
    """The mask of the forward pass, also where it is computed again."""
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(40, 50, requires_grad=True)

    def function(x):
        return checkpoint(lambda x: F.dropout(x.exp(), 0.5).sin(), x, use_reentrant=False)

    for fn in (lambda x: F.dropout(x, 0.3), function):
        call, _ = drawn(fn, x)
        torch.manual_seed(3)
        (ours,) = torch.autograd.grad(call(x).sum(), x)
        torch.manual_seed(3)
        with tilewright.torch.random_numbers():
            (theirs,) = torch.autograd.grad(fn(x).sum(), x)
        compare(ours, theirs)
        torch._dynamo.reset()


def test_random_numbers():
    def function(x):
        return (
            torch.rand_like(x),
            torch.randn_like(x),
            torch.rand(3, 5),
            x.bernoulli(),
            torch.randn(7),
            torch.empty(5, 5).uniform_(-1, 3),
            torch.bernoulli(x, p=0.2),
        )

    x = torch.rand(200, 100)
    _, (u, z, *_, b) = drawn(function, x)
    assert u.min() >= 0 and u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.01) and u.std() == pytest.approx(12**-0.5, abs=0.01)
    assert z.mean() == pytest.approx(0, abs=0.03) and z.std() == pytest.approx(1, abs=0.03)
    assert z.isfinite().all() and b.mean() == pytest.approx(0.2, abs=0.02)
    drawn(function, x.bfloat16())


def test_philox_is_philox():
    """The known answers of the paper's authors."""
    from tilewright.frameworks.torch.random import MULTIPLIER, WORD, philox

    def product(a):
        return a * MULTIPLIER >> 32, a * MULTIPLIER & WORD

    known = {(0, 0, 0): 0xFF1DAE59, (WORD, WORD, WORD): 0x2C3F628B}
    known[0x243F6A88, 0x85A308D3, 0x13198A2E] = 0xDD7CE038
    for (a, b, key), bits in known.items():
        assert philox(a, key, b, product) == bits


def test_what_pytorch_keeps():
    x = torch.randn(6)
    _, kept = operators(check(lambda x: torch.fft.fft(x * 2).real + 1, x))
    assert any("complex64" in why or "has no formula" in why for why in kept.values())
    _, kept = operators(check(lambda x, i: x * 2 + i, x, torch.tensor(3, dtype=torch.uint8)))
    assert not kept
    _, kept = operators(check(lambda x: (x.double() * 2).to(torch.complex128).abs(), x))
    assert any("complex128" in why for why in kept.values())


def test_indices_outside():
    """Of a float table they are NaN, never an element."""
    table = torch.randn(5, 3)
    call = torch.compile(lambda t, i: F.embedding(i, t) * 2, backend="tilewright")
    found = call(table, torch.tensor([0, 7, -1]))
    compare(found[0], table[0] * 2)
    assert found[1:].isnan().all()
    check(lambda t, i: t[i], table, torch.tensor([-1, 0, 4, -5]))


def test_a_kernel_that_fails_is_pytorchs(monkeypatch):
    from tilewright.formula.function import Made

    def fail(self, arrays):
        raise TilewrightError("no such kernel today")

    monkeypatch.setattr(Made, "run", fail)
    with pytest.warns(UserWarning, match="no such kernel today"):
        found = check(lambda x: x.sinh() * 3.25, torch.randn(7))
    assert found[0].runners[0].kernels.refused == "no such kernel today"


# ── sizes that calls give ────────────────────────────────────────────────────────────────────


def counted(fn, shapes, **options):
    """The graphs that calls of these shapes make."""
    found = []
    call = torch.compile(fn, backend=lambda m, x: backend(m, x, found=found), **options)
    for shape in shapes:
        x = torch.randn(shape)
        with torch.no_grad():
            compare(call(x), fn(x))
    return found


def test_one_kernel_for_all_sizes():
    linear = torch.nn.Linear(8, 16)
    for fn in (lambda x: F.gelu(linear(x)), lambda x: x.softmax(-2) + 1):
        (found,) = counted(fn, [(2, n, 8) for n in (4, 5, 33)], dynamic=True)
        assert all(r.kernels.made is not None for r in found.runners), found.runners
        torch._dynamo.reset()


def test_numbers_of_sizes():
    """What is computed of sizes, of which some have more than 32 bits, is no size itself."""

    def function(x):
        n = x.shape[0]
        y = x.sum() / n**2 + x.roll(2) * (n * n) + x / n**0.5 + n % 3 + max(n, 8)
        return y, x[:3].long() + n * n // 3

    (found,) = counted(function, [(7,), (9,), (50_000,)], dynamic=True)
    assert not found.facts.stays and all(r.kernels.made is not None for r in found.runners)


def test_one_kernel_where_sizes_are_sums():
    """What one kernel leaves for another is longer or shorter than what calls give."""
    conv = torch.nn.Conv1d(8, 8, 3)
    shapes = [(2, 8, n) for n in (9, 16, 33)]
    (found,) = counted(lambda x: conv(x).softmax(-1) + x[..., 2:], shapes, dynamic=True)
    assert len(found.runners) > 1
    assert all(r.kernels.made is not None for r in found.runners)


def test_attention_of_any_length():
    def attend(x):
        q, k, v = x.unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    (found,) = counted(attend, [(2, n, 48) for n in (8, 9, 20)], dynamic=True)
    assert not found.facts.stays


def test_sizes_that_a_formula_does_not_take_are_one_kernel_each():
    (found,) = counted(
        lambda x: x.unfold(0, 4, 2).sum(-1).cumsum(0), [(n,) for n in (12, 20)], dynamic=True
    )
    special = [r for r in found.runners if r.kernels.why_special]
    assert special and all(len(r.kernels.by_sizes) == 2 for r in special)


def test_sizes_that_no_lowering_takes_are_pytorchs():
    with pytest.warns(UserWarning, match="PyTorch computes .*scatter_add"):
        (found,) = counted(
            lambda x: (x * 2).scatter_add(0, x.long() * 0, x), [(n,) for n in (4, 20)], dynamic=True
        )
    assert not found.facts.stays


# ── what is said of it ───────────────────────────────────────────────────────────────────────


def test_explain():
    def function(x, i):
        return (x.softmax(-1) * 2).sum() + torch.sort(x)[0][0, 0]

    x = torch.randn(4, 8, requires_grad=True)
    report = tilewright.torch.explain(function, x, torch.tensor([1]))
    forward, backward = report.graphs
    assert any("_softmax" in k.operators for k in forward.kernels)
    (kept,) = forward.kept
    assert (kept.operator, kept.reason) == ("aten.sort.default", "sorting is no fold")
    assert kept.bytes > 0 and backward.name == "backward"
    text = str(report)
    assert "graph 0 (forward)" in text and "sorting is no fold" in text
    assert "@tw.jit" in forward.kernels[0].tile


def test_explain_names_graph_breaks():
    def function(x):
        if float(x.sum()) > 0:
            return x + 1
        return x

    report = tilewright.torch.explain(function, torch.ones(3))
    assert len(report.breaks) >= 1 and "graph break" in str(report)
