// Layer norm over rows: y = (x - mean) * rstd * gain + shift, rstd = 1 / sqrt(variance + eps), forward and backward.
//
// The variance is computed in a second pass, from what is left of x without its mean. gain and shift may be null. RMS
// norm is the same with a mean of 0; that is what means of null stand for.
//
// Backward, a block has a part of the rows, and gives besides dx what they add to dgain and dshift. A last kernel sums
// these parts.

#include "columns.cuh"
#include "rows.cuh"

namespace {

template <typename Team, typename T, typename A>
__device__ void forward(const T* x, const T* gain, const T* shift, long long rows, long long length, double eps, T* y,
                        A* means, A* rstds) {
    constexpr int N = mg::vector_length<T>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T* in = x + row * length;
        T* out = y + row * length;
        A mean = 0, squares = 0;
        if (means) {
            mg::read_each(Team::worker(), in, length, [&](A value, long long) { mean += value; });
            mean = Team::template reduce<mg::Sum>(mean) / static_cast<A>(length);
        }
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
        if (!Team::leads()) continue;
        rstds[row] = rstd;
        if (means) means[row] = mean;
    }
}

// dx = rstd * (h - mean(h) - normal * mean(h * normal)) by row, h = grad * gain, normal = (x - mean) * rstd; without
// means, the first mean is 0 too.
template <typename T, typename A> struct Backward {
    const T *grad, *x, *gain;
    const A *means, *rstds;
    long long rows, length, height;  // height: rows of a part
    T* dx;
    const T* base;  // what is added to dx, or null; may be dx
    A *weighted, *totals;  // (parts, length): sums of grad * normal and of grad over the rows of a part

    __device__ __forceinline__ long long parts() const { return (rows + height - 1) / height; }
    __device__ __forceinline__ long long end(long long part) const {
        return (part + 1) * height < rows ? (part + 1) * height : rows;
    }
    __device__ __forceinline__ A mean(long long row) const { return means ? means[row] : A(0); }
    __device__ __forceinline__ A start(long long i) const { return base ? mg::widen(base[i]) : A(0); }
    __device__ __forceinline__ A factor(long long column) const { return gain ? mg::widen(gain[column]) : A(1); }
};

constexpr int longest = 1024;  // elements of a row that one warp takes

template <typename T, typename A> __device__ __forceinline__ bool by_warps(const Backward<T, A>& all) {
    constexpr int N = mg::vector_length<T>();
    return all.length <= longest && all.length % N == 0 && mg::aligned<N>(all.grad) && mg::aligned<N>(all.x) &&
           mg::aligned<N>(all.dx);
}

// Rows of at most `longest` elements whose memory is aligned, one after the other by each warp: a lane has vectors that
// lie a warp apart.
template <typename T, typename A> __device__ __forceinline__ void backward_by_warps(const Backward<T, A>& all) {
    constexpr int N = mg::vector_length<T>(), vectors = longest / mg::warp_size / N;
    using Vector = mg::Vector<T, N>;
    __shared__ A of_warps[mg::column_warps][N][mg::warp_size];
    const int lane = threadIdx.x % mg::warp_size, warp = threadIdx.x / mg::warp_size;
    const int warps = blockDim.x / mg::warp_size, length = static_cast<int>(all.length);
    const auto at = [=](int v) { return (v * mg::warp_size + lane) * N; };
#pragma unroll 1
    for (long long part = blockIdx.x; part < all.parts(); part += gridDim.x) {
        A weighted[vectors][N], totals[vectors][N];
        for (int v = 0; v < vectors; ++v)
            for (int k = 0; k < N; ++k) weighted[v][k] = totals[v][k] = 0;
#pragma unroll 1
        for (long long row = part * all.height + warp; row < all.end(part); row += warps) {
            const T *slopes = all.grad + row * length, *in = all.x + row * length;
            const A mean = all.mean(row), rstd = all.rstds[row];
            A sum = 0, product = 0;
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
                if (at(v) >= length) continue;
                const Vector slope = mg::load<T, N>(slopes, at(v)), value = mg::load<T, N>(in, at(v));
                for (int k = 0; k < N; ++k) {
                    const A normal = (mg::widen(value.at[k]) - mean) * rstd, g = mg::widen(slope.at[k]);
                    const A h = g * all.factor(at(v) + k);
                    sum += h;
                    product += h * normal;
                    totals[v][k] += g;
                    weighted[v][k] += g * normal;
                }
            }
            if (!all.dx) continue;
            sum = all.means ? mg::warp_reduce<mg::Sum>(sum) / static_cast<A>(length) : A(0);
            product = mg::warp_reduce<mg::Sum>(product) / static_cast<A>(length);
#pragma unroll 1
            for (int v = 0; at(v) < length; ++v) {
                const Vector slope = mg::load<T, N>(slopes, at(v)), value = mg::load<T, N>(in, at(v));
                Vector out;
                for (int k = 0; k < N; ++k) {
                    const A normal = (mg::widen(value.at[k]) - mean) * rstd;
                    const A h = mg::widen(slope.at[k]) * all.factor(at(v) + k);
                    out.at[k] = mg::narrow<T>(all.start(row * length + at(v) + k) +
                                              (h - sum - normal * product) * rstd);
                }
                mg::store<T, N>(all.dx + row * length, at(v), out);
            }
        }
        if (!all.weighted && !all.totals) continue;
#pragma unroll
        for (int v = 0; v < 2 * vectors; ++v) {  // weighted and totals in turn
            if (v / 2 * mg::warp_size * N >= length) break;
            A* result = v % 2 ? all.totals : all.weighted;
            __syncthreads();
            for (int k = 0; k < N; ++k) of_warps[warp][k][lane] = v % 2 ? totals[v / 2][k] : weighted[v / 2][k];
            __syncthreads();
#pragma unroll 1
            for (int k = warp; k < N; k += warps) {
                A sum = of_warps[0][k][lane];
#pragma unroll 1
                for (int w = 1; w < warps; ++w) sum += of_warps[w][k][lane];
                if (result && at(v / 2) < length) result[part * length + at(v / 2) + k] = sum;
            }
        }
    }
}

