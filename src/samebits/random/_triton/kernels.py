"""The kernels: Triton's language, typed by its compiler; `launch` calls them.

Without a GPU they run in Triton's interpreter, which computes with NumPy. What it does otherwise than a GPU,
and what keeps the two together:

- fma rounds the product too, and the cast to bfloat16 truncates: `arithmetic` has forms that are exact in
  both. A condition becomes bfloat16 by way of float32, since the interpreter takes its bits. There is no ~ of
  unsigned words.
- NumPy contracts no product and sum, and divides and takes roots as IEEE 754 says. A GPU does so with fp
  fusion off, `div_rn` and `sqrt_rn` (`elementary`): the interpreter cannot show it, the PTX and the machine
  code in the tests do.
- Minus is 0 - x in both, where the CPU's kernels flip the sign: `negated`. A comparison of numbers does not
  see it.
- Integers wrap in both. 64-bit places and launches of more programs than a test can interpret remain to the
  GPU.
- Python's floats stay what they are, where a launch makes them float32: the parameters are annotated as
  float64.
- It is given numbers as they are. A launch compiles anew for integers that 16 divides: wanted of `per_row`,
  which makes the stores of one key vectors, and refused of all others (`do_not_specialize`).
- It runs what the compiler refuses: a variable that changes its shape in a loop, `in`, code after a branch on
  a constant that returned. So every kernel is compiled ahead of time in a test, too.
"""

import triton
import triton.language as tl

from samebits.random._cpu import transformed_kernels as cpu
from samebits.random._triton.elementary import (
    box_muller,
    constants,
    divided,
    fma,
    log,
    negated,
    polynomial,
    rounded,
    sqrt,
    widened,
)
from samebits.random._triton.philox import above, block, in_order_2, in_order_4, lanes, main_block, repeated

# Kernels that fill rows from keys: the Triton counterparts of `_cpu.philox.fill_words` and of
# `_cpu.uniform_normal_kernels`.


