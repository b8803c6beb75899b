"""What to say about a text that is not in the language: names that are no words, and Python's own
errors, each with a way out."""

from __future__ import annotations

import builtins
import difflib
import inspect
import linecache
import re
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

from tilewright.ir.dtype import _ALIASES, DTYPES
from tilewright.lang import math
from tilewright.lang.handles import Tile
from tilewright.lang.scalar import Lost, is_runtime
from tilewright.lang.types import ScalarType
from tilewright.lang.values import is_value
from tilewright.lang.where import locate_traceback
from tilewright.support.errors import CompileError, Loc, Repair, at, entry, suggest, swap

# a word of ours, and its names elsewhere
_SAME = """
atomic_add: atomicAdd
atomic_max: atomicMax
atomic_min: atomicMin
atomic_exch: atomicExch
atomic_and: atomicAnd
atomic_or: atomicOr
atomic_xor: atomicXor
ceildiv: cdiv ceil_div
clamp: clip
where: select
sync_threads: syncthreads barrier debug_barrier
sync_warp: syncwarp
Parallel: parallel
Pipelined: pipelined pipeline
Kernel: kernel
max: fmax
min: fmin
abs: absolute fabs
pow: power
atan: arctan
atan2: arctan2
asin: arcsin
acos: arccos
And: logical_and
Or: logical_or
Not: logical_not
reinterpret: bitcast
unroll: static_range range_constexpr
popcount: popc
inf: Inf infty
cast: astype to type_cast
vectorized: vectorize
alloc_shared: shared alloc
alloc_fragment: fragment register registers
alloc_local: local
shfl_sync: shfl shuffle
any_sync: ballot_any
transpose: permute
print: device_print printf
device_assert: assert_ static_assert
all: reduce_all
any: reduce_any
cumsum: cumulative_sum
cumprod: cumulative_product
scan: associative_scan
mean: avg average
silu: swish
hardsigmoid: hard_sigmoid
arange: iota
zeros: zeros_like
ones: ones_like
full: full_like
reduce_max: amax
reduce_min: amin
warp_reduce_sum: warp_sum
warp_reduce_max: warp_max
floormod: remainder mod
floordiv: fdiv
nearbyint: rint
shift_left: lshift
shift_right: rshift
"""
# words elsewhere, and what says the same here; what is indented belongs to the line above
_SAID = """
leaky_relu: T.where(x > 0, x, slope * x)
relu6: T.clamp(x, 0, 6)
hardtanh: T.clamp(x, -1, 1)
elu: T.where(x > 0, x, T.expm1(x))
square: x * x
reciprocal rcp: 1 / x
div: x / y, or T.floordiv for integers
mul: x * y
add: x + y; T.atomic_add where several threads add to one element
sub: x - y
neg: -x
sign: T.where(x > 0, 1, T.where(x < 0, -1, 0))
lerp: a + t * (b - a)
nan: T.cast(float("nan"), dtype), or the number float("nan") itself
pi: the number 3.141592653589793
rand randn randint: pass random numbers as a tensor: kernels have no generator
softmax: e = T.exp(x - T.max(x, dim=1, keepdim=True)), then e / T.sum(e, dim=1, keepdim=True)
log_softmax: y = x - T.max(x, dim=1, keepdim=True), then y - T.log(T.sum(T.exp(y), dim=1,
    keepdim=True))
logsumexp: top = T.max(x, dim=1), then top + T.log(T.sum(T.exp(x - top[:, None]), dim=1))
std: T.sqrt(T.var(x, dim=1))
norm: T.sqrt(T.sum(x * x, dim=1))
layer_norm: (x - T.mean(x, dim=1, keepdim=True)) * T.rsqrt(T.var(x, dim=1, keepdim=True) + eps)
rms_norm: x * T.rsqrt(T.mean(x * x, dim=1, keepdim=True) + eps)
reduce_mean: T.mean(x, dim=1) of a value; T.reduce_sum(tile, out, dim), and divide by the number of
    elements
reduce_prod: T.prod(x, dim=1) of a value
topk top_k sort argsort: k times T.argmax(x, dim=1), each time hiding the element that was found:
    x = T.where(T.arange(N) == place[:, None], -T.inf, x)
histogram bincount: T.atomic_add(H[bins], 1), where bins is an integer value
memset: T.fill(tile, value)
memcpy: T.copy(src, dst)
eye: T.where(i.index[:, None] == j.index, 1, 0)
tril: T.where(i.index[:, None] >= j.index, x, 0)
triu: T.where(i.index[:, None] <= j.index, x, 0)
masked_fill: T.where(mask, value, x)
expand_dims expand unsqueeze broadcast broadcast_to: v[:, None] of a value; `f[i, j] = v[i]` in a
    T.Parallel loop
squeeze: T.reshape(tile, shape), or index it: tile[0, i]
flatten ravel: T.reshape(tile, (n,))
cat concat concatenate: store each part: Y[m, 0:4] = a; Y[m, 4:8] = b; of tiles, T.copy(a, c[0:m])
stack: store each part: Y[0, m] = a; Y[1, m] = b; of tiles, T.copy(a, c[0, :, :])
split chunk: T.copy a part: tile[0:m, :]
gather index_select: index with integer values: X[ids[m], :]; of elements, y[i] = x[index[i]] in a
    T.Parallel loop
scatter: store by integer values: Y[ids[m], :] = x; of elements, y[index[i]] = x[i] in a T.Parallel
    loop; T.atomic_add where indices meet
flip: index with integer values: X[N - 1 - n.index]; of elements, y[i] = x[n - 1 - i] in a
    T.Parallel loop
roll: index with integer values: X[(n.index - k) % N]; of elements, y[i] = x[(i - k) % n] in a
    T.Parallel loop
trans: transpose_A=True or transpose_B=True of T.gemm, or T.transpose(src, dst)
dot matmul mm einsum mma wgmma tensordot: A[m, k] @ B[k, n] of values; T.gemm(A, B, C) adds the
    product of two tiles to the tile C
bmm: A[b, m, k] @ B[b, k, n], where b is an axis T.each(batch) of T.tile; T.gemm(A, B, C) adds the
    product of two tiles to the tile C
outer: a[m, None] * b[n] of values; c[i, j] = a[i] * b[j] in a T.Parallel loop
conv2d: acc += X[n, y + dy, x + dx, c] @ F[dy, dx, c, o], where n, y, x are integer values
im2col c2d_im2col: read the window with T.Parallel: reads outside a tensor give zero
ldg: T.load(A[m, :]) reads a tile, A[i, j] an element
store: A[m, n] = x stores a value, T.copy(tile, A[i, j]) a tile, A[i, j] = x an element
make_block_ptr make_tensor_descriptor: A[m, k] with tile indices is a value; T.copy(A[i, j], tile)
    reads a tile that begins there
advance: index the next tile: `for k in T.tile(K):` gives A[m, k]; or T.copy(A[i, k * block], tile)
alloc_buffer: T.alloc_global holds what passes between kernels, T.alloc_shared a tile
alloc_tmem: T.alloc_fragment holds accumulators on every target
shared_memory: T.alloc_shared(shape, dtype)
ptr: pass one tensor that holds all groups, and their offsets
ptx_commit_group ptx_wait_group cp_async_wait cp_async_commit: T.copy waits by itself; T.async_copy
    inside T.Pipelined overlaps
ptx_cp_async cp_async: T.copy(src, dst, prefer="cp_async"), or T.async_copy
max_contiguous multiple_of: contracts of sizes say this: T.dynamic(name, multiple_of=8)
blockIdx block_idx: `with T.Kernel(grid) as bx:` names the block's index
blockDim: T.get_thread_extent(axis)
gridDim num_programs: T.get_block_extent(axis)
program_id: `for m in T.tile(M):` gives each block a tile; `with T.Kernel(grid) as bx:` names the
    block's index; T.get_block_binding(axis)
threadIdx thread_idx tid: T.get_thread_binding(0) is the thread's index
laneid lane_id: T.get_lane_idx()
warp_id: T.get_warp_idx()
constexpr: arguments of the factory, around the kernel, are compile-time values
static_print: Python's print, at compile time; T.print in the kernel
autotune: tw.autotune(configs=…) around the factory
jit: tw.jit around the factory
compile: tw.compile(prim_func, target=…)
attr comm_reducer: T.warp_reduce_sum and its kin, or T.reduce_sum on a tile, reduce across threads
block_attr: arguments of T.Kernel say this: threads=, cluster_dims=
func_attr: arguments of tw.jit and tw.compile say this
sync_grid: blocks cannot wait for each other: open a second T.Kernel, which runs after
tcgen05_gemm: T.gemm chooses the matrix instruction of the target
tvm_thread_allreduce: T.warp_reduce_sum(value), or T.reduce_sum on a tile
tvm_warp_shuffle: T.shfl_sync(value, lane)
block: write the statements in `with T.Kernel(…)`; tiles are allocated by T.alloc_*
reads writes: effects are derived: leave it out
match_buffer handle: annotate the parameter: A: T.Tensor(shape, dtype)
evaluate: write the call as a statement
"""


