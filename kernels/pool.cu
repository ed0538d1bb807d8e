// Pooling over windows of images (N, H, W, C). Forward a thread takes an output, or a vector of channels of one,
// backward an input, whose gradients it adds in one order: nothing is added by two threads.

#include "vector.cuh"

namespace {

struct Axis {
    int length, outputs, kernel, stride, dilation, before;

    // Where the first tap of a window lies.
    __device__ __forceinline__ int start(int output) const { return output * stride - before; }
};

// Channels, a column and a row cut off an index of vectors of n channels, which is left with the sample.
template <int n> struct Place {
    int channel, column, row;
    long long sample;

    __device__ __forceinline__ Place(long long i, int channels, int columns, int rows) {
        channel = static_cast<int>(i % (channels / n)) * n;
        i /= channels / n;
        column = static_cast<int>(i % columns);
        i /= columns;
        row = static_cast<int>(i % rows);
        sample = i / rows;
    }
};

// Where the channels of a pixel begin.
__device__ __forceinline__ long long offset(long long sample, int rows, int columns, int channels, int row, int column) {
    return ((sample * rows + row) * columns + column) * channels;
}

// Calls body(Width<n>()) with n channels at a time where that may be, N or 1.
template <int N, typename Body> __device__ __forceinline__ void by_width(int channels, bool aligned, Body body) {
    if (aligned && channels % N == 0)
        body(mg::Width<N>());
    else
        body(mg::Width<1>());
}

// ---------------------------------------------------------------------------------------------------------------- max

// The largest element of each window and the number of its tap, the first of equal ones; NaN is larger than all, the
// first NaN the largest. A window that sees nothing has -infinity and a number that no tap has.
template <int n, typename T, typename W>
__device__ void max_forward(const T* x, Axis high, Axis wide, int channels, long long samples, T* y, W* winners) {
    using A = mg::compute_t<T>;
    const long long count = samples * high.outputs * wide.outputs * (channels / n);
    for (long long i = mg::first_element(); i < count; i += mg::element_stride()) {
        const Place<n> at(i, channels, wide.outputs, high.outputs);
        A best[n];
        mg::Vector<W, n> taps;
        bool found = false;
        for (int k = 0; k < n; ++k) best[k] = -mg::infinity<A>(), taps.at[k] = static_cast<W>(-1);
        for (int down = 0; down < high.kernel; ++down) {
            const int row = high.start(at.row) + down * high.dilation;
            if (row < 0 || row >= high.length) continue;
            for (int across = 0; across < wide.kernel; ++across) {
                const int column = wide.start(at.column) + across * wide.dilation;
                if (column < 0 || column >= wide.length) continue;
                const mg::Vector<T, n> values = mg::load<T, n>(
                    x, offset(at.sample, high.length, wide.length, channels, row, column) + at.channel);
                for (int k = 0; k < n; ++k) {
                    const A value = mg::widen(values.at[k]);
                    if (!found || value > best[k] || (value != value && best[k] == best[k]))
                        best[k] = value, taps.at[k] = static_cast<W>(down * wide.kernel + across);
                }
                found = true;
            }
        }
        mg::Vector<T, n> largest;
        for (int k = 0; k < n; ++k) largest.at[k] = mg::narrow<T>(best[k]);
        mg::store<T, n>(y, i * n, largest);
        mg::store<W, n>(winners, i * n, taps);
    }
}

template <int n, typename T, typename W>
__device__ void max_backward(const T* grad, const W* winners, Axis high, Axis wide, int channels, long long samples,
                             T* dx) {
    using A = mg::compute_t<T>;
    const long long count = samples * high.length * wide.length * (channels / n);
    for (long long i = mg::first_element(); i < count; i += mg::element_stride()) {
        const Place<n> at(i, channels, wide.length, high.length);
        A sums[n];
        for (int k = 0; k < n; ++k) sums[k] = 0;
        for (int down = 0; down < high.kernel; ++down) {
            const int above = at.row + high.before - down * high.dilation;
            if (above < 0 || above % high.stride || above / high.stride >= high.outputs) continue;
            for (int across = 0; across < wide.kernel; ++across) {
                const int left = at.column + wide.before - across * wide.dilation;
                if (left < 0 || left % wide.stride || left / wide.stride >= wide.outputs) continue;
                const long long from = offset(at.sample, high.outputs, wide.outputs, channels, above / high.stride,
                                              left / wide.stride) + at.channel;
                const mg::Vector<W, n> taps = mg::load<W, n>(winners, from);
                const mg::Vector<T, n> slopes = mg::load<T, n>(grad, from);
                for (int k = 0; k < n; ++k)
                    if (taps.at[k] == static_cast<W>(down * wide.kernel + across)) sums[k] += mg::widen(slopes.at[k]);
            }
        }
        mg::Vector<T, n> total;
        for (int k = 0; k < n; ++k) total.at[k] = mg::narrow<T>(sums[k]);
        mg::store<T, n>(dx, i * n, total);
    }
}

// -------------------------------------------------------------------------------------------------------------- mean

// Windows along one axis: that slide, or, without a kernel, that share the axis out evenly.
struct Windows {
    int length, outputs, kernel, stride, before;
    bool counts_padding;

