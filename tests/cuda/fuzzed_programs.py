"""What the fuzzer found wrong in lowering, each as a small laid-out program."""

from __future__ import annotations

from tests.cuda.plain_programs import frag, kernel, shared
from tilewright.ir.layout.fragment import Fragment, repeat, spatial
from tilewright.ir.layout.layout import Layout
from tilewright.passes.layout.thread_layouts import coalesced

FUZZED: dict[str, str] = {}


def add(name: str, body: str, params: str, threads: int = 32, grid: int = 1) -> None:
    FUZZED[name] = kernel(body, params, threads, grid)


def tensors(kind: str, *shape: int) -> str:
    return f"param A: {kind}{list(shape)} global\nparam C: {kind}{list(shape)} global"


EIGHT = Fragment((8,), Layout(((8, 4), 1), ((1, 0), 0)))  # every element in four threads

add(
    "convert_at_the_edge",
    frag("f", "int32", coalesced((20,), 96, 4))
    + "copy A[bx * 16:+20] -> f atom=threads\ncopy f -> C[bx, 0:+20] atom=threads\n",
    "param A: float16[20] global\nparam C: int32[2, 20] global",
    threads=96,
    grid=2,
)
add(
    "reduce_a_unit_of_memory",
    shared("s", "float32", (1, 64), "(1,64):(64,1)")
    + frag("f", "float32", coalesced((64,), 32))
    + "copy A -> s[0, :] atom=threads\nsync block\nreduce sum s -> f dim 0\n"
    + "copy f -> C atom=threads\n",
    tensors("float32", 64),
)
add(
    "reduce_a_unit_of_registers",
    frag("f", "float32", coalesced((8, 1, 4), 32))
    + frag("r", "float32", coalesced((8, 4), 32))
    + "fill r = 1.0\ncopy A -> f[:, 0, :] atom=threads\nreduce max f -> r dim 1 clear=false\n"
    + "copy r -> C atom=threads\n",
    tensors("float32", 8, 4),
)
add(
    "replicas_read_what_one_writes",
    shared("s", "float32", (8,), "8:1")
    + "copy A -> s atom=threads\nsync block\n"
    + f'map i in 8 layout="{EIGHT!r}" {{\n'
    + "for k in 0 .. 3 { let x = s[i]; s[i] = x * 2.0 + 1.0 }\n}\n"
    + "sync block\ncopy s -> C atom=threads\n",
    tensors("float32", 8),
)
add(
    "replicas_get_fragments",
    shared("s", "float32", (8,), "8:1")
    + frag("f", "float32", EIGHT)
    + "fill f = 5.0\ncopy A -> s atom=threads\nsync block\n"
    + f'map i in 8 layout="{EIGHT!r}" {{\n'
    + "if i < 6 { f[i] = s[i]; s[i] = f[i] + 1.0; f[i] = f[i] * s[i] }\n}\n"
    + "sync block\nC[tx // 8, tx % 8] = s[tx % 8]\n"
    + f'map (i, j) in (4, 8) layout="{coalesced((4, 8), 32)!r}" {{ C[i, j] = C[i, j] + f[j] }}\n',
    "param A: float32[8] global\nparam C: float32[4, 8] global",
)
add(
    "replicas_get_results_of_atomics",
    shared("s", "int32", (8,), "8:1")
    + frag("f", "int32", EIGHT)
    + "copy A -> s atom=threads\nsync block\n"
    + f'map i in 8 layout="{EIGHT!r}" {{\n'
    + "atomic add s[i:+1] value=i + 1 result=old: int32\nf[i] = old\n}\nsync block\n"
    + f'map (i, j) in (4, 8) layout="{coalesced((4, 8), 32)!r}" {{ C[i, j] = s[j] * f[j] }}\n',
    "param A: int32[8] global\nparam C: int32[4, 8] global",
)
OWN = spatial(32, 1) * repeat(1, 8)
NEST = f'map (i, j) in (32, 8) layout="{OWN!r}"'
add(
    "registers_in_another_order",
    frag("f", "float32", OWN)
    + frag("g", "float32", OWN)
    + "copy A -> f atom=threads\n"
    + f"{NEST} {{ g[i, j] = f[i, (j + 3) % 8] - f[i, 7 - j] }}\n"
    + f"{NEST} {{ f[i, 7 - j] = g[i, j] + g[i, j // 2 * 2 + (1 - j % 2)] }}\n"
    + "copy f -> C atom=threads\n",
    tensors("float32", 32, 8),
)
add(
    "registers_by_loops_and_values",
    frag("f", "float32", OWN)
    + "copy A -> f atom=threads\n"
    + f"{NEST} {{\nalloc x: float32[] local init=0.0\n"
    + "for k in 0 .. 3 { x[] = x[] * 2.0 + f[i, (j + k) % 8] }\n"
    + "for k in 0 .. 0 { x[] = x[] + f[i, k] }\nC[i, j] = x[]\n}\n",
    tensors("float32", 32, 8),
)
# twelve elements of rows of eight to a thread: coordinates are no sums
ACROSS = Fragment((48, 8), Layout((32, 12), (12, 1)))
add(
    "views_across_rows",
    frag("f", "float32", ACROSS)
    + frag("r", "float32", coalesced((48,), 32))
    + shared("s", "float32", (48, 8), "(48,8):(8,1)")
    + "copy A -> f atom=threads\ncopy f -> s atom=threads\nsync block\n"
    + f'map (i, j) in (48, 8) layout="{ACROSS!r}" {{ f[i, j] = f[i, j] * s[i, 7 - j] }}\n'
    + "copy f -> C atom=threads\nreduce sum f -> r dim 1\ncopy r -> D atom=threads\n",
    tensors("float32", 48, 8) + "\nparam D: float32[48] global",
)
add(
    "unrolled_as_often_as_the_block_says",
    shared("s", "float32", (8,), "8:1")
    + "copy A -> s atom=threads\nsync block\n"
    + "for k in 0 .. bx + 1 kind=unroll {\n"
    + f'map i in 8 layout="{EIGHT!r}" {{ s[i] = s[i] + float32(k + 1) }}\nsync block\n}}\n'
    + "copy s -> C[bx, :] atom=threads\n",
    "param A: float32[8] global\nparam C: float32[3, 8] global",
    grid=3,
)
add(
    "compare_with_a_loop_of_the_nest",
    f"{NEST} {{\nalloc x: float32[] local init=0.0\n"
    + "for k in 0 .. 5 { x[] = x[] + (A[i, k] if k <= j else 1.0) }\nC[i, j] = x[]\n}\n",
    tensors("float32", 32, 8),
)
# six rows of eight over 48 threads, twice: lanes 16 apart are rows 4 and 0 of the other copy
TWICE = Fragment((6, 8), Layout(((48, 2), 1), ((1, 0), 0)))
add(
    "lanes_of_two_copies",
    frag("f", "float32", TWICE)
    + shared("s", "float32", (8,), "8:1")
    + "copy A -> f atom=threads\nfill s = 1.0\nsync block\nreduce sum f -> s dim 0 clear=false\n"
    + "sync block\ncopy s -> C atom=threads\n",
    "param A: float32[6, 8] global\nparam C: float32[8] global",
    threads=96,
)
add(
    "a_part_that_no_mode_ends",
    shared("s", "float32", (8, 48), "(8,(16,3)):(16,(1,128))")
    + frag("f", "float32", coalesced((8, 24), 32))
    + "fill s = 0.0\nsync block\ncopy A -> s[:, 0:+24] atom=threads\nsync block\n"
    + "copy s[:, 0:+24] -> f atom=threads\ncopy f -> C atom=threads\n",
    tensors("float32", 8, 24),
)
