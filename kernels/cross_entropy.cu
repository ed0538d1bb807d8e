// Softmax and cross-entropy of rows of logits with a label each, forward and backward.
//
// loss[r] = (1 - s) * w[label] * (log total - x[label]) + s / C * sum of w[c] * (log total - x[c]), x less its largest,
// s the smoothing, w the weights or 1. A row whose label is ignore_index has loss, factor and gradient 0, whatever is
// in it. Where a label is no class, factor, loss and gradient are NaN, and the label is kept in `found`: to raise an
// error now the host would have to wait.

#include "found.cuh"
#include "softmax.cuh"

namespace {

enum Reduction { none, mean, sum };

template <typename A> __device__ __forceinline__ A not_a_number() { return mg::infinity<A>() - mg::infinity<A>(); }

// The sum of w * (x - to) from that of w * (x - from), mass the sum of w.
template <typename A> __device__ __forceinline__ A shifted(A sum, A mass, A from, A to) {
    return mass == A(0) || from == to ? sum : sum + mass * (from - to);
}

template <typename Team, typename T, typename A>
__device__ void forward(const T* x, const long long* labels, const T* weight, long long rows, long long classes,
                        long long ignore_index, double smoothing, A* losses, A* largest, A* totals, A* factors,
                        A* mass_of_weights, unsigned long long* found) {
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T* logits = x + row * classes;
        mg::Normalizer<A> own;
        A uniform = 0, mass = 0;  // the sums of w * (x - largest) and w
        mg::read_each(Team::worker(), logits, classes, [&](A value, long long c) {
            const A before = own.largest;
            own.add(value);
            if (smoothing != 0.0) {
                const A w = weight ? mg::widen(weight[c]) : A(1);
                uniform = shifted(uniform, mass, before, own.largest) + w * (value - own.largest);
                mass += w;
            }
        });
        const mg::Normalizer<A> all = own.template over<Team>();
        if (smoothing != 0.0) {
            uniform = Team::template reduce<mg::Sum>(shifted(uniform, mass, own.largest, all.largest));
            mass = Team::template reduce<mg::Sum>(mass);
        }
        if (!Team::leads()) continue;
        const long long label = labels[row];
        const bool ignored = label == ignore_index, valid = label >= 0 && label < classes;
        const A log_total = log(all.total);
        A factor = weight && valid ? mg::widen(weight[label]) : A(1);
        A loss = valid ? factor * (log_total - (mg::widen(logits[label]) - all.largest)) : not_a_number<A>();
        if (smoothing != 0.0) {
            const A share = A(smoothing / static_cast<double>(classes));
            loss = loss * A(1.0 - smoothing) + (log_total * mass - uniform) * share;
            if (mass_of_weights && row == 0) *mass_of_weights = mass;
        }
        losses[row] = ignored ? A(0) : loss;
        factors[row] = ignored ? A(0) : valid ? factor : not_a_number<A>();
        largest[row] = all.largest;
        totals[row] = all.total;
        if (found && !ignored && !valid) mg::keep_found(found, label, 0, classes);
    }
}

// The sum of the losses, or their mean and what they were divided by; NaN where no row counts. One block.
template <typename T, typename A>
__device__ void reduce(const volatile A* losses, const volatile A* factors, long long rows, int reduction, T* result,
                       A* divisor) {
    A loss = 0, factor = 0;
    for (long long row = threadIdx.x; row < rows; row += blockDim.x) {
        loss += losses[row];
        factor += factors[row];
    }
    loss = mg::block_reduce<mg::Sum>(loss);
    factor = mg::block_reduce<mg::Sum>(factor);
    if (threadIdx.x != 0) return;
    *result = mg::narrow<T>(reduction == mean ? loss / factor : loss);
    if (reduction == mean) *divisor = factor;
}

