#pragma once
// Loops that load and store several elements at once where memory is aligned, and one by one where it is not.

#include "common.cuh"

namespace mg {

// N elements that move in one instruction (two above 16 bytes).
template <typename T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };

template <typename T, int N> __device__ __forceinline__ Vector<T, N> load(const T* x, long long i) {
    return *reinterpret_cast<const Vector<T, N>*>(x + i);
}
template <typename T, int N> __device__ __forceinline__ void store(T* x, long long i, const Vector<T, N>& values) {
    *reinterpret_cast<Vector<T, N>*>(x + i) = values;
}

// Whether vectors of N can be moved from and to x; true for a null pointer.
template <int N, typename T> __device__ __forceinline__ bool aligned(const T* x) {
    return reinterpret_cast<unsigned long long>(x) % sizeof(Vector<T, N>) == 0;
}

// Elements in a vector of 16 bytes of the wider of two types.
template <typename T, typename U = T> constexpr int vector_length() {
    return 16 / static_cast<int>(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));
}

// One of several threads that share a loop.
struct Worker {
    long long index, total;
};
__device__ __forceinline__ Worker grid_worker() { return {first_element(), element_stride()}; }
__device__ __forceinline__ Worker block_worker() { return {threadIdx.x, blockDim.x}; }
__device__ __forceinline__ Worker warp_worker() { return {threadIdx.x % warp_size, warp_size}; }

template <int N> struct Width { static constexpr int value = N; };

// Calls body(Width<n>(), i) for elements [i, i + n): n is N where wide, and 1 for the rest. Each element is one worker's.
template <int N, typename Body>
__device__ __forceinline__ void share(Worker worker, long long count, bool wide, Body body) {
    const long long vectors = wide ? count / N : 0;
    for (long long i = worker.index; i < vectors; i += worker.total) body(Width<N>(), i * N);
#pragma unroll 1
    for (long long i = vectors * N + worker.index; i < count; i += worker.total) body(Width<1>(), i);
}

// Calls body(widened x[i], i) for each element.
template <typename T, typename Body>
__device__ __forceinline__ void read_each(Worker worker, const T* x, long long count, Body body) {
    constexpr int N = vector_length<T>();
    share<N>(worker, count, aligned<N>(x), [&](auto width, long long first) {
        constexpr int n = decltype(width)::value;
        const Vector<T, n> values = load<T, n>(x, first);
        for (int k = 0; k < n; ++k) body(widen(values.at[k]), first + k);
    });
}

}  // namespace mg
