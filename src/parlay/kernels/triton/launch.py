"""What all launches have in common.

Row invariance on a GPU takes more than sums in one order. Triton compiles a kernel anew for an argument that is 1 or
a multiple of 16, and for a pointer that is aligned; the code, and with it the order of a sum, may then be another
one. So the number of rows is the grid and never an argument, or it is named in `do_not_specialize`; widths of a
weight may be specialised, since they are the same for all rows.
"""

from typing import Any

import triton
import triton.language as tl

# No product and sum become one operation: what `base` says is rounded is rounded, as on the CPU.
EXACT: dict[str, Any] = {"enable_fp_fusion": False}

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def padded(n: int) -> int:
    """Return the least power of two that is not below n: the length of a vector that holds n numbers."""
    return int(triton.next_power_of_2(max(n, 1)))


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Return float32 numbers rounded to `dtype`, in float32."""
    if INTERPRETED:
        if dtype == tl.bfloat16:  # the interpreter would cut off what does not fit
            bits = x.to(tl.uint32, bitcast=True)
            even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            y = tl.where(x == x, even.to(tl.float32, bitcast=True), x)
        else:
            y = x
    else:
        y = x.to(dtype).to(tl.float32)
    return y


@triton.jit
def dot(a, b, total):
    """Return `total + a b` in float32; the interpreter cannot multiply bfloat16, whose products are exact there."""
    if INTERPRETED or a.dtype != b.dtype:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def arrived_last(counter, programs):
    """Whether this program is the last of so many to come here; it then sees all that they have stored before.

    What they have stored is to be read with the cache modifier `.cg`. The counter is 0 before and afterwards.
    """
    tl.debug_barrier()  # all threads of the program have stored
    is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1
    if is_last:
        tl.store(counter, 0)
    return is_last
