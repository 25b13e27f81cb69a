"""Calls of `enable_op_determinism` with arguments that it does not have: the error has the line to type."""

from __future__ import annotations

import re

from samebits._inspect.user_call import WrongCall

_MEANT = (
    (
        r"machine|cpus?\b|hardware|arch|vendor",
        "the same bits on every x86-64 CPU with AVX2 and FMA",
        'samebits.enable_op_determinism(across="machines")',
    ),
    (
        r"thread|core|omp",
        "the same bits on any number of threads",
        'samebits.enable_op_determinism(across="threads")',
    ),
    (r"warn", "a warning in place of an error", 'samebits.enable_op_determinism(on_unimplemented="warn")'),
    (r"seed", "a seed", "samebits.set_random_seed(seed)"),
)
"""A word in an argument, the effect that was meant, and the line to type."""


def explain(call: WrongCall) -> str:
    """Returns the message for a call that does not fit the signature."""
    given = ", ".join(
        [*map(repr, call.args), *(f"{name}={value!r:.40}" for name, value in call.named.items())]
    )
    problem = (
        f"there is no argument {', '.join(call.unknown)}"
        if call.unknown
        else "each argument after the first needs its name"
    )
    asked = {name: call.named[name] for name in call.unknown if call.named[name] is not False}
    words = " ".join(f"{name} {value}" for name, value in asked.items()).lower()
    for pattern, effect, line in _MEANT:
        if re.search(pattern, words):
            return f"enable_op_determinism({given}): {problem}. For {effect} type\n    {line}"
    return (
        f"enable_op_determinism({given}): {problem}. "
        "Its arguments are enabled, across and on_unimplemented:\n"
        '    samebits.enable_op_determinism(across="threads")'
    )
