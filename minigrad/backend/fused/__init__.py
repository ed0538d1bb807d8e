"""Operations on arrays that a kernel does in one pass, each beside its reference; see `minigrad.backend.kernels`."""
