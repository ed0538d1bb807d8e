"""Every kernel against its reference, by the launch functions of the framework.

The tests take a fixture `on` that moves a NumPy array to where the kernels run: tests/kernels runs them on the CPU, in
several orders of the threads and shapes of launches, tests/gpu on a device.
"""
