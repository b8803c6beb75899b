"""`python -m devtools`, from the repository's root: random programs and random schedules."""

from __future__ import annotations

import sys

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tools of the people who build Tilewright."""


@main.command()
@click.option("--count", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option(
    "--targets",
    default="interp,cpu",
    show_default=True,
    help="cpu, cuda, cuda-build (compiles only); each is compared with interp.",
)
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--each", type=float, default=60.0, show_default=True, help="Seconds a program.")
@click.option("--shrink", type=float, default=40.0, show_default=True, help="Seconds a finding.")
@click.option("--findings", type=int, default=20, show_default=True, help="Then the run ends.")
@click.option("--kind", default="any", show_default=True, help="Of programs: rings, gathers …")
@click.option("--refusals", is_flag=True, help="Shrink and print what a target refuses, too.")
@click.option("--out", type=click.Path(file_okay=False), help="Write failing kernels here.")
def fuzz(
    count: int,
    seed: int,
    targets: str,
    seconds: float,
    jobs: int,
    each: float,
    shrink: float,
    findings: int,
    kind: str,
    refusals: bool,
    out: str | None,
) -> None:
    """Run random programs on TARGETS and compare them with the checking interpreter.

    Programs that differ, crash or hang are shrunk and printed as kernels.
    """
    from devtools.fuzz.programs import KINDS
    from devtools.fuzz.run import Plan, run_command

    if kind not in KINDS:
        raise click.BadParameter(f"one of {', '.join(KINDS)}", param_hint="--kind")

    plan = Plan(
        count, seed, tuple(targets.split(",")), seconds, jobs, each, shrink, out or "", findings,
        refusals=refusals, kind=kind,
    )  # fmt: skip
    sys.exit(run_command(plan))


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Number of the first one.")
@click.option("--time", "seconds", type=float, default=600.0, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--each", type=float, default=120.0, show_default=True, help="Seconds a program.")
@click.option(
    "--threads", type=float, default=0.25, show_default=True, help="Share lowered to thread code."
)
@click.option("--program", default="", help="Only this one: what repeats a failure.")
@click.option("--target", default="cuda", show_default=True, help="With --program.")
@click.option("--without", default="", help="A feature left out; with --program.")
def schedules(
    file: str | None,
    count: int,
    seed: int,
    seconds: float,
    jobs: int,
    each: float,
    threads: float,
    program: str,
    target: str,
    without: str,
) -> None:
    """Derive random schedules and compare each with the sequential program, in the interpreter.

    Programs are random pipelines and, where FILE defines a dict `schedules`, its kernels with
    random sizes (zoo/schedules.py). A failure is printed as the command that repeats it.
    """
    from devtools.schedules import run as tool

    if program:
        recipe = tool.Recipe(program, target, without, seed, threads >= 1, file or "")
        sys.exit(tool.repeat(recipe))
    sys.exit(tool.run_command(tool.Plan(count, seed, seconds, jobs, each, threads, file or "")))


@main.command()
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first program.")
@click.option("--target", default="interp", show_default=True, help="interp or cpu.")
def meaning(count: int, seed: int, target: str) -> None:
    """Run random Python as a kernel's text and as plain Python, and compare the results.

    A kernel that is refused at one of its lines is fine; the first that differs is shrunk.
    """
    from devtools.fuzz.python_meaning import hunt

    kinds, finding = hunt(count, seed, target)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))
    if finding is not None:
        print(f"{finding.kind}: {finding.said}\n\n{finding.source}")
    sys.exit(finding is not None)


if __name__ == "__main__":
    main()
