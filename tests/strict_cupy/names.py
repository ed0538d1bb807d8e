"""What CuPy 14.2 has, as `dir(cupy)` and the signatures of its functions tell."""

# Names that cupy shares with numpy 2.4. What is not here is missing in CuPy, whatever NumPy adds later.
PRESENT = frozenset(
    """
    abs absolute acos acosh add all allclose amax amin angle any append apply_along_axis apply_over_axes arange
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere around
    array array2string array_equal array_equiv array_repr array_split array_str asanyarray asarray
    asarray_chkfinite ascontiguousarray asfortranarray asin asinh astype atan atan2 atanh atleast_1d atleast_2d
    atleast_3d average bartlett base_repr binary_repr bincount bitwise_and bitwise_count bitwise_invert
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman bool bool_ broadcast
    broadcast_arrays broadcast_shapes broadcast_to byte c_ can_cast cbrt cdouble ceil choose clip column_stack
    common_type complex128 complex64 complexfloating compress concat concatenate conj conjugate convolve copy
    copysign copyto corrcoef correlate cos cosh count_nonzero cov cross csingle cumprod cumsum cumulative_prod
    cumulative_sum deg2rad degrees delete diag diag_indices diag_indices_from diagflat diagonal diff digitize
    divide divmod dot double dsplit dstack dtype e ediff1d einsum empty empty_like equal euler_gamma exp exp2
    expand_dims expm1 extract eye fabs fill_diagonal finfo fix flatiter flatnonzero flip fliplr flipud float16
    float32 float64 float_power floating floor floor_divide fmax fmin fmod format_float_positional
    format_float_scientific frexp from_dlpack frombuffer fromfile fromfunction fromiter fromstring full
    full_like gcd generic genfromtxt get_printoptions gradient greater greater_equal half hamming hanning
    heaviside histogram histogram2d histogramdd hsplit hstack hypot i0 identity iinfo imag index_exp indices
    inexact inf inner int16 int32 int64 int8 int_ intc integer interp intersect1d intp invert isclose iscomplex
    iscomplexobj isdtype isfinite isfortran isin isinf isnan isneginf isposinf isreal isrealobj isscalar
    issubdtype iterable ix_ kaiser kron lcm ldexp left_shift less less_equal lexsort linspace load loadtxt log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logspace long longlong
    mask_indices matmul matrix_transpose max maximum may_share_memory mean median meshgrid mgrid min
    min_scalar_type minimum mintypecode mod modf moveaxis multiply nan nan_to_num nanargmax nanargmin nancumprod
    nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar ndarray ndim ndindex negative newaxis
    nextafter nonzero not_equal number ogrid ones ones_like outer packbits pad partition percentile permute_dims
    pi piecewise place poly poly1d polyadd polyfit polymul polysub polyval positive pow power printoptions prod
    promote_types ptp put put_along_axis putmask quantile r_ rad2deg radians ravel ravel_multi_index real
    real_if_close reciprocal remainder repeat require reshape resize result_type right_shift rint roll rollaxis
    roots rot90 round row_stack s_ save savetxt savez savez_compressed searchsorted select set_printoptions
    setdiff1d setxor1d shape shares_memory short sign signbit signedinteger sin sinc single sinh size sort
    sort_complex split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh
    tensordot tile trace transpose trapezoid tri tril tril_indices tril_indices_from trim_zeros triu
    triu_indices triu_indices_from true_divide trunc typename ubyte ufunc uint uint16 uint32 uint64 uint8 uintc
    uintp ulong ulonglong union1d unique unique_all unique_counts unique_inverse unique_values unpackbits
    unravel_index unsignedinteger unwrap ushort vander var vdot vectorize vsplit vstack where zeros zeros_like
    """.split()
)

LINALG = frozenset(
    """
    LinAlgError cholesky cond cross det eig eigh eigvals eigvalsh inv lstsq matmul matrix_power matrix_rank
    matrix_transpose norm pinv qr slogdet solve svd tensorinv tensorsolve
    """.split()
)

# Methods of cupy.random.Generator. The others of NumPy's are missing: normal, permutation, shuffle, choice, spawn ...
GENERATOR = frozenset(
    """
    beta binomial chisquare dirichlet exponential f gamma geometric hypergeometric integers logseries poisson power
    random standard_exponential standard_gamma standard_normal uniform
    """.split()
)

