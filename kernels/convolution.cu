// A convolution as products of matrices: what each output pixel sees becomes a row of columns, and back.
//
// Columns are (output pixels, groups, taps, channels of a group), taps row by row over the kernel. Images lie as
// (N, H, W, C); the input of a gather may also lie as (N, C, H, W). Nothing is added by two threads, sums have an order.

#include "vector.cuh"

namespace {

struct Lengths {
    int height, width, channels, groups;  // of a sample; groups divide channels
    int out_height, out_width;
    int kernel_height, kernel_width;
    int stride_y, stride_x, dilation_y, dilation_x;
    int top, left;  // padding before the image
};

// Cuts the last axis, of this length, off an index, and gives the place along it.
template <typename I> __device__ __forceinline__ int cut(I& index, int length) {
    if (length == 1) return 0;
    const int place = static_cast<int>(index % length);
    index /= length;
    return place;
}

// Channels that move at a time; one by one where there are so many elements that they are counted in 64 bits.
template <typename I, typename T> constexpr int vectors() { return sizeof(I) > 4 ? 1 : mg::vector_length<T>(); }

// Rows [first, first + rows) of the columns, in vectors of n channels; I holds any index of a vector. Padding is 0.
template <int n, typename I, typename T>
__device__ void gather(const T* x, bool planes, const Lengths& at, long long first, long long rows, T* columns) {
    const int inside = at.channels / at.groups;
    const I per_row = static_cast<I>(at.kernel_height) * at.kernel_width * (at.channels / n);
    const I count = static_cast<I>(rows) * per_row, step = static_cast<I>(mg::element_stride());
    for (I i = static_cast<I>(mg::first_element()); i < count; i += step) {
        I rest = i;
        const int offset = cut(rest, inside / n) * n;
        const int tap_x = cut(rest, at.kernel_width), tap_y = cut(rest, at.kernel_height);
        const int channel = cut(rest, at.groups) * inside + offset;
        rest += static_cast<I>(first);
        const int x_of = cut(rest, at.out_width) * at.stride_x + tap_x * at.dilation_x - at.left;
        const int y_of = cut(rest, at.out_height) * at.stride_y + tap_y * at.dilation_y - at.top;
        mg::Vector<T, n> values;
        for (int k = 0; k < n; ++k) values.at[k] = mg::narrow<T>(0);
        if (0 <= y_of && y_of < at.height && 0 <= x_of && x_of < at.width) {
            const long long sample = static_cast<long long>(rest);
            const long long from = planes
                ? ((sample * at.channels + channel) * at.height + y_of) * at.width + x_of
                : ((sample * at.height + y_of) * at.width + x_of) * at.channels + channel;
            values = mg::load<T, n>(x, from);
        }
        mg::store<T, n>(columns, static_cast<long long>(i) * n, values);
    }
}

// A weight (outputs, inside, taps) as (outputs, taps, inside), which is how columns lie.
template <typename T> __device__ void turn(const T* weight, long long outputs, int inside, int taps, T* turned) {
    const long long count = outputs * inside * taps;
    for (long long i = mg::first_element(); i < count; i += mg::element_stride()) {
        long long rest = i;
        const int channel = cut(rest, inside), tap = cut(rest, taps);
        turned[i] = weight[(rest * inside + channel) * taps + tap];
    }
}

template <typename I, typename T>
__device__ void columns_of(const T* x, bool planes, const Lengths& at, long long first, long long rows, T* columns) {
    constexpr int N = vectors<I, T>();
    const bool wide = at.channels / at.groups % N == 0 && mg::aligned<N>(x) && mg::aligned<N>(columns);
    if (wide && !planes) gather<N, I>(x, false, at, first, rows, columns);
    else gather<1, I>(x, planes, at, first, rows, columns);
}

// The window that sees a pixel through a tap, along one axis; negative where none does.
__device__ __forceinline__ int window_of(int place, int tap, int stride, int windows) {
    const int start = place - tap;  // of the window, in the padded image
    if (stride > 1 && start % stride) return -1;
    const int window = stride > 1 ? start / stride : start;
    return window < windows ? window : -1;
}

// Each pixel of so many samples is the sum of what the columns hold of it, taps in their order, and of the shift.
template <int n, typename I, typename T>
__device__ void spread(const T* columns, const T* shift, const Lengths& at, long long samples, T* pixels) {
    using A = mg::compute_t<T>;
    const int inside = at.channels / at.groups, taps = at.kernel_height * at.kernel_width;
    const I count = static_cast<I>(samples) * at.height * at.width * (at.channels / n);
    const I step = static_cast<I>(mg::element_stride());
    for (I i = static_cast<I>(mg::first_element()); i < count; i += step) {
        I rest = i;
        const int channel = cut(rest, at.channels / n) * n;
        const int left = cut(rest, at.width) + at.left, top = cut(rest, at.height) + at.top;
        const long long sample = static_cast<long long>(rest);
        const int group = channel / inside;
        A total[n];
        for (int k = 0; k < n; ++k) total[k] = A(0);
#pragma unroll 1
        for (int tap_y = 0; tap_y < at.kernel_height; ++tap_y) {
            const int row = window_of(top, tap_y * at.dilation_y, at.stride_y, at.out_height);
            if (row < 0) continue;
#pragma unroll 1
            for (int tap_x = 0; tap_x < at.kernel_width; ++tap_x) {
                const int column = window_of(left, tap_x * at.dilation_x, at.stride_x, at.out_width);
                if (column < 0) continue;
                const long long window = (sample * at.out_height + row) * at.out_width + column;
                const long long tap = (window * at.groups + group) * taps + tap_y * at.kernel_width + tap_x;
                const mg::Vector<T, n> seen = mg::load<T, n>(columns, tap * inside + (channel - group * inside));
                for (int k = 0; k < n; ++k) total[k] += mg::widen(seen.at[k]);
            }
        }
        mg::Vector<T, n> sum;
        for (int k = 0; k < n; ++k) {
            if (shift) total[k] += mg::widen(shift[channel + k]);
            sum.at[k] = mg::narrow<T>(total[k]);
        }
        mg::store<T, n>(pixels, static_cast<long long>(i) * n, sum);
    }
}

template <typename I, typename T>
__device__ void pixels_of(const T* columns, const T* shift, const Lengths& at, long long samples, T* pixels) {
    constexpr int N = vectors<I, T>();
    const bool wide = at.channels / at.groups % N == 0 && mg::aligned<N>(columns) && mg::aligned<N>(pixels);
    if (wide) spread<N, I>(columns, shift, at, samples, pixels);
    else spread<1, I>(columns, shift, at, samples, pixels);
}

// The sum of `count` weights (outputs, taps, inside), one after the other: rounded, as (outputs, inside, taps), into
// total; where that is null, into the first of them.
template <typename T, typename A>
__device__ void sum_weights(A* parts, int count, long long outputs, int inside, int taps, T* total) {
    const long long size = outputs * inside * taps;
    for (long long i = mg::first_element(); i < size; i += mg::element_stride()) {
        A sum = parts[i];
        for (int part = 1; part < count; ++part) sum += parts[part * size + i];
        long long rest = i;
        const int channel = cut(rest, inside), tap = cut(rest, taps);
        if (total) total[(rest * inside + channel) * taps + tap] = mg::narrow<T>(sum);
        else parts[i] = sum;
    }
}

}  // namespace

