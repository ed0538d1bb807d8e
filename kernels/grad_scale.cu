// Gradients on their way through a collective: weighted and cast into a bucket, weighted in place, and back.
//
// The weight lies in device memory, so nobody waits for it. A weight of 0 gives 0, whatever the element is: 0 * NaN
// would be NaN. Each element is read once and written once; on that way a pass also finds out whether any value that
// it wrote is infinite or NaN, and the sum of their squares.

#include "pieces.cuh"

namespace {

template <typename S, typename D> struct wider { using type = mg::compute_t<S>; };
template <typename S> struct wider<S, double> { using type = double; };
template <typename S, typename D> using wider_t = typename wider<S, D>::type;

// What a thread found in the values that it wrote.
struct Found {
    bool nonfinite = false;
    double squares = 0.0;

    template <typename A> __device__ __forceinline__ void add(A value) {
        nonfinite |= !isfinite(value);
        squares += static_cast<double>(value) * static_cast<double>(value);
    }

    // All threads of the block call it. flag and squares of the block may be null.
    __device__ __forceinline__ void report(unsigned* flag, double* squares_of_blocks) {
        if (flag && nonfinite) atomicOr(flag, 1u);
        if (squares_of_blocks) {
            const double total = mg::block_reduce<mg::Sum>(squares);
            if (threadIdx.x == 0) squares_of_blocks[blockIdx.x] = total;
        }
    }
};

// y[i] = x[i] * weight for [0, count); x and y may be the same.
template <typename S, typename D, typename A>
__device__ __forceinline__ void scale_range(mg::Worker worker, const S* x, D* y, long long count, A weight,
                                            Found& found) {
    constexpr int N = mg::vector_length<S, D>();
    mg::share<N>(worker, count, mg::aligned<N>(x) && mg::aligned<N>(y), [&](auto width, long long i) {
        constexpr int n = decltype(width)::value;
        const mg::Vector<S, n> in = mg::load<S, n>(x, i);
        mg::Vector<D, n> out;
        for (int k = 0; k < n; ++k) {
            const A scaled = weight == A(0) ? A(0) : static_cast<A>(mg::widen(in.at[k])) * weight;
            out.at[k] = mg::narrow<D>(static_cast<mg::compute_t<D>>(scaled));
            found.add(mg::widen(out.at[k]));
        }
        mg::store<D, n>(y, i, out);
    });
}

template <typename S, typename D>
__device__ __forceinline__ void pack(const mg::Pieces& pieces, const double* weight, D* bucket, unsigned* flag) {
    const wider_t<S, D> factor = static_cast<wider_t<S, D>>(*weight);
    Found found;
    mg::each_chunk(pieces, [&](int p, long long start, long long count) {
        const S* x = reinterpret_cast<const S*>(pieces.addresses[p]) + start;
        scale_range(mg::block_worker(), x, bucket + pieces.offsets[p] + start, count, factor, found);
    });
    found.report(flag, nullptr);
}

template <typename S, typename D>
__device__ __forceinline__ void unpack(const S* bucket, const double* weight, const mg::Pieces& pieces, unsigned* flag,
                                       double* squares_of_blocks) {
    const wider_t<S, D> factor = static_cast<wider_t<S, D>>(*weight);
    Found found;
    mg::each_chunk(pieces, [&](int p, long long start, long long count) {
        D* y = reinterpret_cast<D*>(pieces.addresses[p]) + start;
        scale_range(mg::block_worker(), bucket + pieces.offsets[p] + start, y, count, factor, found);
    });
    found.report(flag, squares_of_blocks);
}

template <typename T>
__device__ void scale(T* x, long long count, const double* weight, unsigned* flag, double* squares_of_blocks) {
    Found found;
    scale_range(mg::grid_worker(), x, x, count, static_cast<mg::compute_t<T>>(*weight), found);
    found.report(flag, squares_of_blocks);
}

}  // namespace

#define PACK_AND_UNPACK(NAME, T, WIRE_NAME, WIRE)                                                               \
    extern "C" __global__ void pack_##NAME##_##WIRE_NAME(const __grid_constant__ mg::Pieces pieces,              \
                                                         const double* weight, WIRE* bucket, unsigned* flag) {   \
        pack<T>(pieces, weight, bucket, flag);                                                                  \
    }                                                                                                           \
    extern "C" __global__ void unpack_##WIRE_NAME##_##NAME(                                                      \
        const WIRE* bucket, const double* weight, const __grid_constant__ mg::Pieces pieces, unsigned* flag,    \
        double* squares_of_blocks) {                                                                            \
        unpack<WIRE, T>(bucket, weight, pieces, flag, squares_of_blocks);                                       \
    }
#define SCALE(NAME, T)                                                                                        \
    extern "C" __global__ void scale_##NAME(T* x, long long count, const double* weight, unsigned* flag,      \
                                            double* squares_of_blocks) {                                      \
        scale(x, count, weight, flag, squares_of_blocks);                                                     \
    }

PACK_AND_UNPACK(f32, float, f32, float)
PACK_AND_UNPACK(f32, float, f16, __half)
PACK_AND_UNPACK(f32, float, bf16, __nv_bfloat16)
PACK_AND_UNPACK(f64, double, f64, double)
PACK_AND_UNPACK(f64, double, f32, float)
PACK_AND_UNPACK(f16, __half, f16, __half)
PACK_AND_UNPACK(f16, __half, f32, float)
PACK_AND_UNPACK(bf16, __nv_bfloat16, bf16, __nv_bfloat16)
PACK_AND_UNPACK(bf16, __nv_bfloat16, f32, float)
SCALE(f32, float)
SCALE(f64, double)
SCALE(f16, __half)
SCALE(bf16, __nv_bfloat16)
