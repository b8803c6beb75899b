"""A model under torch.compile's backends, on a GPU: ours, PyTorch's own, and eager.

    python benchmarks/torch_models.py --seed 5 --count 1 --out torch_models.json

A GPT in bfloat16 and float32 of a width and length that the seed draws; no gradients. Results are
checked against the model in float64: no further off than twice eager's.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from race import Race, main, name_of, seeded

sys.path.insert(0, str(Path(__file__).parents[1]))


def race(name: str, model: Any, tokens: Any) -> Race:
    import torch

    import tilewright.torch  # noqa: F401  # the backend

    wide = copy.deepcopy(model).double()
    runs = {"ours": torch.compile(model, backend="tilewright"), "torch": model,
            "compiled": torch.compile(model)}  # fmt: skip

    def called(run: Any) -> Any:
        with torch.no_grad():
            return run(tokens)

    def checks() -> Iterator[dict[str, Any]]:
        right = called(wide)
        errors = {n: (called(run).double() - right).abs().max().item() for n, run in runs.items()}
        for label, error in errors.items():
            yield {"contender": label, "ok": error <= 2 * errors["torch"], "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        return {label: lambda run=run: called(run) for label, run in runs.items()}

    work = 2.0 * sum(p.numel() for p in model.parameters() if p.ndim > 1) * tokens.numel()
    return Race(name, contenders, checks, work=work, unit="FLOP", ours=["ours"])


def races(seed: int = 0, count: int = 1, part: str = "0/1") -> Iterator[Race]:
    import torch

    from tests.torch.models import GPT

    rng = random.Random(seed)
    for _ in range(count):
        heads, length, batch = rng.randrange(8, 17), 128 * rng.randrange(2, 9), rng.choice((4, 8))
        for kind in (torch.bfloat16, torch.float32):
            torch.manual_seed(seed)
            model = GPT(words=8192, width=64 * heads, heads=heads, layers=4, longest=length)
            tokens = torch.randint(0, 8192, (batch, length), device="cuda")
            name = name_of(f"gpt {str(kind)[6:]}", (batch, length, 64 * heads))
            yield race(name, model.cuda().to(kind), tokens)


if __name__ == "__main__":
    sys.exit(main(__file__, seeded(__doc__)))
