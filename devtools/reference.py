"""The reference of the language: Markdown pages made from docstrings.

A docstring holds plain text, doctests (`>>>`), and examples under a line `Example:`, which stand
in the kernel of `FRAME`: there `# Y[0]: 1 2 3` says what a tensor begins with afterwards. Under
`Example, compiled for CUDA:` they are compiled and not run, under `Example, traced only:` only
traced.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.lang.meanings import DTYPE_NAMES
from tilewright.passes import cpu_passes, cuda_passes
from tilewright.passes.run import Pass
from tilewright.runtime.jit import Jit

# how users write the names of a module
MODULES = {"T": "tilewright.language", "tw": "tilewright", "layout": "tilewright.layout"}

PIPELINES: dict[str, tuple[Pass, ...]] = {
    "CUDA: from tiles to the scheduled form": (*cuda_passes.FIRST, *cuda_passes.SCHEDULE),
    "CUDA: a traced build": cuda_passes.STAMP,
    "CUDA: from the scheduled form to threads": cuda_passes.LOWER,
    "CPU": cpu_passes.PIPELINE,
}

FRAME = """\
@T.prim_func
def example(
    X: T.Tensor((64, 64), "float32"),  # X[i, j] = j - i
    N: T.Tensor((64,), "int32"),  # N[i] = i
    Y: T.Tensor((64, 64), "float32"),  # zeros
    M: T.Tensor((64,), "int32"),  # zeros
):
    with T.Kernel(1, threads=128):
        ...
