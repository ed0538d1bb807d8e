// The sum of several arrays of one length, written into all of them: each element is read once and written once in each.
//
// The order of the additions is fixed: neighbours first, then pairs of pairs; an odd one out waits for its turn. Narrow
// types are added in float and rounded once.

#include "vector.cuh"

namespace {

constexpr int levels = 6;  // up to 63 replicas

// Values come one by one. Level k holds the sum of 2^k of them, where bit k of their number is set: a carry in binary.
template <typename A, int n> struct PairwiseSum {
    A sums[levels][n];

    // value is number `index`, from 0
    __device__ __forceinline__ void add(A (&value)[n], int index) {
        bool carries = true;
#pragma unroll
        for (int level = 0; level < levels; ++level) {
            const bool full = index >> level & 1;
            for (int k = 0; k < n; ++k) {
                if (carries && full) value[k] = sums[level][k] + value[k];
                if (carries && !full) sums[level][k] = value[k];
            }
            carries = carries && full;
        }
    }

    // Of `count` values: what is left in the levels, the smallest first.
    __device__ __forceinline__ void total(A (&result)[n], int count) const {
        bool empty = true;
#pragma unroll
        for (int level = 0; level < levels; ++level) {
            if (!(count >> level & 1)) continue;
            for (int k = 0; k < n; ++k) result[k] = empty ? sums[level][k] : sums[level][k] + result[k];
            empty = false;
        }
    }
};

template <typename T> __device__ void reduce(T* const* replicas, int replica_count, long long count) {
    using A = mg::compute_t<T>;
    constexpr int N = mg::vector_length<T>();
    bool wide = true;
    for (int r = 0; r < replica_count; ++r) wide = wide && mg::aligned<N>(replicas[r]);
    mg::share<N>(mg::grid_worker(), count, wide, [&](auto width, long long i) {
        constexpr int n = decltype(width)::value;
        PairwiseSum<A, n> sum;
        A values[n];
        for (int r = 0; r < replica_count; ++r) {
            const mg::Vector<T, n> in = mg::load<T, n>(replicas[r], i);
            for (int k = 0; k < n; ++k) values[k] = mg::widen(in.at[k]);
            sum.add(values, r);
        }
        sum.total(values, replica_count);
        mg::Vector<T, n> out;
        for (int k = 0; k < n; ++k) out.at[k] = mg::narrow<T>(values[k]);
        for (int r = 0; r < replica_count; ++r) mg::store<T, n>(replicas[r], i, out);
    });
}

}  // namespace

#define REDUCE(NAME, T)                                                                                   \
    extern "C" __global__ void reduce_##NAME(T* const* replicas, int replica_count, long long count) { \
        reduce(replicas, replica_count, count);                                                          \
    }

REDUCE(f32, float)
REDUCE(f64, double)
REDUCE(f16, __half)
REDUCE(bf16, __nv_bfloat16)
