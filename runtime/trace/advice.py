"""What to write instead of what cannot be traced: a name in, one sentence for the message out."""

# NumPy functions and array methods without a rule.
WRITE_INSTEAD = {
    "average": "write (x * w).sum(axis) / w.sum(axis)",
    "zeros": "write np.zeros_like(x)",
    "ones": "write np.ones_like(x)",
    "full": "write np.full_like(x, value)",
    "percentile": "compute it outside the compiled function",
    "quantile": "compute it outside the compiled function",
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
    "take": "write x[i] for each literal index and np.stack them, or index outside",
    **dict.fromkeys(
        [
            "bincount",
            "convolve",
            "corrcoef",
            "cov",
            "det",
            "eigh",
            "gradient",
            "inv",
            "sliding_window_view",
            "svd",
        ],
        "compute it outside the compiled function",
    ),
    "insert": "write np.concatenate((x[:i], values, x[i:]), axis)",
    "delete": "write np.concatenate((x[:i], x[i + 1:]), axis)",
    "resize": "write np.tile and a slice, or x.reshape(shape) for as many elements",
    "nonzero": "its size depends on the data: use np.where(mask, a, b) with three arguments",
}

# out= inside a trace.
WRITE_INTO = (
    "to write into a new array, make it by np.zeros_like(x) instead of np.zeros or np.empty"
)
NO_OUT = "leave it out here; the caller may pass out= to the compiled function"

# Methods of ufuncs.
METHODS_ADVICE = {
    "reduce": "np.add, np.multiply, np.maximum, np.minimum, np.logical_* and np.bitwise_* reduce",
    "outer": "it takes two operands",
    "accumulate": "running sums are not supported yet: compute them outside the compiled function",
    "reduceat": "write x.sum(axis) over whole axes",
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
