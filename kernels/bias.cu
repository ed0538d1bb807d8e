// Rows plus a bias, through an activation; backwards through it, with the sums of the columns: the bias' gradient.

#include "activation.cuh"

namespace {

// h[r, c] = h[r, c] + bias[c], y[r, c] = the activation of it. y may be h, where that is not needed any more.
template <typename T>
__device__ void forward(T* h, const T* bias, long long rows, long long length, int kind, T* y) {
    constexpr int N = mg::vector_length<T>();
    const bool wide = length % N == 0 && mg::aligned<N>(h) && mg::aligned<N>(bias) && mg::aligned<N>(y);
    mg::with_activation(kind, [&](auto activation) {
        mg::share<N>(mg::grid_worker(), rows * length, wide, [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            mg::Vector<T, n> sums = mg::load<T, n>(h, i), values;
            const mg::Vector<T, n> shifts = mg::load<T, n>(bias, i % length);
            for (int k = 0; k < n; ++k) {
                sums.at[k] = mg::narrow<T>(mg::widen(sums.at[k]) + mg::widen(shifts.at[k]));
                values.at[k] = mg::narrow<T>(activation.value(mg::widen(sums.at[k])));
            }
            if (y != h) mg::store<T, n>(h, i, sums);
            mg::store<T, n>(y, i, values);
        });
    });
}

// Over rows [part * height, (part + 1) * height): what value(i) gives for elements i of a column, summed. With parts, of
// which there are sums to come, it stays wide, in parts[part, c]; else it goes, times scale, to sums[part, c].
// A block takes a few columns of a part, as many as fill 32 bytes; a thread every k-th row of one of them.
template <int tile, typename T, typename A, typename Value>
__device__ void columns(long long rows, long long length, long long height, double scale, A* parts, T* sums,
                        Value value) {
    __shared__ A partial[mg::max_warps * mg::warp_size];
    const long long tiles = (length + tile - 1) / tile, pieces = (rows + height - 1) / height;
    const int lane = threadIdx.x % tile, line = threadIdx.x / tile, lines = blockDim.x / tile;
    for (long long work = blockIdx.x; work < tiles * pieces; work += gridDim.x) {
        const long long part = work / tiles, column = work % tiles * tile + lane;
        const long long stop = (part + 1) * height < rows ? (part + 1) * height : rows;
        A sum = 0;
        for (long long row = part * height + line; row < stop && column < length; row += lines)
            sum += value(row * length + column);
        partial[threadIdx.x] = sum;
        __syncthreads();
        if (line == 0 && column < length) {
            for (int other = 1; other < lines; ++other) sum += partial[other * tile + lane];
            if (parts)
                parts[part * length + column] = sum;
            else
                sums[part * length + column] = mg::narrow<T>(sum * A(scale));
        }
        __syncthreads();
    }
}

template <typename T> constexpr int tile_of() { return sizeof(T) == 2 ? 16 : 8; }

template <typename T, typename A>
__device__ void backward(const T* grad, const T* kept, long long rows, long long length, long long height, int kind,
                         T* dx, A* parts, T* sums) {
    columns<tile_of<T>()>(rows, length, height, 1.0, parts, sums, [&](long long i) {
        A slope = mg::widen(grad[i]);
        const A value = mg::widen(kept[i]);
        mg::with_activation(kind, [&](auto activation) { slope = activation.gradient(slope, value); });
        dx[i] = mg::narrow<T>(slope);
        return mg::widen(dx[i]);
    });
}

// Of elements of their own dtype or, as parts are, of a wide one.
template <typename X, typename T, typename A>
__device__ void sum(const X* x, long long rows, long long length, long long height, double scale, A* parts, T* sums) {
    columns<tile_of<X>()>(rows, length, height, scale, parts, sums, [&](long long i) { return mg::widen(x[i]); });
}

}  // namespace

#define BIAS(NAME, T)                                                                                                \
    extern "C" __global__ void bias_forward_##NAME(T* h, const T* bias, long long rows, long long length, int kind,  \
                                                   T* y) {                                                           \
        forward(h, bias, rows, length, kind, y);                                                                     \
    }                                                                                                                \
    extern "C" __global__ void bias_backward_##NAME(const T* grad, const T* kept, long long rows, long long length,  \
                                                    long long height, int kind, T* dx, mg::compute_t<T>* parts,      \
                                                    T* sums) {                                                       \
        backward(grad, kept, rows, length, height, kind, dx, parts, sums);                                           \
    }                                                                                                                \
    extern "C" __global__ void bias_sum_##NAME(const T* x, long long rows, long long length, long long height,       \
                                               double scale, mg::compute_t<T>* parts, T* sums) {                     \
        sum(x, rows, length, height, scale, parts, sums);                                                            \
    }                                                                                                                \
    extern "C" __global__ void bias_sum_of_parts_##NAME(const mg::compute_t<T>* x, long long rows, long long length, \
                                                        T* sums) {                                                   \
        sum(x, rows, length, rows, 1.0, static_cast<mg::compute_t<T>*>(nullptr), sums);                              \
    }

BIAS(f32, float)
BIAS(f64, double)
BIAS(f16, __half)
BIAS(bf16, __nv_bfloat16)