// Other rows, each by a block, which adds up in the memory of its part.
template <typename T, typename A> __device__ __forceinline__ void backward_by_blocks(const Backward<T, A>& all) {
    constexpr int N = mg::vector_length<T>();
    const long long length = all.length;
#pragma unroll 1
    for (long long part = blockIdx.x; part < all.parts(); part += gridDim.x) {
        A *weighted = all.weighted + part * length, *totals = all.totals + part * length;
#pragma unroll 1
        for (long long row = part * all.height; row < all.end(part); ++row) {
            const T *slopes = all.grad + row * length, *in = all.x + row * length;
            const A mean = all.mean(row), rstd = all.rstds[row];
            const bool starts = row == part * all.height;
            A sum = 0, product = 0;
            for (long long i = threadIdx.x; i < length; i += blockDim.x) {
                const A normal = (mg::widen(in[i]) - mean) * rstd, g = mg::widen(slopes[i]), h = g * all.factor(i);
                sum += h;
                product += h * normal;
                if (all.weighted) weighted[i] = starts ? g * normal : weighted[i] + g * normal;
                if (all.totals) totals[i] = starts ? g : totals[i] + g;
            }
            if (!all.dx) continue;
            sum = mg::block_reduce<mg::Sum>(sum) / static_cast<A>(length);
            product = mg::block_reduce<mg::Sum>(product) / static_cast<A>(length);
            if (!all.means) sum = 0;
            T* out = all.dx + row * length;
            const bool wide = mg::aligned<N>(in) && mg::aligned<N>(slopes) && mg::aligned<N>(out);
            mg::share<N>(mg::block_worker(), length, wide, [&](auto width, long long first) {
                constexpr int n = decltype(width)::value;
                const mg::Vector<T, n> value = mg::load<T, n>(in, first), slope = mg::load<T, n>(slopes, first);
                mg::Vector<T, n> gradients;
                for (int k = 0; k < n; ++k) {
                    const A normal = (mg::widen(value.at[k]) - mean) * rstd;
                    const A h = mg::widen(slope.at[k]) * all.factor(first + k);
                    gradients.at[k] = mg::narrow<T>(all.start(row * length + first + k) +
                                                    (h - sum - normal * product) * rstd);
                }
                mg::store<T, n>(out, first, gradients);
            });
        }
    }
}

// dgain and dshift, the sums over parts; a block has 32 columns at a time, a warp every k-th part, k the warps.
template <typename T, typename A>
__device__ __forceinline__ void finish(const A* weighted, const A* totals, long long parts, long long length, T* dgain,
                                       T* dshift) {
    const int lane = threadIdx.x % mg::warp_size, warp = threadIdx.x / mg::warp_size;
    const int warps = blockDim.x / mg::warp_size;
    for (long long tile = blockIdx.x; tile * mg::warp_size < length; tile += gridDim.x) {
        const long long column = tile * mg::warp_size + lane;
        A sums[2] = {0, 0};
        for (long long part = warp; part < parts && column < length; part += warps) {
            if (weighted) sums[0] += weighted[part * length + column];
            if (totals) sums[1] += totals[part * length + column];
        }
        mg::sum_by_lane(sums, mg::warp_size);
        if (warp != 0 || column >= length) continue;
        if (weighted) dgain[column] = mg::narrow<T>(sums[0]);
        if (totals) dshift[column] = mg::narrow<T>(sums[1]);
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
        long long rows, long long length, long long height, T* dx, const T* base, mg::compute_t<T>* weighted,         \
        mg::compute_t<T>* totals) {                                                                                   \
        const Backward<T, mg::compute_t<T>> all{grad,   x,  gain, means,    rstds, rows, length,                      \
                                                height, dx, base, weighted, totals};                                  \
        if (by_warps(all)) backward_by_warps(all);                                                                    \
        else backward_by_blocks(all);                                                                                 \
    }                                                                                                                 \
    extern "C" __global__ void layer_norm_finish_##NAME(                                                              \
        const mg::compute_t<T>* weighted, const mg::compute_t<T>* totals, long long parts, long long length,          \
        T* dgain, T* dshift) {                                                                                        \
        finish(weighted, totals, parts, length, dgain, dshift);                                                       \
    }

LAYER_NORM(f32, float)
LAYER_NORM(f64, double)
LAYER_NORM(f16, __half)
LAYER_NORM(bf16, __nv_bfloat16)