"""

# what a function gives whose members users need, and no public name has
GIVEN = {"tw.jit": Jit}

# names that `tilewright.language` needs itself
_NO_WORDS = {"annotations", "Any", "DTYPE_NAMES", "as_entries", "unknown_word", "entry", "inf"}


@dataclass(frozen=True)
class Page:
    """One page: the names under each heading, in order. `prefix` is how users write a name."""

    file: str
    title: str
    prefix: str
    intro: str
    sections: dict[str, str]

    @property
    def module(self) -> ModuleType:
        return import_module(MODULES[self.prefix])

    def names(self) -> Iterator[str]:
        for words in self.sections.values():
            yield from words.split()


PAGES = (
    Page("declarations", "Declarations and types", "T",
         "What stands around a kernel: its function, its parameters, its sizes.", {
        "Functions": "prim_func macro",
        "Parameters": "Tensor StridedTensor Buffer SharedBuffer FragmentBuffer LocalBuffer Ref",
        "Sizes": "dynamic const chosen empty ceildiv",
        "Element types": "dtype PrimExpr",
    }),
    Page("launch", "Launch", "T", "A kernel, its blocks and its threads.", {
        "Kernels": "Kernel ClusterKernel use_swizzle",
        "Blocks": "get_block_binding get_block_bindings get_block_extent get_block_extents "
                  "block_rank_in_cluster",
        "Threads": "get_thread_binding get_thread_bindings get_thread_extent get_thread_extents "
                   "get_lane_idx get_warp_idx get_warp_group_idx",
    }),
    Page("values", "Tile values", "T",
         "Expressions over whole tiles, which allocate their own results "
         "([how they work](../values.md)). Elementwise words take tiles, too.", {
        "Loops over tiles": "tile each",
        "Values": "load zeros ones full arange",
        "Choices": "where maximum minimum",
        "Reductions": "sum prod mean var any all argmax argmin",
        "Scans": "scan cumprod",
        "Functions of models": "relu gelu silu softplus mish hardsigmoid",
    }),
    Page("allocation", "Allocation", "T", "Where a tile lives.", {
        "Tiles": "alloc_shared alloc_fragment alloc_global",
        "Scalars and memory of a thread": "alloc_var alloc_local",
        "Barriers": "alloc_barrier alloc_cluster_barrier",
        "Reducers": "alloc_reducer reducer_init reducer_update finalize_reducer",
    }),
    Page("movement", "Movement", "T", "Tiles from one place to another.", {
        "Copies": "copy fill clear transpose",
        "The same memory, seen otherwise": "reshape view",
        "With control over the instruction": "async_copy tma_copy tma_store_arrive "
                                             "tma_store_wait copy_cluster",
    }),
    Page("matrix", "Matrix products", "T", "Products of tiles.", {
        "Products": "gemm GemmWarpPolicy gemm_sp",
        "Asynchronous": "wgmma_gemm wait_wgmma",
    }),
    Page("loops", "Loops", "T", "`while`, `break` and `range` of Python work in a kernel, too.", {
        "Over a tile": "Parallel",
        "In order": "serial Pipelined unroll vectorized grid loop_break",
        "Over the grid": "Persistent thread_binding",
    }),
    Page("reductions", "Reductions and scans", "T",
         "Along a dimension of a tile, or over the lanes of a warp.", {
        "Reductions": "reduce reduce_sum reduce_max reduce_min reduce_abssum reduce_absmax "
                      "reduce_bitand reduce_bitor reduce_bitxor any_of all_of",
        "Scans": "cumsum cummax",
        "Over a warp": "warp_reduce_sum warp_reduce_max warp_reduce_min warp_reduce_bitand "
                       "warp_reduce_bitor",
    }),
    Page("atomics", "Atomics", "T",
         "Updates in one step, of tensors and of shared memory: threads and blocks may meet.", {
        "Updates": "atomic_add atomic_addx2 atomic_addx4 atomic_max atomic_min atomic_and "
                   "atomic_or atomic_xor atomic_exch",
        "Reads and writes": "atomic_load atomic_store",
    }),
    Page("elementwise", "Elementwise", "T",
         "Functions of single elements, inside `T.Parallel` or thread by thread. There are also "
         "`+ - * / // % << >> & | ^ ~`, comparisons, `and`, `or`, `not` and `a if c else b`.", {
        "Choice": "if_then_else And Or Not max min clamp",
        "Powers and logarithms": "exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt pow",
        "Angles and kin": "sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid erf",
        "Rounding and division": "abs floor ceil round trunc floordiv floormod truncdiv truncmod "
                                 "fmod fma copysign",
        "Bits": "bitwise_and bitwise_or bitwise_xor bitwise_not shift_left shift_right popcount "
                "clz dp4a",
        "Types and their limits": "cast Cast reinterpret infinity max_value min_value isnan isinf "
                                  "isfinite",
        "Fast forms": "__exp __exp2 __exp10 __log __log2 __log10 __sin __cos __tan __tanh "
                      "__sigmoid __divide",
    }),
    Page("hints", "Hints", "T", "None of these changes what a kernel computes.", {
        "Layouts": "annotate_layout annotate_padding make_swizzled_layout layout Layout Fragment "
                   "spatial repeat",
        "Facts and wishes": "assume annotate_min_blocks_per_sm annotate_l2_hit_ratio "
                            "annotate_safe_value annotate_restrict_buffers",
    }),
    Page("roles", "Roles and barriers", "T",
         "For kernels that say who does what. The compiler derives this for the others. The "
         "interpreter runs all of it; the CPU has no barriers of this kind, and CUDA does not yet "
         "compile kernels that order placements (`T.ws`) by barriers of their own.", {
        "Roles": "ws set_max_nreg inc_max_nreg dec_max_nreg no_set_max_nreg",
        "Barriers": "barrier_arrive barrier_wait "
                    "mbarrier_expect_tx mbarrier_arrive_expect_tx",
        "Fences, clusters, launches": "fence_proxy_async cluster_sync pdl_wait pdl_launch",
    }),
    Page("threads", "Thread level", "T", "Code that one thread runs.", {
        "Synchronisation": "sync_threads sync_warp named_barrier_arrive",
        "Shuffles and votes": "shfl_xor shfl_up shfl_down shfl_sync ballot any_sync "
                              "all_sync",
        "Other languages": "ptx import_source call_extern address_of access_ptr",
    }),
    Page("looking", "Looking", "T", "Into a kernel while it runs.", {
        "Words": "print device_assert",
    }),
    Page("python", "Compiling, running, measuring", "tw", "`import tilewright as tw`.", {
        "Compiling": "jit compile par_compile parse_ir",
        "Tuning": "autotune set_autotune_inputs AutoTuner",
        "Debugging": "debug trace_run",
        "A compiled kernel": "CompiledKernel Profiler TensorSupplyType",
        "Targets and options": "Target Schedule Plan Numerics Feature resolve current_target "
                               "PassConfigKey",
        "Measuring": "measure Race",
        "Errors": "TilewrightError CompileError LaunchError RunError SanitizerError "
                  "VerifyError",
        "Warnings": "SanitizerWarning PerformanceWarning",
        "Sizes": "cdiv next_power_of_2",
    }),
    Page("layout", "Layouts", "layout",
         "`from tilewright.layout import …`. [The page about layouts](../layout.md) tells what "
         "they are for.", {
        "Making": "Layout Swizzle ComposedLayout make_layout "
                  "make_swizzled_layout row_major column_major parse_layout LayoutError",
        "Measures and coordinates": "size cosize rank depth congruent compatible crd2idx idx2crd",
        "Algebra": "flatten coalesce filter composition complement logical_divide zipped_divide "
                   "tiled_divide flat_divide logical_product zipped_product tiled_product "
                   "blocked_product raked_product right_inverse left_inverse",
        "Questions": "same injective covers bijective fit_layout bank_conflicts BankConflicts",
        "Pictures": "draw",
        "Fragments": "Fragment spatial repeat row_of mma_accumulator mma_a_operand mma_b_operand "
                     "wgmma_accumulator wgmma_a_operand parse_fragment parse_layout_or_fragment",
    }),
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """Code from a docstring. `kind` is 'doctest', or says what is done with it in FRAME: 'run',
    'cuda' (compiled) or 'traced'."""

    kind: str
    code: str


_KINDS = {None: "run", "compiled for CUDA": "cuda", "traced only": "traced"}


def public_names(module: ModuleType) -> set[str]:
    """What a module offers: its `__all__` less its modules, or the words of the language."""
    if module.__name__ == MODULES["T"]:
        fast = {name for name in vars(module) if re.fullmatch(r"__[a-z]+\d*", name)}
        words = {name for name in vars(module) if not name.startswith("_")}
        return (words | fast) - _NO_WORDS - set(DTYPE_NAMES)
    return {n for n in module.__all__ if not inspect.ismodule(getattr(module, n))}


def aliases(module: ModuleType, name: str) -> list[str]:
    """Other names of the same object."""
    found = inspect.unwrap(getattr(module, name))
    return sorted(
        other
        for other in public_names(module) - {name}
        if inspect.unwrap(getattr(module, other)) is found
    )


def parts(doc: str) -> Iterator[str | Example]:
    """A docstring as text and examples, in order."""
    lines = inspect.cleandoc(doc).splitlines()
    text: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        heading = re.fullmatch(r"Example(?:, (compiled for CUDA|traced only))?:", line)
        if not heading and not line.startswith(">>>"):
            text.append(line)
            at += 1
            continue
        if "".join(text).strip():
            yield "\n".join(text).strip()
        text = []
        if heading:
            at += 1
        end = at
        while end < len(lines) and (lines[end].startswith("    ") if heading else lines[end]):
            end += 1
        code = textwrap.dedent("\n".join(lines[at:end])).rstrip()
        yield Example(_KINDS[heading[1]] if heading else "doctest", code)
        at = end
    if "".join(text).strip():
        yield "\n".join(text).strip()


def examples(thing: Any) -> list[Example]:
    """The examples of one public name."""
    return [part for part in parts(_doc(thing)) if isinstance(part, Example)]


def in_frame(code: str) -> str:
    """A whole function around an example: its own kernels, or those of FRAME."""
    head, kernel = FRAME.split("    with T.Kernel", 1)
    if "with T.Kernel(" in code or "with T.ClusterKernel(" in code:
        return head + textwrap.indent(code, "    ") + "\n"
    first = kernel.splitlines()[0]
    return f"{head}    with T.Kernel{first}\n" + textwrap.indent(code, " " * 8) + "\n"


def render(page: Page) -> str:
    """The text of one page."""
    out = [f"# {page.title}", "", page.intro, ""]
    if page.prefix == "T" and any(
        e.kind != "doctest" for n in page.names() for e in examples(getattr(page.module, n))
    ):
        out += [
            "Examples stand in [the frame of all of them](README.md#how-to-read-an-example).",
            "",
        ]
    for heading, names in page.sections.items():
        out += [f"## {heading}", ""]
        for name in names.split():
            out += _entry(page, name)
    return "\n".join(out).rstrip() + "\n"


def render_index() -> str:
    """The page that lists all names."""
    out = [
        "# Reference",
        "",
        "Every public name, from its docstring: `help(T.copy)` shows the same. These pages are "
        "made by `python -m devtools reference`; every example on them runs in the tests.",
        "",
    ]
    for page in PAGES:
        out += [f"## [{page.title}]({page.file}.md)", ""]
        seen: list[str] = []
        for heading, names in page.sections.items():
            links = []
            for name in names.split():
                anchor = _anchor(page, name)
                again = f"-{seen.count(anchor)}" if anchor in seen else ""  # `cast` and `Cast`
                links.append(f"[`{name}`]({page.file}.md#{anchor}{again})")
                seen.append(anchor)
            out.append(f"- {heading}: {' '.join(links)}")
        out.append("")
    types = " ".join(f"`{n}`" for n in DTYPE_NAMES)
    out += [
        "## [Passes](passes.md)",
        "",
        "The steps of the compiler, target by target.",
        "",
        "## Element types",
        "",
        f"As strings or as `T.` names; NumPy's and PyTorch's types name them, too: {types}.",
        "",
        "## How to read an example",
        "",
        "An example of a word of the language stands in this kernel, or brings `T.Kernel` itself:",
        "",
        "```python",
        FRAME.rstrip(),
        "```",
        "",
        "`# Y[0]: 1 2 3` says what `Y[0]` begins with afterwards. Each runs under the sanitizer "
        "of the interpreter; those that are for CUDA only are compiled. `>>>` is a Python prompt, "
        "with `tw`, `T` and `np` imported.",
    ]
    return "\n".join(out) + "\n"


def render_passes() -> str:
    """The page that lists the passes of each target."""
    out = [
        "# Passes",
        "",
        "What each pass does, from its docstring, and why it stands where it does. `tilewright ir "
        "FILE --stage NAME` prints a program after a pass, `--changed` what each pass changed. "
        "Passes that choose leave kernels with roles of their own as they are.",
        "",
    ]
    for title, passes in PIPELINES.items():
        out += [f"## {title}", "", "| pass | does | its place |", "|---|---|---|"]
        for each in passes:
            doc = " ".join(_doc(each.run).split("\n\n")[0].split())
            out.append(f"| `{each.name}` | {doc} | {each.reason} |")
        out.append("")
    return "\n".join(out).rstrip() + "\n"


def write(folder: Path) -> list[Path]:
    """Write all pages; those that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for path, text in pages(folder).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def pages(folder: Path) -> dict[Path, str]:
    """Path → text of all pages."""
    made = {folder / f"{page.file}.md": render(page) for page in PAGES}
    return {folder / "README.md": render_index(), folder / "passes.md": render_passes(), **made}


