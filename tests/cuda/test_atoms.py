"""Every matrix instruction compiled for sm_90a: it is there, and nothing to complain of. No GPU is
needed; `test_gpu_atoms` runs the same programs on one."""

import re
from functools import cache

import pytest

from tests.cuda.atom_programs import CASES
from tests.cuda.fake import opcodes
from tilewright.ir.target import Target
from tilewright.targets.cuda.kernel import compile_program
from tilewright.targets.cuda.sass import disassemble


@cache
def compiled(name):
    return compile_program(CASES[name].program, Target.parse("cuda"))


@pytest.mark.parametrize("name", CASES)
def test_code(name):
    kernel = compiled(name)
    assert kernel.compiled.problems() == []
    for pattern, count in CASES[name].ptx.items():
        assert len(re.findall(pattern, kernel.ptx)) == count, pattern


# disassembly takes a second: one program per instruction of the machine
MACHINE = {case.sass: name for name, case in reversed(CASES.items())}


@pytest.mark.parametrize("word", MACHINE)
def test_machine_instruction(word):
    found = opcodes(disassemble(compiled(MACHINE[word]).cubin))
    assert found[word] and not found["LDL"] and not found["STL"]


def test_every_machine_instruction_is_looked_for():
    words = {"HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "FFMA", "IMAD", "STSM"}
    assert set(MACHINE) == words