// grad is of each row's loss, or with grad_stride 0 of all rows; divisor, where there is one, divides it.
template <typename Team, typename T, typename A>
__device__ void backward(const T* x, const long long* labels, const T* weight, const A* mass_of_weights,
                         const A* largest, const A* totals, const A* factors, const T* grad, long long grad_stride,
                         const A* divisor, long long rows, long long classes, long long ignore_index, double smoothing,
                         T* dx) {
    constexpr int N = mg::vector_length<T>();
    const A divided_by = divisor && *divisor != A(0) ? *divisor : A(1);
    const A share = A(smoothing / static_cast<double>(classes));
    const A mass = mass_of_weights ? *mass_of_weights : static_cast<A>(classes);
    for (long long row = Team::first_row(); row < rows; row += Team::row_stride()) {
        const T* logits = x + row * classes;
        T* out = dx + row * classes;
        const long long label = labels[row];
        const bool ignored = label == ignore_index;
        const A scale = mg::widen(grad[row * grad_stride]) / divided_by;
        const A at_label = scale * factors[row] * A(1.0 - smoothing);
        const A everywhere = smoothing != 0.0 ? scale * share : A(0);
        const A pull = (at_label + everywhere * mass) / totals[row], most = largest[row];
        const bool wide = mg::aligned<N>(logits) && mg::aligned<N>(out);
        mg::share<N>(Team::worker(), classes, wide, [&](auto width, long long first) {
            constexpr int n = decltype(width)::value;
            const mg::Vector<T, n> in = mg::load<T, n>(logits, first);
            mg::Vector<T, n> gradients;
            for (int k = 0; k < n; ++k) {
                const long long c = first + k;
                A value = exp(mg::widen(in.at[k]) - most) * pull;
                if (c == label) value -= at_label;
                if (smoothing != 0.0) value -= weight ? everywhere * mg::widen(weight[c]) : everywhere;
                gradients.at[k] = mg::narrow<T>(ignored ? A(0) : value);
            }
            mg::store<T, n>(out, first, gradients);
        });
    }
}

}  // namespace

#define CROSS_ENTROPY(NAME, T)                                                                                        \
    extern "C" __global__ void cross_entropy_forward_##NAME(                                                          \
        const T* x, const long long* labels, const T* weight, long long rows, long long classes,                      \
        long long ignore_index, double smoothing, int by_block, mg::compute_t<T>* losses, mg::compute_t<T>* largest,  \
        mg::compute_t<T>* totals, mg::compute_t<T>* factors, mg::compute_t<T>* mass, unsigned long long* found,       \
        int reduction, unsigned* arrived, T* result, mg::compute_t<T>* divisor) {                                     \
        if (by_block)                                                                                                 \
            forward<mg::Team<true>>(x, labels, weight, rows, classes, ignore_index, smoothing, losses, largest,       \
                                    totals, factors, mass, found);                                                    \
        else                                                                                                          \
            forward<mg::Team<false>>(x, labels, weight, rows, classes, ignore_index, smoothing, losses, largest,      \
                                     totals, factors, mass, found);                                                   \
        if (reduction != none && mg::is_last_block(arrived))                                                          \
            reduce(losses, factors, rows, reduction, result, divisor);                                                \
    }                                                                                                                 \
    extern "C" __global__ void cross_entropy_backward_##NAME(                                                         \
        const T* x, const long long* labels, const T* weight, const mg::compute_t<T>* mass_of_weights,                \
        const mg::compute_t<T>* largest, const mg::compute_t<T>* totals, const mg::compute_t<T>* factors,             \
        const T* grad, long long grad_stride, const mg::compute_t<T>* divisor, long long rows, long long classes,     \
        long long ignore_index, double smoothing, int by_block, T* dx) {                                              \
        if (by_block)                                                                                                 \
            backward<mg::Team<true>>(x, labels, weight, mass_of_weights, largest, totals, factors, grad, grad_stride, \
                                     divisor, rows, classes, ignore_index, smoothing, dx);                            \
        else                                                                                                          \
            backward<mg::Team<false>>(x, labels, weight, mass_of_weights, largest, totals, factors, grad,             \
                                      grad_stride, divisor, rows, classes, ignore_index, smoothing, dx);              \
    }

CROSS_ENTROPY(f32, float)
CROSS_ENTROPY(f64, double)
CROSS_ENTROPY(f16, __half)
CROSS_ENTROPY(bf16, __nv_bfloat16)
