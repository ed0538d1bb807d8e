// Activations of whole arrays, forward and backward, in the order in which their elements lie.

#include "activation.cuh"

namespace {

template <typename T> __device__ void forward(const T* x, long long count, int kind, T* y) {
    constexpr int N = mg::vector_length<T>();
    mg::with_activation(kind, [&](auto activation) {
        mg::share<N>(mg::grid_worker(), count, mg::aligned<N>(x) && mg::aligned<N>(y), [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            mg::Vector<T, n> values = mg::load<T, n>(x, i);
            for (int k = 0; k < n; ++k) values.at[k] = mg::narrow<T>(activation.value(mg::widen(values.at[k])));
            mg::store<T, n>(y, i, values);
        });
    });
}

// kept: what the activation keeps, its output or its input.
template <typename T> __device__ void backward(const T* grad, const T* kept, long long count, int kind, T* dx) {
    constexpr int N = mg::vector_length<T>();
    const bool wide = mg::aligned<N>(grad) && mg::aligned<N>(kept) && mg::aligned<N>(dx);
    mg::with_activation(kind, [&](auto activation) {
        mg::share<N>(mg::grid_worker(), count, wide, [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            mg::Vector<T, n> slopes = mg::load<T, n>(grad, i);
            const mg::Vector<T, n> values = mg::load<T, n>(kept, i);
            for (int k = 0; k < n; ++k)
                slopes.at[k] = mg::narrow<T>(activation.gradient(mg::widen(slopes.at[k]), mg::widen(values.at[k])));
            mg::store<T, n>(dx, i, slopes);
        });
    });
}

}  // namespace

#define ACTIVATION(NAME, T)                                                                                        \
    extern "C" __global__ void activation_forward_##NAME(const T* x, long long count, int kind, T* y) {            \
        forward(x, count, kind, y);                                                                                \
    }                                                                                                              \
    extern "C" __global__ void activation_backward_##NAME(const T* grad, const T* kept, long long count, int kind, \
                                                          T* dx) {                                                 \
        backward(grad, kept, count, kind, dx);                                                                     \
    }

ACTIVATION(f32, float)
ACTIVATION(f64, double)
ACTIVATION(f16, __half)
ACTIVATION(bf16, __nv_bfloat16)
