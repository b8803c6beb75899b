"""What can be read from the text of PTX: which operands (`$0`, `$1` …) its instructions write."""

from __future__ import annotations

import re

OPERAND = re.compile(r"\$(\d+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(
    r"(?:[\s{}]|[\w$%]+\s*:(?!:)|@!?\s*[\w$%]+)*"  # braces, labels, predicates
    r"(?P<word>[A-Za-z_][\w.:]*)(?P<operands>.*)",
    re.DOTALL,
)
# instructions whose first operand is a register that they read; `[…]` in front is an address
_READERS = re.compile(
    r"(?:st|red|multimem\.(?:st|red)|bar(?:rier)?(?!.*\.red)|membar|fence|nanosleep|bra|brx|call|"
    r"ret|exit|trap|brkpt|pmevent|setmaxnreg|griddepcontrol|cp|prefetchu?|discard|applypriority|"
    r"stmatrix|tcgen05\.(?:dealloc|st|relinquish_alloc_permit|commit|wait|fence|cp|shift)|"
    r"wgmma\.(?:fence|commit_group|wait_group)|mbarrier\.(?:init|inval|expect_tx|complete_tx)|"
    r"tensormap)(?![a-z0-9_])"
)


def named_operands(text: str) -> set[int]:
    return {int(n) for n in OPERAND.findall(_COMMENT.sub(" ", text))}


def written_operands(text: str) -> set[int]:
    """The operands that stand where instructions have their results.

    >>> sorted(written_operands("{ mul.lo.s32 $1, $3, $4; @p mov.b64 {$2, t}, $5; }"))
    [1, 2]
    >>> sorted(written_operands("st.global.b32 [$1], $2; bar.sync $3;"))
    []
    """
    found: set[int] = set()
    for statement in _COMMENT.sub(" ", text).split(";"):
        head = _HEAD.match(statement)
        if head is not None and not _READERS.match(head["word"]):
            found |= named_operands(_first(head["operands"]))
    return found


def _first(operands: str) -> str:
    """Up to the first comma outside braces; '' of an address."""
    operands, depth = operands.strip(), 0
    if operands.startswith("["):
        return ""
    for at, letter in enumerate(operands):
        depth += (letter in "{(") - (letter in "})")
        if letter == "," and depth == 0:
            return operands[:at]
    return operands