# Keywords of NumPy's function that CuPy's does not take.
_CREATION = frozenset({"device", "like", "subok"})
REFUSED_KEYWORDS = {
    **dict.fromkeys("all any mean nanmean count_nonzero".split(), frozenset({"where"})),
    **dict.fromkeys(
        "amax amin max min prod sum nanmax nanmin nanprod nansum".split(), frozenset({"initial", "where"})
    ),
    **dict.fromkeys("std var nanstd nanvar".split(), frozenset({"where", "mean", "correction"})),
    **dict.fromkeys(
        "arange array asarray asanyarray ascontiguousarray asfortranarray astype empty empty_like eye full full_like "
        "identity linspace ones ones_like tri zeros zeros_like broadcast_to broadcast_arrays copy".split(),
        _CREATION,
    ),
    **dict.fromkeys("argsort sort".split(), frozenset({"order", "stable"})),
    **dict.fromkeys("argpartition partition".split(), frozenset({"kind", "order"})),
    "clip": frozenset({"min", "max"}),
    "einsum": frozenset({"out", "order", "casting"}),
    "isin": frozenset({"kind"}),
    "percentile": frozenset({"weights"}),
    "quantile": frozenset({"weights"}),
    "reshape": frozenset({"shape"}),
    "sliding_window_view": frozenset({"subok", "writeable"}),
    "take": frozenset({"mode"}),
    "trim_zeros": frozenset({"axis"}),
    "unique": frozenset({"sorted"}),
}

# Functions whose result has a size that only the device knows, or that read a value back: they wait for the GPU.
WAITING = frozenset(
    """
    argwhere array2string array_repr array_str bincount compress delete extract flatnonzero histogram intersect1d
    nonzero save savez setdiff1d setxor1d trim_zeros union1d unique unique_all unique_counts unique_inverse
    unique_values
    """.split()
)

SORTS = frozenset({"argsort", "sort"})  # what Thrust does, in one way

# Functions whose results lie as the array that they were given, where others allocate in C order.
KEEPING_ORDER = frozenset({"full_like", "ones_like", "zeros_like"})

# Functions that call cuBLAS or its kin, beside the products: not while a stream is captured.
CUBLAS = frozenset(
    "cholesky cond det eigh eigvalsh inner inv kron lstsq matrix_power pinv qr slogdet solve svd tensordot vdot".split()
)

# Methods of cupy.ndarray that only forward to NumPy's, with the keywords that CuPy takes.
_REDUCTION = frozenset({"axis", "dtype", "out", "keepdims"})
METHODS = {
    **dict.fromkeys(["all", "any", "max", "min"], frozenset({"axis", "out", "keepdims"})),
    **dict.fromkeys(["argmax", "argmin", "mean", "prod", "sum"], _REDUCTION),
    **dict.fromkeys(["std", "var"], _REDUCTION | {"ddof"}),
    **dict.fromkeys(["cumprod", "cumsum"], frozenset({"axis", "dtype", "out"})),
    "argpartition": frozenset({"kth", "axis"}),
    "argsort": frozenset({"axis", "kind"}),
    "clip": frozenset({"min", "max", "out"}),
    "conj": frozenset(),
    "conjugate": frozenset(),
    "diagonal": frozenset({"offset", "axis1", "axis2"}),
    "flatten": frozenset({"order"}),
    "nonzero": frozenset(),
    "ravel": frozenset({"order"}),
    "repeat": frozenset({"repeats", "axis"}),
    "round": frozenset({"decimals", "out"}),
    "searchsorted": frozenset({"v", "side", "sorter"}),
    "squeeze": frozenset({"axis"}),
    "swapaxes": frozenset({"axis1", "axis2"}),
    "take": frozenset({"indices", "axis", "out"}),
    "trace": frozenset({"offset", "axis1", "axis2", "dtype", "out"}),
    "transpose": frozenset({"axes"}),
    "view": frozenset({"dtype"}),
}
VIEWS = frozenset({"diagonal", "ravel", "reshape", "squeeze", "swapaxes", "transpose", "view"})  # on any device

# dtypes that cupy's atomic ufunc.at takes.
AT_DTYPES = {
    "add": frozenset({"int32", "int64", "uint32", "uint64", "float16", "float32", "float64"}),
    "subtract": frozenset({"int32", "int64", "uint32", "uint64", "float16", "float32", "float64"}),
    "maximum": frozenset({"int32", "int64", "uint32", "uint64", "float32", "float64"}),
    "minimum": frozenset({"int32", "int64", "uint32", "uint64", "float32", "float64"}),
    "bitwise_and": frozenset({"int32", "int64", "uint32", "uint64"}),
    "bitwise_or": frozenset({"int32", "int64", "uint32", "uint64"}),
    "bitwise_xor": frozenset({"int32", "int64", "uint32", "uint64"}),
}