# ── one name ─────────────────────────────────────────────────────────────────────────────────


def _doc(thing: Any) -> str:
    return (thing.__doc__ if not callable(thing) else inspect.getdoc(thing)) or ""


def _anchor(page: Page, name: str) -> str:
    """The anchor that Markdown gives the heading of a name."""
    return re.sub(r"[^\w-]", "", _title(page, name).lower())


def _title(page: Page, name: str) -> str:
    return name if page.prefix == "layout" else f"{page.prefix}.{name}"


def _entry(page: Page, name: str) -> list[str]:
    thing = getattr(page.module, name)
    title = _title(page, name)
    out = [f"### `{title}`", ""]
    signature = _signature(thing)
    if signature:
        out += ["```", *_wrapped(title, signature), "```", ""]
    others = aliases(page.module, name)
    if others:
        out += ["Also " + ", ".join(f"`{_title(page, o)}`" for o in others) + ".", ""]
    for part in parts(_doc(thing)):
        if isinstance(part, Example):
            told = {"cuda": "For CUDA only:", "traced": "Not run anywhere yet:"}.get(part.kind)
            out += [told, ""] if told else []
            out += ["```pycon" if part.kind == "doctest" else "```python", part.code, "```", ""]
        else:
            out += [part, ""]
    if title in GIVEN:
        out += ["The function that it gives has:", ""]
    return out + _members(GIVEN.get(title, thing))


