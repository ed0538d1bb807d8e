"""The machine: devices and their array modules, dtypes, random streams, kernels. The only importer of CuPy."""
