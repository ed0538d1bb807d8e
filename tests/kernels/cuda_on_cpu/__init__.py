"""Runs CUDA kernels on NumPy arrays: compiled by g++, one thread at a time, every access to memory checked.

What it does not show: speed, the memory model between blocks, inline PTX, cooperative groups, tensor cores. Kernels
keep to C++17, `_sync` intrinsics, static shared memory, and the conversions of cuda_fp16.h and cuda_bf16.h.
"""

from tests.kernels.cuda_on_cpu.loader import HostKernels, StandInKernels
from tests.kernels.cuda_on_cpu.module import CpuKernel, CpuModule
