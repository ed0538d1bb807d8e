// Layer norm over rows: y = (x - mean) * rstd * gain + shift, rstd = 1 / sqrt(variance + eps), forward and backward.
//
// The variance is computed in a second pass, from what is left of x without its mean. gain and shift may be null.

#include "rows.cuh"

namespace {

template <typename Team, typename T, typename A>
__device__ void forward(const T* x, const T* gain, const T* shift, long long rows, long long length, double eps, T* y,
                        A* means, A* rstds) {
    constexpr int N = mg::vector_length<T>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T* in = x + row * length;
        T* out = y + row * length;
        A sum = 0, squares = 0;
        mg::read_each(Team::worker(), in, length, [&](A value, long long) { sum += value; });
        const A mean = Team::template reduce<mg::Sum>(sum) / static_cast<A>(length);
        mg::read_each(Team::worker(), in, length,
                      [&](A value, long long) { squares += (value - mean) * (value - mean); });
        const A variance = Team::template reduce<mg::Sum>(squares) / static_cast<A>(length);
        const A rstd = A(1) / sqrt(variance + A(eps));
        const bool wide = mg::aligned<N>(in) && mg::aligned<N>(out);
        mg::share<N>(Team::worker(), length, wide, [&](auto width, long long first) {
            constexpr int n = decltype(width)::value;
            const mg::Vector<T, n> values = mg::load<T, n>(in, first);
            mg::Vector<T, n> normal;
            for (int k = 0; k < n; ++k) {
                A value = (mg::widen(values.at[k]) - mean) * rstd;
                if (gain) value *= mg::widen(gain[first + k]);
                if (shift) value += mg::widen(shift[first + k]);
                normal.at[k] = mg::narrow<T>(value);
            }
            mg::store<T, n>(out, first, normal);
        });
        if (Team::leads()) means[row] = mean, rstds[row] = rstd;
    }
}

// dx = rstd * (h - mean(h) - normal * mean(h * normal)) by row, h = grad * gain, normal = (x - mean) * rstd.
template <typename Team, typename T, typename A>
__device__ void backward(const T* grad, const T* x, const T* gain, const A* means, const A* rstds, long long rows,
                         long long length, T* dx) {
    constexpr int N = mg::vector_length<T>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T *in = x + row * length, *slope = grad + row * length;
        T* out = dx + row * length;
        const A mean = means[row], rstd = rstds[row];
        A sum = 0, product = 0;
        mg::read_each(Team::worker(), slope, length, [&](A value, long long i) {
            const A h = gain ? value * mg::widen(gain[i]) : value;
            sum += h;
            product += h * ((mg::widen(in[i]) - mean) * rstd);
        });
        sum = Team::template reduce<mg::Sum>(sum) / static_cast<A>(length);
        product = Team::template reduce<mg::Sum>(product) / static_cast<A>(length);
        const bool wide = mg::aligned<N>(in) && mg::aligned<N>(slope) && mg::aligned<N>(out);
        mg::share<N>(Team::worker(), length, wide, [&](auto width, long long first) {
            constexpr int n = decltype(width)::value;
            const mg::Vector<T, n> values = mg::load<T, n>(in, first), slopes = mg::load<T, n>(slope, first);
            mg::Vector<T, n> gradients;
            for (int k = 0; k < n; ++k) {
                const A normal = (mg::widen(values.at[k]) - mean) * rstd;
                A h = mg::widen(slopes.at[k]);
                if (gain) h *= mg::widen(gain[first + k]);
                gradients.at[k] = mg::narrow<T>((h - sum - normal * product) * rstd);
            }
            mg::store<T, n>(out, first, gradients);
        });
    }
}

// Over rows [part * height, (part + 1) * height): dgain[part, c] = the sum of grad * normal, dshift[part, c] of grad.
// A block takes 32 columns of a part; a thread every k-th row of one column, k the warps of the block.
template <typename T, typename A>
__device__ void columns(const T* grad, const T* x, const A* means, const A* rstds, long long rows, long long length,
                        long long height, A* dgain, A* dshift) {
    __shared__ A partial[2][mg::max_warps][mg::warp_size];
    const long long tiles = (length + mg::warp_size - 1) / mg::warp_size;
    const long long parts = (rows + height - 1) / height;
    const int lane = threadIdx.x % mg::warp_size, warp = threadIdx.x / mg::warp_size;
    const int warps = blockDim.x / mg::warp_size;
    for (long long work = blockIdx.x; work < tiles * parts; work += gridDim.x) {
        const long long part = work / tiles, column = work % tiles * mg::warp_size + lane;
        const long long stop = (part + 1) * height < rows ? (part + 1) * height : rows;
        A weighted = 0, sum = 0;
        for (long long row = part * height + warp; row < stop && column < length; row += warps) {
            const A slope = mg::widen(grad[row * length + column]);
            sum += slope;
            weighted += slope * ((mg::widen(x[row * length + column]) - means[row]) * rstds[row]);
        }
        partial[0][warp][lane] = weighted;
        partial[1][warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < length) {
            for (int w = 1; w < warps; ++w) weighted += partial[0][w][lane], sum += partial[1][w][lane];
            dgain[part * length + column] = weighted;
            dshift[part * length + column] = sum;
        }
        __syncthreads();
    }
}

}  // namespace

#define LAYER_NORM(NAME, T)                                                                                           \
    extern "C" __global__ void layer_norm_forward_##NAME(                                                             \
        const T* x, const T* gain, const T* shift, long long rows, long long length, double eps, int by_block, T* y,  \
        mg::compute_t<T>* means, mg::compute_t<T>* rstds) {                                                           \
        if (by_block)                                                                                                 \
            forward<mg::Team<true>>(x, gain, shift, rows, length, eps, y, means, rstds);                              \
        else                                                                                                          \
            forward<mg::Team<false>>(x, gain, shift, rows, length, eps, y, means, rstds);                             \
    }                                                                                                                 \
    extern "C" __global__ void layer_norm_backward_##NAME(                                                            \
        const T* grad, const T* x, const T* gain, const mg::compute_t<T>* means, const mg::compute_t<T>* rstds,       \
        long long rows, long long length, int by_block, T* dx) {                                                      \
        if (by_block)                                                                                                 \
            backward<mg::Team<true>>(grad, x, gain, means, rstds, rows, length, dx);                                  \
        else                                                                                                          \
            backward<mg::Team<false>>(grad, x, gain, means, rstds, rows, length, dx);                                 \
    }                                                                                                                 \
    extern "C" __global__ void layer_norm_columns_##NAME(                                                             \
        const T* grad, const T* x, const mg::compute_t<T>* means, const mg::compute_t<T>* rstds, long long rows,      \
        long long length, long long height, mg::compute_t<T>* dgain, mg::compute_t<T>* dshift) {                      \
        columns(grad, x, means, rstds, rows, length, height, dgain, dshift);                                          \
    }

LAYER_NORM(f32, float)
LAYER_NORM(f64, double)
LAYER_NORM(f16, __half)
LAYER_NORM(bf16, __nv_bfloat16)
