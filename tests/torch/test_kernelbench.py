"""The benchmark of other people's problems, on three of our own."""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import kernelbench  # noqa: E402

HEAD = "import torch\nimport torch.nn as nn\n"
PROBLEMS = {
    "level1/1_Scaled.py": """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return torch.dropout(torch.relu(self.linear(x)), 0.5, True)

batch_size = 128
features = 2048 * 2

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return [features]
""",
    "level1/2_Constant.py": """
class Model(nn.Module):
    def forward(self, x):
        return torch.clamp(x.mean(dim=1) - x.mean(dim=1), min=0.0)

def get_inputs():
    return [torch.rand(4, 4)]

def get_init_inputs():
    return []
""",
    "level2/10_Crash.py": """
import os

class Model(nn.Module):
    def forward(self, x):
        return x

def get_inputs():
    return os._exit(3)

def get_init_inputs():
    return []
""",
    "level2/9_Kept.py": """
class Model(nn.Module):
    def forward(self, x):
        return torch.sort(x)[0] + 1

def get_inputs():
    return [torch.rand(3, 5)]

def get_init_inputs():
    return []
""",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in PROBLEMS.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(HEAD + text)
    return tmp_path


def called(*words):
    args = kernelbench.parser().parse_args([str(w) for w in words])
    return args.call(args)


def test_run_and_go_on(folder, capsys):
    out = folder / "found.jsonl"
    words = ["run", folder, "--out", out, "--device", "cpu", "--scale", "small", "--no-time",
             "--types", "float32", "--float32", 4, "--timeout", 100, "--seeds", 2]  # fmt: skip
    called(*words, "--part", "0/2")
    assert len(kernelbench.lines(out)) == 2
    out.write_text(out.read_text() + '{"cut')  # by a crash
    out.write_text(out.read_text() + "\n")
    called(*words)
    found = {r["problem"]: r for r in kernelbench.lines(out)}
    assert {n: r["verdict"] for n, r in found.items()} == {
        "level1/1_Scaled": "right", "level1/2_Constant": "constant",
        "level2/9_Kept": "partly", "level2/10_Crash": "failed",
    }  # fmt: skip
    assert found["level1/1_Scaled"]["groups"][0][1] == 1
    assert found["level2/10_Crash"]["why"].startswith("exit code 3")
    assert "aten.sort" in found["level2/9_Kept"]["why"]
    before = out.read_text()
    called(*words)
    assert out.read_text() == before
    capsys.readouterr()
    called("summary", out)
    assert "3 problems: 1 right, 1 partly, 0 wrong, 1 failed; 1 excluded" in capsys.readouterr().out


def test_a_problem_that_hangs_is_killed(folder):
    text = (folder / "level2/9_Kept.py").read_text().replace("[torch.rand(3, 5)]", "hang()")
    (folder / "level2/9_Kept.py").write_text(text + "\ndef hang():\n    while True: pass\n")
    out = folder / "found.jsonl"
    called("run", folder, "--out", out, "--device", "cpu", "--types", "bfloat16", "--only", "9_",
           "--timeout", 3)  # fmt: skip
    (found,) = kernelbench.lines(out)
    assert (found["verdict"], found["why"]) == ("failed", "killed after 3 s")


def test_small_sizes(folder):
    whole = kernelbench.load(folder / "level1/1_Scaled.py")
    shrunk = kernelbench.load(folder / "level1/1_Scaled.py", 16)
    assert (whole.batch_size, whole.features) == (128, 4096)
    assert (shrunk.batch_size, shrunk.features) == (2, 128)


def test_held():
    exact = torch.ones(4, dtype=torch.float64)
    theirs, off = exact.float(), exact.float() + 1e-3
    assert kernelbench.held(theirs, theirs, exact, torch.float32)["ok"]
    assert not kernelbench.held(off, theirs, exact, torch.float32)["ok"]
    assert not kernelbench.held(theirs * torch.nan, theirs, exact, torch.float32)["ok"]
    assert not kernelbench.held(theirs[:2], theirs, exact, torch.float32)["ok"]
    places = torch.tensor([1, 2])
    assert not kernelbench.held(places, places + 1, places + 1, torch.float32)["ok"]


def record(ours, eager, **more):
    return {"type": "bfloat16", "checks": [{"ok": True, "why": ""}], "kernels": ["a"],
            "groups": [[["mm"], 1]], "ms": {"ours": ours, "eager": eager}, **more}  # fmt: skip


def test_summary_counts_no_problem_twice_and_no_library():
    library = kernelbench.of_others(
        ["mm_relu", "mm_relu_1", "void at::native::sum<float>(int)", "Memcpy DtoD", "nvjet_mm"],
        ["mm_relu"],
    )
    assert library == ["void at::native::sum<float>(int)", "nvjet_mm"]
    records = [
        record(1.0, 100.0, problem="level1/1"),
        record(2.0, 1.0, problem="level1/2"),
        record(1.0, 9.0, problem="level1/3", library=library),
        record(1.0, 9.0, problem="level1/4", constant=True),
    ]
    told = kernelbench.summary([json.loads(json.dumps(r)) for r in records])
    assert "bfloat16: 3 problems: 2 right, 1 partly, 0 wrong, 0 failed; 1 excluded" in told
    assert "faster than eager: 1 of 3 (33%), geomean 1.58 of the 2" in told  # √(5 · ½)
    assert "0.50 level1/2: 2.000 ms, 1 launches: mm" in told and "launched void at::" in told
