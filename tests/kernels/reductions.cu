#include "common.cuh"
// What common.cuh offers, used once for each dtype: out[block] = the reduction of x over the elements of that block.

template <typename Op, typename T> __device__ void reduce(const T* x, T* out, long long count) {
    using A = mg::compute_t<T>;
    A total = Op::template identity<A>();
    for (long long i = mg::first_element(); i < count; i += mg::element_stride())
        total = Op::combine(total, mg::widen(x[i]));
    total = mg::block_reduce<Op>(total);
    if (threadIdx.x == 0) out[blockIdx.x] = mg::narrow<T>(total);
}

#define REDUCE(NAME, OP, T) \
    extern "C" __global__ void NAME(const T* x, T* out, long long count) { reduce<mg::OP>(x, out, count); }

REDUCE(sum_f16, Sum, __half)
REDUCE(sum_bf16, Sum, __nv_bfloat16)
REDUCE(sum_f32, Sum, float)
REDUCE(sum_f64, Sum, double)
REDUCE(max_f16, Max, __half)
REDUCE(max_f64, Max, double)
REDUCE(min_bf16, Min, __nv_bfloat16)
REDUCE(min_f32, Min, float)