#define LENGTHS                                                                                                    \
    int height, int width, int channels, int groups, int out_height, int out_width, int kernel_height,             \
        int kernel_width, int stride_y, int stride_x, int dilation_y, int dilation_x, int top, int left
#define GIVEN                                                                                                      \
    { height, width, channels, groups, out_height, out_width, kernel_height, kernel_width, stride_y, stride_x,     \
      dilation_y, dilation_x, top, left }

#define CONVOLUTION(NAME, T)                                                                                       \
    extern "C" __global__ void convolution_columns_##NAME(                                                         \
        LENGTHS, const T* x, int planes, long long first, long long rows, int narrow, T* columns, const T* weight, \
        long long outputs, T* turned) {                                                                            \
        const Lengths at = GIVEN;                                                                                  \
        if (narrow) columns_of<unsigned>(x, planes, at, first, rows, columns);                                     \
        else columns_of<long long>(x, planes, at, first, rows, columns);                                           \
        if (weight) turn(weight, outputs, channels / groups, kernel_height * kernel_width, turned);                \
    }                                                                                                              \
    extern "C" __global__ void convolution_pixels_##NAME(                                                          \
        LENGTHS, const T* columns, const T* shift, long long samples, int narrow, T* pixels) {                     \
        const Lengths at = GIVEN;                                                                                  \
        if (narrow) pixels_of<unsigned>(columns, shift, at, samples, pixels);                                      \
        else pixels_of<long long>(columns, shift, at, samples, pixels);                                            \
    }                                                                                                              \
    extern "C" __global__ void convolution_weight_##NAME(                                                          \
        mg::compute_t<T>* parts, int count, long long outputs, int inside, int taps, T* total) {                   \
        sum_weights(parts, count, outputs, inside, taps, total);                                                   \
    }

CONVOLUTION(f32, float)
CONVOLUTION(f64, double)
CONVOLUTION(f16, __half)
CONVOLUTION(bf16, __nv_bfloat16)
