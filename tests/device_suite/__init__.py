"""What must hold on a GPU: run on the stand-in for CuPy by tests/unit/test_strict_device.py, on a card by tests/gpu.

Who imports these tests gives the fixtures `cuda`, a Device, and `cupy`, its array module.
"""
