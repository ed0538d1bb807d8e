// One update of SGD or Adam on a contiguous range of parameters, gradients and state, in one pass.
//
// Works in double for double, in float for everything narrower; the state of narrow parameters is float, and so are
// their masters, where they have some: then the master is updated, and the parameter is a rounded copy of it. An element
// that is no rounded copy any more was changed from outside, or is new: its master starts again from it.
//
// `control` may be null. Else it holds what only the device knows (see the indices): gradients are multiplied by a
// factor first (the clip coefficient over the loss scale), and a step whose gradients were not finite changes nothing.
//
// `clock` may be null, too. Else it holds the number of the attempt and the learning rate in place of the arguments: a
// graph that is launched again and again has other ones each time.

#include "vector.cuh"

namespace {

enum Control { loss_scale, good_steps, skip, skipped_steps, factor, control_count };
enum Clock { attempts, learning_rate };

struct Step {
    bool skipped = false;
    double gradient_factor = 1.0;
    long long number;  // of updates made, this one included

    __device__ __forceinline__ Step(const double* control, long long attempt, const double* clock) {
        number = clock ? static_cast<long long>(clock[attempts]) : attempt;
        if (!control) return;
        skipped = control[skip] != 0.0;
        gradient_factor = control[factor];
        number -= static_cast<long long>(control[skipped_steps]);
    }
};

// The parameters of a range: their masters where there are some.
template <typename T> struct Parameters {
    using A = mg::compute_t<T>;
    T* param;
    A* master;

    template <int n> __device__ __forceinline__ void load(long long i, A (&values)[n]) const {
        const mg::Vector<T, n> in = mg::load<T, n>(param, i);
        for (int k = 0; k < n; ++k) values[k] = mg::widen(in.at[k]);
        if (!master) return;
        const mg::Vector<A, n> wide = mg::load<A, n>(master, i);
        for (int k = 0; k < n; ++k)
            if (mg::widen(mg::narrow<T>(wide.at[k])) == values[k]) values[k] = wide.at[k];
    }
    template <int n> __device__ __forceinline__ void store(long long i, const A (&values)[n]) const {
        mg::Vector<T, n> out;
        mg::Vector<A, n> wide;
        for (int k = 0; k < n; ++k) wide.at[k] = values[k], out.at[k] = mg::narrow<T>(values[k]);
        if (master) mg::store<A, n>(master, i, wide);
        mg::store<T, n>(param, i, out);
    }
};

// The direction of an update before momentum: the gradient times factor, turned around to maximize, with its decay.
template <typename A> struct Direction {
    A factor, decay;
    bool maximize;

    __device__ __forceinline__ A of(A gradient, A param) const {
        gradient *= factor;
        if (decay == A(0)) return maximize ? -gradient : gradient;
        const A pull = param * decay;
        return maximize ? pull - gradient : pull + gradient;
    }
};

constexpr int N = 4;

template <typename T, typename A>
__device__ __forceinline__ bool all_aligned(const T* param, const A* master, const T* grad, const A* a, const A* b,
                                            const A* c = nullptr) {
    return mg::aligned<N>(param) && mg::aligned<N>(master) && mg::aligned<N>(grad) && mg::aligned<N>(a) &&
           mg::aligned<N>(b) && mg::aligned<N>(c);
}

// buffer = momentum * buffer + fresh * direction, the direction alone in the first step; buffer may be null.
template <typename T, typename A>
__device__ void sgd(T* param, A* master, const T* grad, A* buffer, long long count, double lr, double momentum,
                    double fresh, double weight_decay, int nesterov, int maximize, long long attempt,
                    const double* control, const double* clock) {
    const Step step(control, attempt, clock);
    if (step.skipped) return;
    const Parameters<T> parameters = {param, master};
    const Direction<A> direction = {A(step.gradient_factor), A(weight_decay), maximize != 0};
    const A rate = A(clock ? clock[learning_rate] : lr), kept = A(momentum), new_part = A(fresh);
    const bool first = step.number == 1;
    mg::share<N>(mg::grid_worker(), count, all_aligned(param, master, grad, buffer, buffer), [&](auto width, long long i) {
        constexpr int n = decltype(width)::value;
        const mg::Vector<T, n> g = mg::load<T, n>(grad, i);
        A p[n];
        parameters.load(i, p);
        mg::Vector<A, n> m = {};
        if (buffer && !first) m = mg::load<A, n>(buffer, i);
        for (int k = 0; k < n; ++k) {
            A d = direction.of(mg::widen(g.at[k]), p[k]);
            if (buffer) {
                m.at[k] = first ? d : m.at[k] * kept + d * new_part;
                d = nesterov ? d + m.at[k] * kept : m.at[k];
            }
            p[k] -= d * rate;
        }
        if (buffer) mg::store<A, n>(buffer, i, m);
        parameters.store(i, p);
    });
}

// The learning rate and eps with both corrections of the averages folded in, for the number of a step.
template <typename A> struct Rates {
    A rate, floor;
};
template <typename A>
__device__ __forceinline__ Rates<A> rates_of_step(long long number, double lr, double beta1, double beta2, double eps) {
    __shared__ Rates<A> rates;
    if (threadIdx.x == 0) {
        const double root = sqrt(1.0 - pow(beta2, static_cast<double>(number)));
        rates.rate = A(lr * root / (1.0 - pow(beta1, static_cast<double>(number))));
        rates.floor = A(eps * root);
    }
    __syncthreads();
    return rates;
}

// rate and floor are those of the attempt's number; they are computed anew where only the device knows it, or the rate.
// largest, the greatest average of squares so far, is null but for AMSGrad, which divides by it.
template <typename T, typename A>
__device__ void adam(T* param, A* master, const T* grad, A* average, A* average_of_squares, A* largest, long long count,
                     double rate, double floor, double lr, double beta1, double beta2, double eps, double weight_decay,
                     int decoupled, int maximize, long long attempt, const double* control, const double* clock) {
    const Step step(control, attempt, clock);
    if (step.skipped) return;
    if (clock) lr = clock[learning_rate];
    const Parameters<T> parameters = {param, master};
    const Direction<A> direction = {A(step.gradient_factor), A(decoupled ? 0.0 : weight_decay), maximize != 0};
    const Rates<A> rates =
        control || clock ? rates_of_step<A>(step.number, lr, beta1, beta2, eps) : Rates<A>{A(rate), A(floor)};
    const A shrink = A(decoupled ? 1.0 - lr * weight_decay : 1.0);
    const A new_part = A(1.0 - beta1), kept = A(beta2), new_square = A(1.0 - beta2);
    const bool wide = all_aligned(param, master, grad, average, average_of_squares, largest);
    mg::share<N>(mg::grid_worker(), count, wide, [&](auto width, long long i) {
        constexpr int n = decltype(width)::value;
        const mg::Vector<T, n> g = mg::load<T, n>(grad, i);
        mg::Vector<A, n> m = mg::load<A, n>(average, i), v = mg::load<A, n>(average_of_squares, i), top = {};
        if (largest) top = mg::load<A, n>(largest, i);
        A p[n];
        parameters.load(i, p);
        for (int k = 0; k < n; ++k) {
            p[k] *= shrink;
            const A d = direction.of(mg::widen(g.at[k]), p[k]);
            m.at[k] += (d - m.at[k]) * new_part;
            v.at[k] = v.at[k] * kept + d * d * new_square;
            if (!largest || v.at[k] > top.at[k] || v.at[k] != v.at[k]) top.at[k] = v.at[k];
            p[k] -= m.at[k] / (sqrt(top.at[k]) + rates.floor) * rates.rate;
        }
        if (largest) mg::store<A, n>(largest, i, top);
        mg::store<A, n>(average, i, m);
        mg::store<A, n>(average_of_squares, i, v);
        parameters.store(i, p);
    });
}

}  // namespace