def _members(thing: Any) -> list[str]:
    """The values of an enumeration, the public methods and properties of a class."""
    if not inspect.isclass(thing):
        return []
    if issubclass(thing, Enum):
        return ["Values: " + ", ".join(f"`{m.name}`" for m in thing) + ".", ""]
    rows = []
    own = [c for c in reversed(thing.__mro__) if c.__module__.startswith("tilewright.")]
    for name, member in {n: m for c in own for n, m in vars(c).items()}.items():
        called = getattr(member, "__func__", member)
        if name.startswith("_") or not (callable(called) or isinstance(member, property)):
            continue
        doc = inspect.getdoc(called) or ""
        if not doc:
            continue
        first = " ".join(doc.split("\n\n")[0].split())
        signature = _signature(called) if callable(called) else ""
        signature = re.sub(r"^\((self|cls)(, )?", "(", signature)
        rows.append(f"- `.{name}{signature}`: {first}")
    return [*rows, ""] if rows else []


def _signature(thing: Any) -> str:
    """The parameters with their defaults, without types: most words take anything."""
    if inspect.isclass(thing) and (
        issubclass(thing, (Enum, BaseException)) or thing.__init__ is object.__init__
    ):
        return ""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in found.parameters.items()
        if name not in ("_", "word")  # what is swallowed, and how a word calls itself in errors
    ]
    plain = found.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return re.sub(r"<(\w+)\.(\w+): '\w+'>", r"\1.\2", str(plain)).replace(", /)", ")")


def _wrapped(title: str, signature: str) -> list[str]:
    return textwrap.wrap(title + signature, 90, subsequent_indent="    ", break_on_hyphens=False)
