"""`python -m samebits` is the command `samebits`."""

from samebits.cli import main

main()
