"""Readers of programs: bytecode, loops, and the values that an iteration reads before it writes them."""
