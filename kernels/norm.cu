// Norms of long vectors: the sum of squares and the largest absolute value, accumulated in double precision.
//
// A first kernel leaves one number for each of its blocks, `finish` combines these in one block. The order depends on
// the lengths and on the shape of the launch alone, so equal inputs give equal bits.

#include "pieces.cuh"

namespace {

struct Square {
    using Combine = mg::Sum;
    static __device__ __forceinline__ double of(double x) { return x * x; }
};
struct Magnitude {
    using Combine = mg::Max;
    static __device__ __forceinline__ double of(double x) { return fabs(x); }
};

template <typename Measure, typename T>
__device__ __forceinline__ void measure(const mg::Pieces& pieces, double* of_blocks) {
    using Combine = typename Measure::Combine;
    double total = 0.0;  // nothing measured is less
    mg::each_chunk(pieces, [&](int p, long long start, long long count) {
        const T* x = reinterpret_cast<const T*>(pieces.addresses[p]) + start;
        mg::read_each(mg::block_worker(), x, count,
                      [&](mg::compute_t<T> value, long long) { total = Combine::combine(total, Measure::of(value)); });
    });
    total = mg::block_reduce<Combine>(total);
    if (threadIdx.x == 0) of_blocks[blockIdx.x] = total;
}

template <typename Combine> __device__ void finish(const double* of_blocks, long long count, double* result) {
    double total = Combine::template identity<double>();
    for (long long i = threadIdx.x; i < count; i += blockDim.x) total = Combine::combine(total, of_blocks[i]);
    total = mg::block_reduce<Combine>(total);
    if (threadIdx.x == 0) *result = total;
}

}  // namespace

#define MEASURES(NAME, T)                                                                                        \
    extern "C" __global__ void squares_##NAME(const __grid_constant__ mg::Pieces pieces, double* of_blocks) {     \
        measure<Square, T>(pieces, of_blocks);                                                                   \
    }                                                                                                            \
    extern "C" __global__ void largest_##NAME(const __grid_constant__ mg::Pieces pieces, double* of_blocks) {     \
        measure<Magnitude, T>(pieces, of_blocks);                                                                \
    }

MEASURES(f32, float)
MEASURES(f64, double)
MEASURES(f16, __half)
MEASURES(bf16, __nv_bfloat16)

extern "C" __global__ void finish_sum(const double* of_blocks, long long count, double* result) {
    finish<mg::Sum>(of_blocks, count, result);
}
extern "C" __global__ void finish_max(const double* of_blocks, long long count, double* result) {
    finish<mg::Max>(of_blocks, count, result);
}
