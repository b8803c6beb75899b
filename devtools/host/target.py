"""The judge as targets of the fuzzer: `host`, `host-sm80`, `host-roles`, `host -roles …`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devtools.compare import Verdict, lowered
from devtools.host import build, judge
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.tools.compare import Arguments, Array, difference, internal

# the road each takes, as `devtools.compare` names it; choices go the way of drawn ones
ROADS = {"host": "threads", "host-sm80": "threads -arch=sm_80", "host-roles": "threads-roles"}
SEEDS = (0, 1, 2)  # of the order of threads


def is_host(target: str) -> bool:
    return target.split()[0] in (*ROADS, "host-drawn")


def without_compiler(targets: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The targets that can be run here, and why others are not."""
    if any(map(is_host, targets)):
        try:
            build.compiler()
        except judge.NoCompiler as error:
            return tuple(t for t in targets if not is_host(t)), f"skipped: {error}"
    return tuple(targets), ""


def road(target: str) -> str:
    """What lowers the program of a host target.

    >>> road("host -arch=sm_80 -bulk_copies=off")
    'threads -arch=sm_80 -bulk_copies=off'
    """
    first, *flags = target.split()
    return " ".join([ROADS[first], *flags])


def arch_of(target: str) -> str:
    """Whose header a road includes."""
    flags = [f for f in road(target).split()[1:] if f.startswith("-arch=")]
    return Target.parse(" ".join(["cuda", *flags])).arch


def prepare(program: Program, target: str) -> judge.Ready:
    """`program` as `target` lowers it, compiled for the host."""
    return judge.ready(program, lowered(program, road(target)).result, arch_of(target))


def against(
    program: Program,
    arguments: Arguments,
    cases: Sequence[Mapping[str, int]],
    target: str,
    wanted: Sequence[dict[str, Array]],
    unit: float,
) -> Verdict | None:
    """How the emitted source differs from what the interpreter `wanted`; None where it does not.
    `refused` names an instruction that has no meaning here."""
    try:
        made = prepare(program, target)
        for case, want in zip(cases, wanted, strict=True):
            for seed in SEEDS:
                got = made(arguments(**case), seed)
                for name, array in want.items():
                    told = difference(array, got[name], unit)
                    if told:
                        place = f"{name} at {dict(case)}, threads in order {seed}"
                        return Verdict("mismatch", target, f"{place}: {told}")
    except judge.NoCompiler as error:
        return Verdict("refused", target, str(error))
    except judge.Excluded as error:
        return Verdict("refused", target, f"excluded: {error}")
    except judge.Fault as error:
        return Verdict("mismatch", target, str(error))
    except judge.NotForHost as error:
        return Verdict("crash", target, f"the host's compiler refuses it: {error}")
    except CompileError as error:
        return Verdict("refused" if error.loc is not None else "crash", target, error.message)
    except TilewrightError as error:
        return Verdict("crash", target, f"{type(error).__name__}: {error.message}")
    except Exception as error:
        return Verdict("crash", target, internal(error))
    return None