@triton.jit(do_not_specialize=["rows", "number", "first"])
def folded(keys, out, rows: tl.uint64, number: tl.uint64, first: tl.uint64, BLOCKS: tl.constexpr):
    """Row i of `out`, (number, rows, 2): the keys that `first` + i makes of the keys, half of a block."""
    place = tl.program_id(0).to(tl.uint64) * BLOCKS + tl.arange(0, BLOCKS).to(tl.uint64)
    rows = rows.to(tl.uint64)
    inside = place < rows * number.to(tl.uint64)
    row = place % rows
    seed = tl.load(keys + 2 * row, mask=inside, other=0)
    offset = tl.load(keys + 2 * row + 1, mask=inside, other=0)
    w0, w1, w2, w3 = main_block(seed, offset + first.to(tl.uint64) + place // rows)
    tl.store(out + 2 * place, above(w1, w0), mask=inside)
    tl.store(out + 2 * place + 1, above(w3, w2), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def words(
    keys, out, rows: tl.uint64, per_row: tl.uint64,
    BYTES: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """The bytes of the stream, to an unsigned dtype of BYTES bytes, little-endian."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 16 // BYTES, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    if BYTES == 8:
        x = in_order_2(above(w1, w0), above(w3, w2))
    else:
        x = _parts(in_order_4(w0, w1, w2, w3), 4, BYTES)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _parts(x, HAVE: tl.constexpr, WANT: tl.constexpr):
    """Numbers of HAVE bytes cut into such of WANT bytes, the lower ones first."""
    if HAVE == WANT:
        return x
    else:
        digits: tl.constexpr = 4 * HAVE
        return _parts(in_order_2(x & ((1 << digits) - 1), x >> digits), HAVE // 2, WANT)


@triton.jit(do_not_specialize=["rows"])
def uniform_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.float64, span: tl.float64, DIGITS: tl.constexpr,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Numbers of [low, low + span) from the lowest DIGITS bits of a word; to float32, float16 or bfloat16."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_4(w0, w1, w2, w3) & ((1 << DIGITS) - 1)
    x = fma(word.to(tl.float32) * 2.0**-DIGITS, scalar(span, tl.float32), scalar(low, tl.float32))
    tl.store(out + place, rounded(x, out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def uniform_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.float64, span: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Numbers of [low, low + span) from 53 bits of two words, the first one above; to float64."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_2(above(w0, w1), above(w2, w3)) & (2**53 - 1)
    x = fma(word.to(tl.float64) * 2.0**-53, scalar(span, tl.float64), scalar(low, tl.float64))
    tl.store(out + place, x, mask=inside)


@triton.jit
def scalar(x, DTYPE: tl.constexpr):
    """A kernel's float parameter, float64, as DTYPE: Triton would pass Python's floats as float32."""
    return tl.full((1,), x, tl.float64).to(DTYPE)


@triton.jit(do_not_specialize=["rows"])
def normal_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64, mean: tl.float64, std: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Normal numbers, two from two words each; to float32, float16 or bfloat16."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    x0, x1 = box_muller(float32_in_0_1(w0), float32_in_0_1(w1))
    x2, x3 = box_muller(float32_in_0_1(w2), float32_in_0_1(w3))
    x = fma(in_order_4(x0, x1, x2, x3), scalar(std, tl.float32), scalar(mean, tl.float32))
    tl.store(out + place, rounded(x, out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def normal_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64, mean: tl.float64, std: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Normal numbers, two from two pairs of words; to float64."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    x0, x1 = box_muller(float64_in_0_1(w0, w1), float64_in_0_1(w2, w3))
    x = fma(in_order_2(x0, x1), scalar(std, tl.float64), scalar(mean, tl.float64))
    tl.store(out + place, x, mask=inside)


@triton.jit
def float32_in_0_1(word):
    """The float32 next to (float32(word) + 1/2) / 2**32; the product is exact, only the sum is rounded."""
    return word.to(tl.float32) * 2.0**-32 + 2.0**-33


@triton.jit
def float64_in_0_1(high, low):
    """The float64 next to (2**32 high + low + 1/2) / 2**64."""
    least = tl.full(low.shape, 2.0**-65, tl.float64)
    scale = tl.full(low.shape, 2.0**-32, tl.float64)
    return fma(high.to(tl.float64), scale, fma(low.to(tl.float64) * 2.0**-32, scale, least))


# Bernoulli numbers and dropout: the Triton form of `samebits.random._cpu.bernoulli_masks`, which states the
# rule.


@triton.jit(do_not_specialize=["rows", "below"])
def bernoulli(
    keys,
    out,
    rows: tl.uint64,
    per_row: tl.uint64,
    below: tl.uint64,
    BLOCKS: tl.constexpr,
    ONE_KEY: tl.constexpr,
):
    """Ones where the word is less than `below`, else zeros; to any dtype."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    _store_condition(out + place, in_order_4(w0, w1, w2, w3) < below.to(tl.uint32), inside)


@triton.jit(do_not_specialize=["rows"])
def bernoulli_each(
    keys, out, p, rows: tl.uint64, per_row: tl.uint64, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr
):
    """As `bernoulli`, each number with its own float64 probability."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    probability = tl.load(p + place, mask=inside, other=0.0)
    word = in_order_4(w0, w1, w2, w3)
    _store_condition(out + place, word.to(tl.float64) + 1.0 <= probability * 2.0**32, inside)


@triton.jit
def _store_condition(pointers, condition, mask):
    dtype: tl.constexpr = pointers.dtype.element_ty
    if dtype.is_floating():
        tl.store(pointers, rounded(tl.where(condition, 1.0, 0.0), dtype), mask=mask)
    else:
        tl.store(pointers, condition.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["rows", "below"])
def dropout(
    keys, out, source, rows: tl.uint64, per_row: tl.uint64, below: tl.uint64, scale: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """`source` times 0 where the word is below `below`, else times `scale`; backward too, of the gradient."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    x = widened(tl.load(source + place, mask=inside, other=0.0))
    factor = tl.where(in_order_4(w0, w1, w2, w3) < below.to(tl.uint32), 0.0, scalar(scale, x.dtype))
    tl.store(out + place, rounded(x * factor, out.dtype.element_ty), mask=inside)


# Integers below a bound without bias: the Triton counterpart of `samebits.random._cpu.bounded_integers`,
# which states the method.


@triton.jit(do_not_specialize=["rows", "low", "most", "threshold"])
def integers_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.uint64, most: tl.uint64, threshold: tl.uint64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """low + floor(w (most + 1) / 2**32) of words w whose product's lower digits are at least `threshold`."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    upper, lower = _times_32(in_order_4(w0, w1, w2, w3), most)
    rejected = inside & (lower < threshold.to(tl.uint64))
    attempt = tl.zeros(place.shape, tl.uint32)
    position = tl.arange(0, 4 * BLOCKS).to(tl.uint32) % 4
    while _any(rejected):
        attempt += 1
        again, lower = _times_32(_first(seed, offset, attempt, position, 4), most)
        upper = tl.where(rejected, again, upper)
        rejected &= lower < threshold.to(tl.uint64)
    tl.store(out + place, (low.to(tl.uint64) + upper).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "low", "most", "threshold"])
def integers_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.uint64, most: tl.uint64, threshold: tl.uint64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """As `integers_32`, of two words each, the upper first."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    upper, lower = _times_64(in_order_2(above(w0, w1), above(w2, w3)), most)
    rejected = inside & (lower < threshold.to(tl.uint64))
    attempt = tl.zeros(place.shape, tl.uint32)
    position = tl.arange(0, 2 * BLOCKS).to(tl.uint32) % 2
    while _any(rejected):
        attempt += 1
        again, lower = _times_64(_first(seed, offset, attempt, position, 2), most)
        upper = tl.where(rejected, again, upper)
        rejected &= lower < threshold.to(tl.uint64)
    tl.store(out + place, (low.to(tl.uint64) + upper).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _first(seed, offset, attempt, position, PER_BLOCK: tl.constexpr):
    """The word of attempt 1, 2, ... at every number's position in its block."""
    w0, w1, _2, _3 = block(repeated(seed, PER_BLOCK), repeated(offset, PER_BLOCK), attempt, position + 1)
    if PER_BLOCK == 4:
        return w0
    else:
        return above(w0, w1)


@triton.jit
def _times_32(word, most):
    """Upper and lower 32 bits of word (most + 1)."""
    product = word.to(tl.uint64) * most.to(tl.uint64) + word.to(tl.uint64)
    return product >> 32, product & 0xFFFFFFFF


@triton.jit
def _times_64(word, most):
    """Upper and lower 64 bits of word (most + 1)."""
    most = most.to(tl.uint64)
    lower = word * most + word
    return tl.umulhi(word, most + tl.zeros_like(word)) + (lower < word).to(tl.uint64), lower


@triton.jit
def _any(condition):
    return tl.max(condition.to(tl.int32), axis=0) > 0


# Keyed permutations: the Triton counterpart of the kernels of `samebits.random._draws.feistel`, which
# states the method.


_MIX_1, _MIX_2 = tl.constexpr(0xFF51AFD7ED558CCD), tl.constexpr(0xC4CEB9FE1A85EC53)


@triton.jit(do_not_specialize=["start", "n", "rows", "columns"])
def permute(
    round_keys, indices, out, number: tl.uint64, start: tl.uint64,
    n: tl.uint64, rows: tl.uint64, columns: tl.uint64,
    ROUNDS: tl.constexpr, GIVEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Row k of `out`, int64 (keys, number): images under key k of start, ..., or of `indices` where GIVEN."""
    number, n, rows, columns = (
        number.to(tl.uint64),
        n.to(tl.uint64),
        rows.to(tl.uint64),
        columns.to(tl.uint64),
    )
    programs_per_key = (number + (SIZE - 1)) // SIZE
    program = tl.program_id(0).to(tl.uint64)
    key = program // programs_per_key
    place = (program - key * programs_per_key) * SIZE + tl.arange(0, SIZE).to(tl.uint64)
    inside = place < number
    round_keys += key * ROUNDS
    if GIVEN:
        x = tl.load(indices + place, mask=inside, other=0).to(tl.uint64)
    else:
        x = tl.where(inside, start.to(tl.uint64) + place, 0)
    x = _feistel(round_keys, x, rows, columns, ROUNDS)
    outside = inside & (x >= n)
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        x = tl.where(outside, _feistel(round_keys, x, rows, columns, ROUNDS), x)
        outside = inside & (x >= n)
    tl.store(out + key * number + place, x.to(tl.int64), mask=inside)


@triton.jit
def _feistel(round_keys, x, rows, columns, ROUNDS: tl.constexpr):
    row = x % rows
    column = x // rows
    for pair in tl.static_range(ROUNDS // 2):
        row += _hash_below(column, tl.load(round_keys + 2 * pair), rows)
        row = tl.where(row >= rows, row - rows, row)
        column += _hash_below(row, tl.load(round_keys + 2 * pair + 1), columns)
        column = tl.where(column >= columns, column - columns, column)
    return column * rows + row


@triton.jit(do_not_specialize=["n"])
def shuffle(keys, out, n: tl.uint64, SIZE: tl.constexpr):
    """Fisher-Yates shuffles of range(n), n <= SIZE, each in a program's registers; `out`: int64 (keys, n)."""
    place = tl.arange(0, SIZE)
    order = tl.zeros((SIZE,), tl.int64)
    key = tl.load(keys + tl.program_id(0))
    size = n.to(tl.int32)
    for i in range(size):
        index = tl.full((1,), i, tl.int32).to(tl.uint64)
        j = tl.sum(_hash_below(index, key, index + 1)).to(tl.int32)
        moved = tl.sum(tl.where(place == j, order, 0))
        order = tl.where(place == i, moved, order)
        order = tl.where(place == j, i, order)
    tl.store(out + tl.program_id(0).to(tl.int64) * size + place, order, mask=place < size)


@triton.jit
def _hash_below(x, round_key, size):
    """murmur3's 64-bit finaliser of x under a key, upper 40 bits scaled to range(size), size <= 2**24."""
    x = (x ^ round_key) * _MIX_1
    x = (x ^ (x >> 33)) * _MIX_2
    return (((x ^ (x >> 33)) >> 24) * size) >> 40


# Exponential, Gumbel and truncated normal numbers: the Triton form of
# `samebits.random._cpu.transformed_kernels`, which explains them.


_A, _B, _C = constants(cpu._A[::-1]), constants(cpu._B[::-1]), constants(cpu._C[::-1])
_D, _E, _F = constants(cpu._D[::-1]), constants(cpu._E[::-1]), constants(cpu._F[::-1])
_LOG_MILLS = constants(cpu._LOG_MILLS[::-1])
_ONES = tl.constexpr(0xFFFFFFFF)  # the interpreter has no ~ of unsigned words


@triton.jit(do_not_specialize=["rows"])
def transformed_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64,
    p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64,
    p4: tl.float64, p5: tl.float64, p6: tl.float64,
    NAME: tl.constexpr, WIDE: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """A number of each word, computed in float64 if WIDE; to float32, float16 or bfloat16."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_4(w0, w1, w2, w3)
    if WIDE:
        u, complement = _float64_of(word), _float64_of(word ^ _ONES)
    else:
        u, complement = float32_in_0_1(word), float32_in_0_1(word ^ _ONES)
    x = _number(u, complement, p0, p1, p2, p3, p4, p5, p6, NAME).to(tl.float32)
    tl.store(out + place, rounded(x, out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def transformed_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64,
    p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64,
    p4: tl.float64, p5: tl.float64, p6: tl.float64,
    NAME: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """A number of each two words; to float64."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    high, low = in_order_2(w0, w2), in_order_2(w1, w3)
    u, complement = float64_in_0_1(high, low), float64_in_0_1(high ^ _ONES, low ^ _ONES)
    tl.store(out + place, _number(u, complement, p0, p1, p2, p3, p4, p5, p6, NAME), mask=inside)


@triton.jit
def _float64_of(word):
    """(word + 1/2) / 2**32, exactly."""
    return (word.to(tl.float64) + 0.5) * 2.0**-32


@triton.jit
def _number(u, complement, p0, p1, p2, p3, p4, p5, p6, NAME: tl.constexpr):
    if NAME == "exponential":
        return divided(_minus_log(u, complement), scalar(p0, u.dtype))
    elif NAME == "gumbel":
        return scalar(p0, u.dtype) - scalar(p1, u.dtype) * log(_minus_log(u, complement))
    elif NAME == "truncated":
        below, above, within = scalar(p0, tl.float64), scalar(p1, tl.float64), scalar(p2, tl.float64)
        z = _normal_quantile(below + u * within, above + complement * within)
        return _bounded(scalar(p3, tl.float64) + scalar(p4, tl.float64) * z, p5, p6)
    else:
        tl.static_assert(NAME == "far_tail")
        std = scalar(p4, tl.float64)
        below, above = tl.where(std > 0.0, u, complement), tl.where(std > 0.0, complement, u)
        start, beyond, within = scalar(p0, tl.float64), scalar(p1, tl.float64), scalar(p2, tl.float64)
        return _bounded(scalar(p3, tl.float64) + std * _far_tail(below, above, start, beyond, within), p5, p6)


@triton.jit
def _bounded(x, low, high):
    low, high = scalar(low, tl.float64), scalar(high, tl.float64)
    x = tl.where(low > x, low, x)
    return tl.where(high < x, high, x)


@triton.jit
def _minus_log(u, complement):
    return tl.where(u >= 0.5, complement - (1.0 - u), 0.0) - log(u)


@triton.jit
def _normal_quantile(below, above):
    left = below < above
    tail = tl.where(left, below, above)
    middle = 0.5 - tail
    r = 0.180625 - middle * middle
    inner = middle * polynomial(r, _A) / polynomial(r, _B)
    r = sqrt(-log(tail))
    near, far = r - 1.6, r - 5.0
    outer = polynomial(near, _C) / polynomial(near, _D)
    outer = tl.where(near <= 3.4, outer, polynomial(far, _E) / polynomial(far, _F))
    size = tl.where(middle <= 0.425, inner, outer)
    return tl.where(left, negated(size), size)


@triton.jit
def _log_mills_rest(w):
    return polynomial(w, _LOG_MILLS) * w


@triton.jit
def _far_tail(u, complement, a, beyond, within):
    t = _minus_log(beyond + complement * within, u * within)
    inverse = 1.0 / a
    at_a = _log_mills_rest(inverse * inverse)
    d = tl.zeros(u.shape, tl.float64)
    relative = tl.zeros(u.shape, tl.float64)
    for _ in tl.static_range(6):
        shrunk = 1.0 / (1.0 + relative)
        x_inverse = inverse * shrunk
        log_ratio = _minus_log(shrunk, relative * shrunk)
        half = (t - log_ratio + (_log_mills_rest(x_inverse * x_inverse) - at_a)) * inverse
        d = 2.0 * half / (1.0 + sqrt(1.0 + 2.0 * half * inverse))
        relative = d * inverse
    return d
