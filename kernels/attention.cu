// Rows of attention: weights from the products of a query with keys, and the gradient of these products.
//
// The score of key c for query q is x * factor, plus a mask, plus -inf where c comes after q and order is causal. The
// weights are the softmax of a row of scores, 0 where all of it is -inf. Sums and scores are of type A.

#include "softmax.cuh"

namespace {

// What is added to the scores: -inf where `seen` is false, or `bias`; either may be null. Its steps, in elements, are
// those from one outer batch to the next, along the `inner` batches of each, along queries, and along keys.
template <typename A> struct Mask {
    const bool* seen;
    const A* bias;
    long long inner, steps[4];
};

template <typename A> struct Scores {
    const Mask<A>& mask;
    A factor;
    int causal;
    long long query, place;

    __device__ __forceinline__ A operator()(A x, long long key) const {
        const A never = -mg::infinity<A>();
        x *= factor;
        if (mask.seen && !mask.seen[place + key * mask.steps[3]]) x += never;
        if (mask.bias) x += mask.bias[place + key * mask.steps[3]];
        return causal && key > query ? x + never : x;
    }
};

// weights may be x, where they are of one type.
template <typename Team, typename T, typename A>
__device__ void weigh(const A* x, long long rows, long long length, long long queries, double factor, int causal,
                      const Mask<A>& mask, T* weights) {
    constexpr int N = mg::vector_length<T, A>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const A* in = x + row * length;
        T* out = weights + row * length;
        const long long query = row % queries, batch = row / queries;
        const long long place =
            batch / mask.inner * mask.steps[0] + batch % mask.inner * mask.steps[1] + query * mask.steps[2];
        const Scores<A> score{mask, A(factor), causal, query, place};
        mg::Normalizer<A> own;
        mg::read_each(Team::worker(), in, length, [&](A value, long long key) { own.add(score(value, key)); });
        const mg::Normalizer<A> all = own.template over<Team>();
        const A total = all.total == A(0) ? A(1) : all.total;
        mg::share<N>(Team::worker(), length, mg::aligned<N>(in) && mg::aligned<N>(out), [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            const mg::Vector<A, n> values = mg::load<A, n>(in, i);
            mg::Vector<T, n> found;
            for (int k = 0; k < n; ++k)
                found.at[k] = mg::narrow<T>(exp(score(values.at[k], i + k) - all.largest) / total);
            mg::store<T, n>(out, i, found);
        });
    }
}

// dscores = w * (h - the sum of w * h), h the gradient of the weights; dx = dscores * factor. h may be dx or dscores,
// where they are of one type; dscores may be null.
template <typename Team, typename T, typename A>
__device__ void gradient(const A* h, const T* weights, long long rows, long long length, double factor, T* dx,
                         A* dscores) {
    constexpr int N = mg::vector_length<T, A>();
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const A* slope = h + row * length;
        const T* in = weights + row * length;
        T* out = dx + row * length;
        A* wide_out = dscores ? dscores + row * length : dscores;
        A sum = 0;
        mg::read_each(Team::worker(), slope, length, [&](A value, long long i) { sum += value * mg::widen(in[i]); });
        sum = Team::template reduce<mg::Sum>(sum);
        const bool wide = mg::aligned<N>(slope) && mg::aligned<N>(in) && mg::aligned<N>(out) && mg::aligned<N>(wide_out);
        mg::share<N>(Team::worker(), length, wide, [&](auto width, long long i) {
            constexpr int n = decltype(width)::value;
            mg::Vector<A, n> found = mg::load<A, n>(slope, i);
            const mg::Vector<T, n> values = mg::load<T, n>(in, i);
            mg::Vector<T, n> scaled;
            for (int k = 0; k < n; ++k) {
                found.at[k] = (found.at[k] - sum) * mg::widen(values.at[k]);
                scaled.at[k] = mg::narrow<T>(found.at[k] * A(factor));
            }
            if (wide_out) mg::store<A, n>(wide_out, i, found);
            mg::store<T, n>(out, i, scaled);
        });
    }
}

}  // namespace

#define ATTENTION(NAME, T)                                                                                            \
    extern "C" __global__ void attention_weigh_##NAME(                                                                \
        const mg::compute_t<T>* x, long long rows, long long length, long long queries, int by_block, double factor,  \
        int causal, const bool* seen, const mg::compute_t<T>* bias, long long inner, long long step_outer,            \
        long long step_inner, long long step_query, long long step_key, T* weights) {                                 \
        using A = mg::compute_t<T>;                                                                                   \
        const Mask<A> mask{seen, bias, inner, {step_outer, step_inner, step_query, step_key}};                        \
        if (by_block) weigh<mg::Team<true>, T, A>(x, rows, length, queries, factor, causal, mask, weights);           \
        else weigh<mg::Team<false>, T, A>(x, rows, length, queries, factor, causal, mask, weights);                   \
    }                                                                                                                 \
    extern "C" __global__ void attention_gradient_##NAME(                                                             \
        const mg::compute_t<T>* h, const T* weights, long long rows, long long length, int by_block, double factor,   \
        T* dx, mg::compute_t<T>* dscores) {                                                                           \
        using A = mg::compute_t<T>;                                                                                   \
        if (by_block) gradient<mg::Team<true>, T, A>(h, weights, rows, length, factor, dx, dscores);                  \
        else gradient<mg::Team<false>, T, A>(h, weights, rows, length, factor, dx, dscores);                          \
    }

ATTENTION(f32, float)
ATTENTION(f64, double)
ATTENTION(f16, __half)
ATTENTION(bf16, __nv_bfloat16)
