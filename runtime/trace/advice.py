"""What to write instead of what cannot be traced: a name in, one sentence for the message out."""

# NumPy functions and array methods without a rule.
WRITE_INSTEAD = {
    "average": "write (x * w).sum(axis) / w.sum(axis)",
    "reshape": "reshape outside; x[:, None], x.T and np.broadcast_to are supported",
    "diff": "compute it outside the compiled function",
    "zeros": "write np.zeros_like(x)",
    "ones": "write np.ones_like(x)",
    "full": "write np.full_like(x, value)",
    "copyto": "write np.full_like(x, value) for np.full, or np.where(mask, new, x)",
    "norm": "write np.sqrt((x * x).sum(axis))",
    "percentile": "compute it outside the compiled function",
    "quantile": "compute it outside the compiled function",
    "concatenate": "return the parts and join them outside",
    "stack": "return the parts and join them outside",
    "sort": "sort outside the compiled function",
    "cumsum": "compute it outside the compiled function",
    "array_equal": "write np.all(a == b) for arrays of equal shape",
    "median": "compute it outside the compiled function",
    "nanmax": "write np.where(np.isnan(x), -np.inf, x).max(axis)",
    "nanmin": "write np.where(np.isnan(x), np.inf, x).min(axis)",
    "nanvar": "write np.var(x, axis, where=~np.isnan(x))",
    "nanstd": "write np.std(x, axis, where=~np.isnan(x))",
    "nanargmax": "write np.where(np.isnan(x), -np.inf, x).argmax(axis)",
    "nanargmin": "write np.where(np.isnan(x), np.inf, x).argmin(axis)",
    "nonzero": "its size depends on the data: use np.where(mask, a, b) with three arguments",
}

# out= inside a trace.
NO_OUT = "leave it out here; the caller may pass out= to the compiled function"

# Methods of ufuncs.
METHODS_ADVICE = {
    "reduce": "np.add, np.multiply, np.maximum, np.minimum, np.logical_* and np.bitwise_* reduce",
    "accumulate": "running sums are not supported yet: compute them outside the compiled function",
    "reduceat": "write x.sum(axis) over whole axes",
    "outer": "write a[:, None] * b[None, :] with the operator in question",
    "at": "write x = np.where(mask, new, x)",
}

# Array attributes without a rule.
NO_ATTRIBUTE = {
    "fill": "write x = np.full_like(x, value)",
    "ptp": "write np.ptp(x, axis); NumPy 2 has no such method",
    "strides": "strides belong to a call, not to the function: look at them outside",
    "flags": "memory layout belongs to a call, not to the function: look at it outside",
    "data": "use the array itself",
    "flat": "compute on the whole array",
    "unsqueeze": "write np.expand_dims(x, axis), or x[:, None]",
    "permute": "write x.transpose(axes)",
    "numel": "write x.size",
    "view": "write x.astype(dtype); bits cannot be reinterpreted yet",
}
