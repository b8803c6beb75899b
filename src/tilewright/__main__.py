"""`python -m tilewright`."""

from tilewright.tools.cli import main

main()
