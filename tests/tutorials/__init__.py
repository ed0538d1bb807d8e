"""Data parallelism as tutorials for PyTorch teach it, typed by a user who changes the import alone."""
