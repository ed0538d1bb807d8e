"""PyTorch's own samples (`op_db`, `module_db` and `optim_db` of `torch.testing._internal`), put to both libraries.

`python -m tests.parity.samples` writes the committed table again; see `__main__.py`.
"""
