"""How to say what other languages have a word for: PyTorch, NumPy, Triton, CUDA, TVM."""

from __future__ import annotations

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
if_then_else: where
Select: select
sync_threads: syncthreads barrier debug_barrier
sync_warp: syncwarp
Parallel: parallel
Pipelined: pipelined pipeline
Kernel: kernel
max: fmax maximum
min: fmin minimum
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
infinity: inf
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
all_of: all reduce_all
any_of: any reduce_any
cumsum: cumulative_sum associative_scan scan
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
relu: T.max(x, 0)
leaky_relu: T.if_then_else(x > 0, x, slope * x)
relu6: T.clamp(x, 0, 6)
hardtanh: T.clamp(x, -1, 1)
gelu: 0.5 * x * (1 + T.erf(x * 0.7071067811865476))
silu swish: x * T.sigmoid(x)
softplus: T.log1p(T.exp(x))
elu: T.if_then_else(x > 0, x, T.exp(x) - 1)
expm1: T.exp(x) - 1
square: x * x
reciprocal rcp: 1 / x
div: x / y, or T.floordiv for integers
mul: x * y
add: x + y; T.atomic_add where several threads add to one element
sub: x - y
neg: -x
sign: T.if_then_else(x > 0, 1, T.if_then_else(x < 0, -1, 0))
lerp: a + t * (b - a)
nan: T.cast(float("nan"), dtype), or the number float("nan") itself
pi: the number 3.141592653589793
rand randn randint: pass random numbers as a tensor: kernels have no generator
softmax: T.reduce_max(x, m, dim=1), T.exp(x[i, j] - m[i]) in T.Parallel, T.reduce_sum, divide
log_softmax: T.reduce_max(x, m, dim=1), T.exp(x[i, j] - m[i]) in T.Parallel, T.reduce_sum, divide;
    then T.log
logsumexp: T.reduce_max, T.reduce_sum of T.exp(x - max), then T.log of it + max
mean avg average reduce_mean: T.reduce_sum(tile, out, dim), and divide by the number of elements
var: T.reduce_sum(tile, out, dim) of x and of x * x: E[x²] - E[x]²
std: T.sqrt of the variance: T.reduce_sum(tile, out, dim) of x and of x * x: E[x²] - E[x]²
norm: T.reduce_sum of x * x, then T.sqrt
layer_norm: T.reduce_sum(tile, out, dim), and divide by the number of elements; T.reduce_sum(tile,
    out, dim) of x and of x * x: E[x²] - E[x]²; then T.rsqrt(var + eps)
rms_norm: T.reduce_sum of x * x, then x * T.rsqrt(sum / n + eps)
sum: T.reduce_sum(tile, out, dim)
prod reduce_prod: T.reduce_sum of logarithms, or a T.serial loop
argmax: T.reduce_max, then T.reduce_min of the indices where x equals it
argmin: T.reduce_min, then T.reduce_min of the indices where x equals it
topk top_k sort argsort: k times T.reduce_max, each time clearing the element that was found
histogram bincount: T.alloc_reducer(bins), and `acc[bin] += 1` in T.Parallel
zeros zeros_like: allocate a tile, and T.clear(tile)
ones ones_like: allocate a tile, and T.fill(tile, 1)
full full_like: allocate a tile, and T.fill(tile, value)
memset: T.fill(tile, value)
memcpy: T.copy(src, dst)
arange iota: loop over indices: `for i in T.Parallel(n):`
eye: T.if_then_else(i == j, 1, 0) in T.Parallel
tril: T.if_then_else(i >= j, x[i, j], 0) in T.Parallel
triu: T.if_then_else(i <= j, x[i, j], 0) in T.Parallel
masked_fill: T.if_then_else(mask, value, x[i, j]) in T.Parallel
expand_dims expand unsqueeze broadcast broadcast_to: index it: `f[i, j] = v[i]` in a T.Parallel loop
squeeze: T.reshape(tile, shape), or index it: tile[0, i]
flatten ravel: T.reshape(tile, (n,))
cat concat concatenate: T.copy each tile into a part of a larger one: T.copy(a, c[0:m, :])
stack: T.copy each tile into a part of a larger one: T.copy(a, c[0, :, :])
split chunk: T.copy a part: tile[0:m, :]
gather index_select: loop over elements: `for i, j in T.Parallel(m, n):`, and index both tiles:
    y[i] = x[index[i]]
scatter: loop over elements: `for i, j in T.Parallel(m, n):`, and index both tiles: y[index[i]] =
    x[i]; T.atomic_add where indices meet
flip: loop over elements: `for i, j in T.Parallel(m, n):`, and index both tiles: y[i] = x[n - 1 - i]
roll: loop over elements: `for i, j in T.Parallel(m, n):`, and index both tiles: y[i] = x[(i - k) %
    n]
trans: transpose_A=True or transpose_B=True of T.gemm, or T.transpose(src, dst)
dot matmul mm einsum mma wgmma tensordot: T.gemm(A, B, C) adds the product of two tiles to the tile
    C
bmm: T.gemm(A, B, C) adds the product of two tiles to the tile C; give each batch a block: `with
    T.Kernel(m, n, batch)`
outer: loop over elements: `for i, j in T.Parallel(m, n):`, and index both tiles: c[i, j] = a[i] *
    b[j]
conv2d: read the window with T.Parallel into a tile, and T.gemm it
im2col c2d_im2col: read the window with T.Parallel: reads outside a tensor give zero
load ldg: T.copy(A[i, j], tile) reads a tile, A[i, j] an element
store: T.copy(tile, A[i, j]) writes a tile, A[i, j] = value an element
make_block_ptr make_tensor_descriptor: T.copy(A[i, j], tile) reads a tile that begins there
advance: index the next tile: T.copy(A[i, k * block], tile)
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
program_id: `with T.Kernel(grid) as bx:` names the block's index; T.get_block_binding(axis)
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


MEANINGS = {
    **{name: f"did you mean T.{word}?" for word, names in _table(_SAME) for name in names.split()},
    **{name: said for names, said in _table(_SAID) for name in names.split()},
}
