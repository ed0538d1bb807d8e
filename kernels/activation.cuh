#pragma once
// Activations of one element, each with its value and with the gradient of its input from what forward keeps: the
// output where that is enough, else the input. The formulas are those of minigrad.ops.

#include "vector.cuh"

namespace mg {

template <typename A> __device__ __forceinline__ A logistic(A x) { return A(1) / (A(1) + exp(-x)); }

struct Identity {
    static constexpr bool keeps_output = true;
    template <typename A> static __device__ __forceinline__ A value(A x) { return x; }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A) { return grad; }
};

struct Relu {
    static constexpr bool keeps_output = true;
    template <typename A> static __device__ __forceinline__ A value(A x) { return x > A(0) || x != x ? x : A(0); }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A y) { return y != A(0) ? grad : A(0); }
};

struct Tanh {
    static constexpr bool keeps_output = true;
    template <typename A> static __device__ __forceinline__ A value(A x) { return tanh(x); }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A y) { return (A(1) - y * y) * grad; }
};

struct Sigmoid {
    static constexpr bool keeps_output = true;
    template <typename A> static __device__ __forceinline__ A value(A x) { return logistic(x); }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A y) { return (A(1) - y) * y * grad; }
};

struct Silu {
    static constexpr bool keeps_output = false;
    template <typename A> static __device__ __forceinline__ A value(A x) { return x * logistic(x); }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A x) {
        const A gate = logistic(x);
        return ((A(1) - gate) * (x * gate) + gate) * grad;
    }
};

struct Gelu {
    static constexpr bool keeps_output = false;
    template <typename A> static __device__ __forceinline__ A gate(A x) {
        return (erf(x * A(0.70710678118654752440)) + A(1)) * A(0.5);
    }
    template <typename A> static __device__ __forceinline__ A value(A x) { return x * gate(x); }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A x) {
        return (exp(x * x * A(-0.5)) * A(0.39894228040143267794) * x + gate(x)) * grad;
    }
};

// By tanh, which is a logistic function of twice as much.
struct GeluTanh {
    static constexpr bool keeps_output = false;
    static constexpr double inner = 1.5957691216057307117, cubic = 0.044715;  // 2 * sqrt(2 / pi)
    template <typename A> static __device__ __forceinline__ A gate(A x) {
        return logistic((x * x * A(inner * cubic) + A(inner)) * x);
    }
    template <typename A> static __device__ __forceinline__ A value(A x) { return x * gate(x); }
    template <typename A> static __device__ __forceinline__ A gradient(A grad, A x) {
        const A s = gate(x), slope = (x * x * A(3 * inner * cubic) + A(inner)) * x;
        return ((A(1) - s) * slope + A(1)) * s * grad;
    }
};

// Calls body(activation) with the one of this number; the host has the same numbers.
template <typename Body> __device__ __forceinline__ void with_activation(int kind, Body body) {
    switch (kind) {
        case 1: return body(Relu());
        case 2: return body(Tanh());
        case 3: return body(Sigmoid());
        case 4: return body(Silu());
        case 5: return body(Gelu());
        case 6: return body(GeluTanh());
        default: return body(Identity());
    }
}

}  // namespace mg
