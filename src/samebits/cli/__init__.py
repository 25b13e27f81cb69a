"""The command `samebits`."""

from samebits.cli.app import main as main
