// Softmax of rows, y = exp(x) / the sum of exp(x), or its logarithm; forward and backward.

#include "softmax.cuh"

namespace {

template <typename Team, typename T, typename A>
__device__ void forward(const T* x, long long rows, long long length, int logs, T* y) {
    constexpr int N = mg::vector_length<T>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T* in = x + row * length;
        T* out = y + row * length;
        mg::Normalizer<A> own;
        mg::read_each(Team::worker(), in, length, [&](A value, long long) { own.add(value); });
        const mg::Normalizer<A> all = own.template over<Team>();
        const A log_total = log(all.total);
        mg::share<N>(Team::worker(), length, mg::aligned<N>(in) && mg::aligned<N>(out), [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            mg::Vector<T, n> values = mg::load<T, n>(in, i);
            for (int k = 0; k < n; ++k) {
                const A value = mg::widen(values.at[k]) - all.largest;
                values.at[k] = mg::narrow<T>(logs ? value - log_total : exp(value) / all.total);
            }
            mg::store<T, n>(out, i, values);
        });
    }
}

// dx = y * (grad - the sum of grad * y) by row, or of the logarithm grad - exp(y) * the sum of grad.
template <typename Team, typename T, typename A>
__device__ void backward(const T* grad, const T* y, long long rows, long long length, int logs, T* dx) {
    constexpr int N = mg::vector_length<T>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T *slope = grad + row * length, *in = y + row * length;
        T* out = dx + row * length;
        A sum = 0;
        mg::read_each(Team::worker(), slope, length,
                      [&](A value, long long i) { sum += logs ? value : value * mg::widen(in[i]); });
        sum = Team::template reduce<mg::Sum>(sum);
        const bool wide = mg::aligned<N>(slope) && mg::aligned<N>(in) && mg::aligned<N>(out);
        mg::share<N>(Team::worker(), length, wide, [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            const mg::Vector<T, n> slopes = mg::load<T, n>(slope, i), values = mg::load<T, n>(in, i);
            mg::Vector<T, n> gradients;
            for (int k = 0; k < n; ++k) {
                const A g = mg::widen(slopes.at[k]), value = mg::widen(values.at[k]);
                gradients.at[k] = mg::narrow<T>(logs ? g - exp(value) * sum : value * (g - sum));
            }
            mg::store<T, n>(out, i, gradients);
        });
    }
}

}  // namespace

#define SOFTMAX(NAME, T)                                                                                           \
    extern "C" __global__ void softmax_forward_##NAME(const T* x, long long rows, long long length, int by_block,  \
                                                      int logs, T* y) {                                            \
        using A = mg::compute_t<T>;                                                                                \
        if (by_block) forward<mg::Team<true>, T, A>(x, rows, length, logs, y);                                     \
        else forward<mg::Team<false>, T, A>(x, rows, length, logs, y);                                             \
    }                                                                                                              \
    extern "C" __global__ void softmax_backward_##NAME(const T* grad, const T* y, long long rows, long long length, \
                                                       int by_block, int logs, T* dx) {                            \
        using A = mg::compute_t<T>;                                                                                \
        if (by_block) backward<mg::Team<true>, T, A>(grad, y, rows, length, logs, dx);                             \
        else backward<mg::Team<false>, T, A>(grad, y, rows, length, logs, dx);                                     \
    }

SOFTMAX(f32, float)
SOFTMAX(f64, double)
SOFTMAX(f16, __half)
SOFTMAX(bf16, __nv_bfloat16)
