"""A word of another language is answered by how its meaning is said here."""

import re

import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.lang.meanings import MEANINGS

WORDS = {word for word in dir(T) if not word.startswith("_")}


def fix_of(word):
    with pytest.raises(tw.CompileError, match=f"T.{word} is not a word") as caught:
        getattr(T, word)
    return caught.value.diagnostic


@pytest.mark.parametrize(
    "word, said",
    [
        ("relu6", "T.clamp(x, 0, 6)"), ("Relu", "T.relu"), ("reluu", "T.relu"),
        ("softmax", "T.max(x, dim=1, keepdim=True)"), ("avg", "T.mean"), ("std", "T.var(x, dim=1)"),
        ("zeros_like", "T.zeros"), ("select", "T.where"), ("matmul", "A[m, k] @ B[k, n]"),
        ("ldg", "T.load(A[m, :])"), ("swish", "T.silu"),
        ("program_id", "names the block's index"), ("atomicAdd", "atomic_add"),
        ("gemmm", "did you mean T.gemm?"), ("aloc_shared", "did you mean T.alloc_shared?"),
        ("reduce_summ", "did you mean T.reduce_sum?"), ("Fill", "did you mean T.fill?"),
    ],
)  # fmt: skip
def test_the_nearest_meaning(word, said):
    assert said in fix_of(word).fix


def test_a_word_under_another_name_is_put_in_its_place():
    assert fix_of("select").repair("T.select(a, b, c)") == "T.where(a, b, c)"


@pytest.mark.parametrize("word", list(MEANINGS))
def test_meanings_are_said_in_words_that_exist(word):
    assert word not in WORDS
    for used in re.findall(r"T\.(\w+)", MEANINGS[word]):
        assert used in WORDS or used.endswith("_")