    __device__ __forceinline__ int start(int output) const {
        if (kernel) return output * stride - before;
        return static_cast<int>(static_cast<long long>(output) * length / outputs);
    }
    __device__ __forceinline__ int stop(int output) const {
        if (kernel) return min(start(output) + kernel, length + before);
        return static_cast<int>((static_cast<long long>(output + 1) * length + outputs - 1) / outputs);
    }
    __device__ __forceinline__ int begin(int output) const { return max(start(output), 0); }
    __device__ __forceinline__ int end(int output) const { return min(stop(output), length); }
    __device__ __forceinline__ int count(int output) const {
        return counts_padding ? stop(output) - start(output) : end(output) - begin(output);
    }

    // The windows in which an element lies: from first to last.
    __device__ __forceinline__ int first(int place) const {
        if (!kernel) return static_cast<int>(static_cast<long long>(place) * outputs / length);
        return place + before < kernel ? 0 : (place + before - kernel) / stride + 1;
    }
    __device__ __forceinline__ int last(int place) const {
        if (kernel) return min((place + before) / stride, outputs - 1);
        return static_cast<int>((static_cast<long long>(place + 1) * outputs + length - 1) / length) - 1;
    }
};

template <int n, typename T>
__device__ void mean_forward(const T* x, Windows high, Windows wide, int channels, long long samples, T* y) {
    using A = mg::compute_t<T>;
    const long long count = samples * high.outputs * wide.outputs * (channels / n);
    for (long long i = mg::first_element(); i < count; i += mg::element_stride()) {
        const Place<n> at(i, channels, wide.outputs, high.outputs);
        A sums[n];
        for (int k = 0; k < n; ++k) sums[k] = 0;
        for (int row = high.begin(at.row); row < high.end(at.row); ++row) {
            for (int column = wide.begin(at.column); column < wide.end(at.column); ++column) {
                const mg::Vector<T, n> values = mg::load<T, n>(
                    x, offset(at.sample, high.length, wide.length, channels, row, column) + at.channel);
                for (int k = 0; k < n; ++k) sums[k] += mg::widen(values.at[k]);
            }
        }
        const A share = A(1) / (static_cast<A>(high.count(at.row)) * static_cast<A>(wide.count(at.column)));
        mg::Vector<T, n> means;
        for (int k = 0; k < n; ++k) means.at[k] = mg::narrow<T>(sums[k] * share);
        mg::store<T, n>(y, i * n, means);
    }
}

template <int n, typename T>
__device__ void mean_backward(const T* grad, Windows high, Windows wide, int channels, long long samples, T* dx) {
    using A = mg::compute_t<T>;
    const long long count = samples * high.length * wide.length * (channels / n);
    for (long long i = mg::first_element(); i < count; i += mg::element_stride()) {
        const Place<n> at(i, channels, wide.length, high.length);
        A sums[n];
        for (int k = 0; k < n; ++k) sums[k] = 0;
        for (int row = high.first(at.row); row <= high.last(at.row); ++row) {
            for (int column = wide.first(at.column); column <= wide.last(at.column); ++column) {
                const A share = A(1) / (static_cast<A>(high.count(row)) * static_cast<A>(wide.count(column)));
                const mg::Vector<T, n> slopes = mg::load<T, n>(
                    grad, offset(at.sample, high.outputs, wide.outputs, channels, row, column) + at.channel);
                for (int k = 0; k < n; ++k) sums[k] += mg::widen(slopes.at[k]) * share;
            }
        }
        mg::Vector<T, n> total;
        for (int k = 0; k < n; ++k) total.at[k] = mg::narrow<T>(sums[k]);
        mg::store<T, n>(dx, i * n, total);
    }
}

}  // namespace

