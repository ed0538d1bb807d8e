#pragma once
// What every kernel file starts from: conversions between dtypes, and reductions over a warp and over a block.
//
// C++17 that NVRTC, nvcc and (through the tests' stand-in for CUDA) g++ accept: no host code, no library headers
// besides the two below.
//
// Numerics. Work is done in compute_t<T>: double for double, float for everything narrower. Converting to a narrower
// type rounds to nearest even. Reductions combine values in one fixed tree, so equal inputs give equal bits.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace mg {

constexpr int warp_size = 32;
constexpr int max_warps = 32;  // of a block: 1024 threads
constexpr unsigned all_lanes = 0xffffffffu;

// ---------------------------------------------------------------------------------------------------------- dtypes

template <typename T> struct compute { using type = float; };
template <> struct compute<double> { using type = double; };
template <typename T> using compute_t = typename compute<T>::type;

template <typename T> __device__ __forceinline__ compute_t<T> widen(T x) { return x; }
template <> __device__ __forceinline__ float widen(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T narrow(compute_t<T> x) { return x; }
template <> __device__ __forceinline__ __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// ------------------------------------------------------------------------------------------------------ operations
// Each has an identity, which threads without an element contribute. NaN wins in max and min, as in NumPy.

template <typename T> __device__ __forceinline__ T infinity() { return static_cast<T>(__int_as_float(0x7f800000)); }

struct Sum {
    template <typename T> static __device__ __forceinline__ T identity() { return T(0); }
    template <typename T> static __device__ __forceinline__ T combine(T x, T y) { return x + y; }
};

struct Max {
    template <typename T> static __device__ __forceinline__ T identity() { return -infinity<T>(); }
    template <typename T> static __device__ __forceinline__ T combine(T x, T y) { return x > y || x != x ? x : y; }
};

struct Min {
    template <typename T> static __device__ __forceinline__ T identity() { return infinity<T>(); }
    template <typename T> static __device__ __forceinline__ T combine(T x, T y) { return x < y || x != x ? x : y; }
};

// ------------------------------------------------------------------------------------------------------ reductions

// Over the 32 lanes of a warp, all of which must call it; every lane gets the result.
template <typename Op, typename T> __device__ __forceinline__ T warp_reduce(T x) {
    for (int distance = warp_size / 2; distance > 0; distance /= 2)
        x = Op::combine(x, __shfl_xor_sync(all_lanes, x, distance));
    return x;
}

// Over a one-dimensional block of whole warps, all threads of which must call it; every thread gets the result.
// May be called again at once: nobody writes `partial` before everybody has read it.
template <typename Op, typename T> __device__ __forceinline__ T block_reduce(T x) {
    __shared__ T partial[max_warps];
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const int warps = blockDim.x / warp_size;
    x = warp_reduce<Op>(x);
    __syncthreads();
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return warp_reduce<Op>(lane < warps ? partial[lane] : Op::template identity<T>());
}

// Whether the calling block is the last one of a launch to come here; all its threads call it, once in a launch. It sees
// what the others wrote before they came, if it reads that as volatile. `arrived` is 0 before the launch, and after it.
__device__ __forceinline__ bool is_last_block(unsigned* arrived) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
        if (last) atomicExch(arrived, 0u);
    }
    __syncthreads();
    __threadfence();
    return last;
}

// ----------------------------------------------------------------------------------------------------------- loops

// The elements of a thread in a loop over a whole array, for any grid:
// for (long long i = first_element(); i < count; i += element_stride())
__device__ __forceinline__ long long first_element() {
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ long long element_stride() { return static_cast<long long>(gridDim.x) * blockDim.x; }

}  // namespace mg