def _table(text: str) -> list[tuple[str, str]]:
    lines = text.strip().replace("\n    ", " ").splitlines()
    return [(names, said) for names, _, said in (line.partition(": ") for line in lines)]


def _each(text: str) -> dict[str, str]:
    """By each of the names that a line begins with."""
    return {name: said for names, said in _table(text) for name in names.split()}


MEANINGS = {
    **{name: f"did you mean T.{word}?" for word, names in _table(_SAME) for name in names.split()},
    **_each(_SAID),
}


# ── names that are no words ──────────────────────────────────────────────────────────────────────

DTYPE_NAMES: dict[str, ScalarType] = {
    name: ScalarType(name) for name in (*DTYPES, *_ALIASES) if name != "barrier"
}


class UnknownWord(CompileError, AttributeError):
    """`T.` has no such name."""


def as_entries(names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The words among `names` as functions whose errors show the user's frames only."""
    looking = ("prim_func", "macro")  # they look at the frame of their caller
    return {
        name: entry(word)
        for name, word in names.items()
        if isinstance(word, FunctionType)
        and word.__module__.startswith("tilewright.lang.")
        and word.__name__ not in (*looking, "as_entries", "unknown_word")
    }


def unknown_word(name: str, known: list[str]) -> AttributeError:
    if name.startswith("_"):  # modules are asked for these all the time
        return AttributeError(f"module 'tilewright.language' has no attribute {name!r}")
    said = f"T.{name} is not a word of the language"
    words = [k for k in known if k not in _NO_WORDS]
    meaning = _meaning(name, words)
    if meaning is not None:
        meant = re.fullmatch(r"did you mean T\.(\w+)\?", meaning)
        repair = swap(name, meant.group(1)) if meant else None
        return UnknownWord(said, fix=meaning, code="unknown-word", repair=repair)
    close = difflib.get_close_matches(name, words, 3, 0.6)
    if not close:
        fix = "`dir(T)` lists the words"
        return UnknownWord(said, fix=fix, code="unknown-word")
    # one that is much closer than the others is the one
    ratio = [difflib.SequenceMatcher(None, name, word).ratio() for word in close]
    if len(close) == 1 or ratio[0] > 0.8 or ratio[0] - ratio[1] > 0.1:
        close = close[:1]
    return UnknownWord(
        said,
        fix=f"did you mean {' or '.join(f'T.{c}' for c in close)}?",
        code="unknown-word",
        repair=swap(name, close[0]) if len(close) == 1 else None,
    )


def _meaning(name: str, words: list[str]) -> str | None:
    """How another language's word is said here: the word itself, in other letters, or misspelt
    where no word of ours is nearer."""
    if name in MEANINGS:
        return MEANINGS[name]
    plain = {_plain(word): word for word in (*MEANINGS, *words)}
    if _plain(name) in plain:
        return MEANINGS.get(plain[_plain(name)])
    close = difflib.get_close_matches(_plain(name), plain, 1, 0.8)
    return MEANINGS.get(plain[close[0]]) if close else None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_NO_WORDS = ("entry", "annotations", "Any", "DTYPE_NAMES", "as_entries", "unknown_word")


# ── Python's own errors, in text that runs at compile time ───────────────────────────────────────

# how Python's own messages call an expression
_CLASSES = re.compile(
    r"'(?:Var|Bin|Cmp|Select|Cast|Call|Load|Const|Access|Variable)' object"
    r"|(?<=type )(?:Access|Variable|Load|Bin|Call)\b"
)
_TILES = re.compile(r"'Tiles?'(?: object)?")


def explained(error: Exception) -> CompileError:
    """A Python error in the user's compile-time code, at its place."""
    loc, frame = locate_traceback(error.__traceback__)
    with at(loc):
        return _explained(error, loc, frame)


def _explained(error: Exception, loc: Loc | None, frame: FrameType | None) -> CompileError:
    said = _TILES.sub("a tile", _CLASSES.sub("a run-time value", str(error)))
    message = f"{type(error).__name__}: {said}"
    name = getattr(error, "name", None)
    if isinstance(error, UnboundLocalError):
        unbound = re.search(r"'(\w+)'", str(error))
        name = unbound.group(1) if unbound else "a name"
        return CompileError(
            f"{name!r} is used before it has a value",
            fix=f"assign to {name} above",
            code="unknown-name",
        )
    if isinstance(error, NameError) and "free variable" in said:
        return CompileError(
            f"{name!r} has no value yet: a kernel cannot call itself",
            fix="use a loop, or a @T.macro that ends by an `if` over compile-time values",
            code="unknown-name",
        )
    if isinstance(error, NameError) and name and frame is not None:
        known = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
        fix, repair = _INDICES.get(name, ""), None
        if not fix:
            theirs = (k for k in known if not k.startswith("_tw_"))
            fix, repair = suggest(name, theirs, _how_to_define(name, known, loc, frame))
        return CompileError(message, fix=fix, code="unknown-name", repair=repair)
    if isinstance(error, AttributeError) and name:
        return _bad_attribute(error, name)
    if isinstance(error, TypeError) and loc is not None and frame is not None:
        called = _called(loc, frame)
        if called is not None and f"{called[1].__name__}()" in message:
            return _bad_call(message, *called)
        if called is not None and said != str(error):
            word = called[0].rpartition(".")[2]
            ours = hasattr(math, word)
            return CompileError(
                f"{called[0]} cannot take a run-time value",
                expected="a word of the language",
                fix=f"use T.{word}" if ours else "use the words of T, or compute it by hand",
                code="not-constant",
                repair=swap(called[0], f"T.{word}") if ours else None,
            )
    fix = next((fix for part, fix in _FIXES.items() if part in said), "")
    return CompileError(
        message,
        notes=("this Python ran at compile time",),
        fix=fix or "change the line, or what it is computed from",
        code="python",
    )


def _how_to_define(name: str, known: list[str], loc: Loc | None, frame: FrameType) -> str:
    """What to do about an unknown name: sizes in the declaration of an argument are named first."""
    found = re.match(r"\s*(\w+):.*Tensor\(\(([^)]*)\)", loc.source if loc else "")
    sizes = [n for n in re.findall(r"[^\W\d]\w*", found[2]) if n not in known] if found else []
    if found is None or found[1] not in frame.f_locals or name not in sizes:
        return f"define {name} before it is used"
    text = ", ".join(dict.fromkeys(sizes))
    return f'name the sizes that the arrays give: {text} = T.const("{text}")'


# indices that other languages have without asking
_INDICES = _each("""
tx tid threadIdx: name it first: tx = T.get_thread_binding()
bx by bz pid blockIdx: name it: `with T.Kernel(…) as bx:`
""")
# fixes of Python's own errors, by a part of their text
_FIXES = dict(
    _table("""
'NoneType' object: T.copy and its kin return nothing: use the tile that they write to
loop of ufunc: NumPy runs at compile time: use the word of T, as in T.exp(x)
must be real number: Python's math runs at compile time: use the word of T, as in T.exp(x)
subscript: a run-time value is a number: index a tensor or a tile
context manager: `with` opens T.Kernel, T.ws and the like
for @: T.gemm(A, B, C) adds the product of two tiles to the tile C
has no setter: T.reshape(tile, shape) and T.view(tile, shape, dtype) show it in another way
""")
)
# attributes that arrays have elsewhere
_ELSEWHERE = _each("""
T: read it transposed: transpose_A=True or transpose_B=True of T.gemm, or T.transpose
abs: loop over it with T.Parallel, and use T.abs
exp: loop over it with T.Parallel, and use T.exp
fill_: T.fill(tile, value)
item: index it: A[0]
max: T.max(x[:, :], dim=1) is a value; T.reduce_max(tile, out, dim)
mean: T.mean(x[:, :], dim=1) is a value; T.reduce_sum(tile, out, dim), divided by the number of
    elements
min: T.min(x[:, :], dim=1) is a value; T.reduce_min(tile, out, dim)
numel: multiply the extents of its shape
size: its extents are in .shape
sum: T.sum(x[:, :], dim=1) is a value; T.reduce_sum(tile, out, dim)
to: T.copy into a tile of the other type casts
transpose: read it transposed: transpose_A=True or transpose_B=True of T.gemm
zero_: T.clear(tile)
""")
_OF_VALUES = {
    **{n: f"T.{n}(x, dim=1)" for n in "sum mean var max min any all argmax argmin cumsum".split()},
    **{n: f"T.{n}(x)" for n in "exp log sqrt rsqrt abs tanh sigmoid relu gelu round".split()},
    **_each("""
to type cast half float bfloat16: T.cast(x, "float16")
view reshape flatten: T.reshape(x, shape)
t transpose permute swapaxes: x.T
unsqueeze expand: x[:, None]
size: its extents are in .shape
clamp clip: T.clamp(x, low, high)
"""),
}
_NAMES = {"Tile": "a tensor or tile", "Tiles": "a region", "Access": "an element",
          "Variable": "a variable", "Value": "a value", "Product": "a value",
          "KernelScope": "T.Kernel"}  # fmt: skip


def _bad_attribute(error: AttributeError, name: str) -> CompileError:
    owner = getattr(error, "obj", None)
    if isinstance(owner, Lost):
        owner.fail()
    kind = (owner if isinstance(owner, type) else type(owner)).__name__
    of_value = is_value(owner)
    runtime = isinstance(owner, Tile) or of_value or is_runtime(owner)
    known = _OF_VALUES if of_value else _ELSEWHERE
    fix, repair = known.get(name, "") if runtime else "", None
    if not fix:
        have = [a for a in dir(owner) if not a.startswith("_")]
        if owner is None:
            fix = _FIXES["'NoneType' object"]
        elif runtime:
            fix = "tensors and tiles have shape and dtype; the words of T work on them"
        else:
            fix = f"it has {', '.join(have[:6])}" if have else "define it there"
        fix, repair = suggest(name, have, fix)
    said = _NAMES.get(kind) or ("a run-time value" if runtime else kind)
    return CompileError(
        f"AttributeError: {said} has no attribute {name!r}",
        fix=fix,
        code="unknown-attribute",
        repair=repair,
    )


def _called(loc: Loc, frame: FrameType) -> tuple[str, Any] | None:
    """What the call at `loc` names, and the function itself."""
    text = linecache.getline(loc.file, loc.line)[loc.column - 1 :]
    found = re.match(r"[A-Za-z_][\w.]*(?=\()", text)
    if found is None:
        return None
    first, *rest = found.group().split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in rest:
        value = getattr(value, part, None)
    return (found.group(), value) if hasattr(value, "__name__") else None


def _bad_call(message: str, name: str, function: Any) -> CompileError:
    """Arguments that a word or a macro does not take."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        said = name.rpartition(".")[2]
        ours = f"{name} runs at compile time: use T.{said}"
        return CompileError(
            message, fix=ours if hasattr(math, said) else f"look up how {name} is called"
        )
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters.values()]
    shown = str(inspect.Signature(plain))[1:-1]
    named = [p.name for p in plain if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    wrong = re.search(r"unexpected keyword argument '(\w+)'", message)
    missing = re.search(r"missing \d+ required .*arguments?: (.*)", message)
    fix, repair = f"call it as {name}({shown})", None  # type: str, Repair | None
    if wrong:
        other = wrong.group(1)
        meant = _SYNONYMS.get(other, "")
        if other in parameters:
            fix = f"pass {other} without its name"
        elif meant in parameters:
            fix, repair = f"did you mean {meant!r}?", swap(other, meant)
        else:
            fix, repair = suggest(other, parameters, f"leave {other} out")
            repair = repair or _without(other)
    elif named and "positional argument" in message and not missing:
        fix = f"name what follows: {', '.join(f'{each}=…' for each in named)}"
    elif missing:
        fix = f"pass {missing.group(1)} too"
        if "'dst'" in missing.group(1):
            fix += ": the tile that is written to"
    said = message.split("() ", 1)[-1]
    return CompileError(
        f"{name}: {said}",
        expected=f"{name}({shown})",
        fix=fix,
        code="arguments",
        repair=repair,
    )


def _without(argument: str) -> Repair:
    """Leave out `, argument=value`, where the value is a plain one."""

    def repair(text: str) -> str | None:
        found = re.search(rf", *{argument}=[\w.\"']+(?=[,)])", text)
        return text[: found.start()] + text[found.end() :] if found else None

    return repair


# arguments by the names they have elsewhere
_SYNONYMS = _each("""
axis dims: dim
trans_A transA: transpose_A
trans_B transB: transpose_B
stages: num_stages
num_threads: threads
out: dst
keepdims: clear
""")