// Between backward and update, by one thread: whether the step counts, the factor of its gradients, and the loss scale
// of the next. Takes the flag back to 0. squares may be null: then nothing is clipped.
extern "C" __global__ void settle_step(double* control, unsigned* nonfinite, const double* squares, double max_norm,
                                       double growth, double backoff, double growth_interval) {
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        const double scale = control[loss_scale];
        const bool bad = *nonfinite != 0;
        *nonfinite = 0;
        control[skip] = bad;
        control[skipped_steps] += bad;
        double coefficient = 1.0;
        if (squares) coefficient = fmin(1.0, max_norm / (sqrt(*squares) / scale + 1e-6));
        control[factor] = coefficient / scale;
        control[good_steps] = bad ? 0.0 : control[good_steps] + 1.0;
        if (bad) control[loss_scale] = scale * backoff;
        if (control[good_steps] >= growth_interval) {
            control[loss_scale] = scale * growth;
            control[good_steps] = 0.0;
        }
    }
}

// The graph that has an update in it counts it by itself.
extern "C" __global__ void move_clock(double* clock, double updates) {
    if (threadIdx.x == 0 && blockIdx.x == 0) clock[attempts] += updates;
}

#define OPTIMIZERS(NAME, T)                                                                                            \
    extern "C" __global__ void sgd_##NAME(T* param, mg::compute_t<T>* master, const T* grad,                           \
                                          mg::compute_t<T>* buffer, long long count, double lr, double momentum,       \
                                          double fresh, double weight_decay, int nesterov, int maximize,               \
                                          long long attempt, const double* control, const double* clock) {             \
        sgd(param, master, grad, buffer, count, lr, momentum, fresh, weight_decay, nesterov, maximize, attempt,        \
            control, clock);                                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void adam_##NAME(T* param, mg::compute_t<T>* master, const T* grad,                          \
                                           mg::compute_t<T>* average, mg::compute_t<T>* average_of_squares,            \
                                           mg::compute_t<T>* largest, long long count, double rate, double floor,      \
                                           double lr, double beta1, double beta2, double eps, double weight_decay,     \
                                           int decoupled, int maximize, long long attempt, const double* control,      \
                                           const double* clock) {                                                      \
        adam(param, master, grad, average, average_of_squares, largest, count, rate, floor, lr, beta1, beta2, eps,     \
             weight_decay, decoupled, maximize, attempt, control, clock);                                              \
    }

OPTIMIZERS(f32, float)
OPTIMIZERS(f64, double)
OPTIMIZERS(f16, __half)
OPTIMIZERS(bf16, __nv_bfloat16)
