"""What to write instead of what cannot be traced: a name in, one sentence for the message out."""

# NumPy functions and array methods without a rule.
WRITE_INSTEAD = {
    "mean": "write x.sum() / x.size, or x.sum(axis) / x.shape[axis] along an axis",
    "average": "write (x * w).sum(axis) / w.sum(axis)",
    "var": "write d = x - mean (keepdims=True); (d * d).sum() / x.size, "
    "or .sum(axis) / x.shape[axis]",
    "std": "write np.sqrt of the variance: ((x - mean) ** 2).sum() / x.size, "
    "or .sum(axis) / x.shape[axis]",
    "min": "write -((-x).max(axis))",
    "amin": "write -((-x).max(axis))",
    "any": "write (x != 0).max(axis)",
    "all": "write ~((x == 0).max(axis))",
    "prod": "write np.exp(np.log(x).sum(axis)) for positive x",
    "ptp": "write x.max(axis) + (-x).max(axis)",
    "dot": "write (a * b).sum() for vectors",
    "matmul": "write (a[:, :, None] * b[None, :, :]).sum(1) for small sizes",
    "reshape": "reshape outside; x[:, None], x.T and np.broadcast_to are supported",
    "tan": "write np.sin(x) / np.cos(x)",
    "log10": "write np.log(x) / np.log(10.0)",
    "cbrt": "write np.sign(x) * np.abs(x) ** (1 / 3)",
    "hypot": "write np.sqrt(a * a + b * b)",
    "nan_to_num": "write np.where(np.isnan(x), 0.0, x)",
    "heaviside": "write np.where(x > 0, 1.0, np.where(x == 0, half, 0.0))",
    "einsum": "write (a[:, :, None] * b[None, :, :]).sum(1) and the like",
    "zeros": "write np.zeros_like(x)",
    "ones": "write np.ones_like(x)",
    "full": "write np.full_like(x, value)",
    "minimum.reduce": "write -((-x).max(axis))",
    "concatenate": "return the parts and join them outside",
    "stack": "return the parts and join them outside",
    "sort": "sort outside the compiled function",
    "argmax": "compute it outside the compiled function",
    "argmin": "compute it outside the compiled function",
    "cumsum": "compute it outside the compiled function",
    "isclose": "write np.abs(a - b) <= atol + rtol * np.abs(b)",
    "allclose": "write ~((np.abs(a - b) > atol + rtol * np.abs(b)).max())",
    "nonzero": "its size depends on the data: use np.where(mask, a, b) with three arguments",
}

# Keywords of reductions.
KEYWORD_ADVICE = {
    "out": "leave it out here; the caller may pass out= to the compiled function",
    "where": "use np.where(mask, x, 0) as the operand",
    "initial": "do the arithmetic on the result",
}

# Methods of ufuncs.
METHODS_ADVICE = {
    "reduce": "np.add.reduce and np.maximum.reduce are supported: write x.sum(axis) or x.max(axis)",
    "accumulate": "running sums are not supported yet: compute them outside the compiled function",
    "reduceat": "write x.sum(axis) over whole axes",
    "outer": "write a[:, None] * b[None, :] with the operator in question",
    "at": "write x = np.where(mask, new, x)",
}

# Array attributes without a rule.
NO_ATTRIBUTE = {
    "fill": "write x = np.full_like(x, value)",
    "strides": "strides belong to a call, not to the function: look at them outside",
    "flags": "memory layout belongs to a call, not to the function: look at it outside",
    "data": "use the array itself",
    "flat": "compute on the whole array",
    "view": "write x.astype(dtype); bits cannot be reinterpreted yet",
}
