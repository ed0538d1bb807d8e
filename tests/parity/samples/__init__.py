"""PyTorch's own samples (`op_db`, `module_db` and `optim_db` of `torch.testing._internal`), put to both libraries.

    python -m tests.parity.samples            # write the committed table again (needs PyTorch)
    python -m tests.parity.samples relu cat   # show what these give, and write nothing
"""
