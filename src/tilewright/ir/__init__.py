"""The IR. Its text form is loaded with it: expressions print themselves by it."""

from tilewright.ir import text as text