// Height, then width: length, outputs, kernel, stride, dilation (of a maximum alone), padding before.
#define MAX_LENGTHS                                                                                              \
    int h0, int h1, int h2, int h3, int h4, int h5, int w0, int w1, int w2, int w3, int w4, int w5, int channels, \
        long long samples
#define MEAN_LENGTHS                                                                                           \
    int h0, int h1, int h2, int h3, int h4, int w0, int w1, int w2, int w3, int w4, int padded, int channels, \
        long long samples

#define MAX_POOL(NAME, T, W)                                                                                          \
    extern "C" __global__ void pool_max_forward_##NAME(const T* x, MAX_LENGTHS, T* y, W* winners) {                   \
        const Axis high{h0, h1, h2, h3, h4, h5}, wide{w0, w1, w2, w3, w4, w5};                                        \
        constexpr int N = sizeof(W) > 1 ? 1 : mg::vector_length<T>(); /* one by one where windows are so large */     \
        const bool aligned = mg::aligned<N>(x) && mg::aligned<N>(y) && mg::aligned<N>(winners);                       \
        by_width<N>(channels, aligned, [&](auto width) {                                                              \
            max_forward<decltype(width)::value>(x, high, wide, channels, samples, y, winners);                        \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" __global__ void pool_max_backward_##NAME(const T* grad, const W* winners, MAX_LENGTHS, T* dx) {        \
        const Axis high{h0, h1, h2, h3, h4, h5}, wide{w0, w1, w2, w3, w4, w5};                                        \
        constexpr int N = sizeof(W) > 1 ? 1 : mg::vector_length<T>(); /* one by one where windows are so large */     \
        const bool aligned = mg::aligned<N>(grad) && mg::aligned<N>(dx) && mg::aligned<N>(winners);                   \
        by_width<N>(channels, aligned, [&](auto width) {                                                              \
            max_backward<decltype(width)::value>(grad, winners, high, wide, channels, samples, dx);                   \
        });                                                                                                           \
    }

#define POOL(NAME, T)                                                                                                 \
    MAX_POOL(NAME, T, unsigned char)                                                                                  \
    MAX_POOL(wide_##NAME, T, int)                                                                                     \
    extern "C" __global__ void pool_mean_forward_##NAME(const T* x, MEAN_LENGTHS, T* y) {                             \
        const Windows high{h0, h1, h2, h3, h4, padded != 0}, wide{w0, w1, w2, w3, w4, padded != 0};                   \
        constexpr int N = mg::vector_length<T>();                                                                     \
        by_width<N>(channels, mg::aligned<N>(x) && mg::aligned<N>(y), [&](auto width) {                               \
            mean_forward<decltype(width)::value>(x, high, wide, channels, samples, y);                                \
        });                                                                                                           \
    }                                                                                                                 \
    extern "C" __global__ void pool_mean_backward_##NAME(const T* grad, MEAN_LENGTHS, T* dx) {                        \
        const Windows high{h0, h1, h2, h3, h4, padded != 0}, wide{w0, w1, w2, w3, w4, padded != 0};                   \
        constexpr int N = mg::vector_length<T>();                                                                     \
        by_width<N>(channels, mg::aligned<N>(grad) && mg::aligned<N>(dx), [&](auto width) {                           \
            mean_backward<decltype(width)::value>(grad, high, wide, channels, samples, dx);                           \
        });                                                                                                           \
    }

POOL(f32, float)
POOL(f64, double)
POOL(f16, __half)
POOL(bf16, __nv_bfloat16)
