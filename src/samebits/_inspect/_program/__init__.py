"""Reading programs: bytecode, loops, and which values an iteration reads before it writes them."""
