#pragma once
// The names of CUDA C++ that kernels use, for g++. A kernel is compiled with this header in front of its text.

#include <cmath>
#include <cstdio>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime.h"

// ------------------------------------------------------------------------------------------- qualifiers and indices

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local  // for the linker puts these into a place of their own; all fibers see the same
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (cpu::thread.index)
#define blockIdx (cpu::thread.block)
#define blockDim (cpu::thread.block_size)
#define gridDim (cpu::thread.grid_size)

// --------------------------------------------------------------------------------------------------- blocks and warps

#define __syncthreads() ((void)cpu::barrier(0, cpu::Vote::count, __LINE__))
#define __syncthreads_count(predicate) cpu::barrier(predicate, cpu::Vote::count, __LINE__)
#define __syncthreads_and(predicate) cpu::barrier(predicate, cpu::Vote::all, __LINE__)
#define __syncthreads_or(predicate) cpu::barrier(predicate, cpu::Vote::any, __LINE__)

namespace cpu {

template <typename T> uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <typename T> T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The value of lane `source`, or the caller's own where the shuffle leaves its segment.
template <typename T> T shuffle(unsigned mask, T value, int source, bool inside, const char* who) {
    const uint64_t* values = exchange(mask, to_bits(value), who);
    if (!inside) return value;
    if (!(mask >> source & 1)) fail("%s: reads lane %d, which is not in the mask", who, source);
    return from_bits<T>(values[source]);
}

}  // namespace cpu

template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int first = cpu::thread.lane() & ~(width - 1);
    return cpu::shuffle(mask, value, first | (source & (width - 1)), true, "__shfl_sync");
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int lane = cpu::thread.lane(), step = static_cast<int>(distance);
    return cpu::shuffle(mask, value, lane + step, (lane & (width - 1)) + step < width, "__shfl_down_sync");
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int lane = cpu::thread.lane(), step = static_cast<int>(distance);
    return cpu::shuffle(mask, value, lane - step, (lane & (width - 1)) >= step, "__shfl_up_sync");
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int flips, int width = 32) {
    const int lane = cpu::thread.lane(), source = (lane ^ flips) & 31;
    return cpu::shuffle(mask, value, source, source / width == lane / width, "__shfl_xor_sync");
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const uint64_t* votes = cpu::exchange(mask, predicate != 0, "__ballot_sync");
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane)
        if ((mask >> lane & 1) && votes[lane]) ballot |= 1u << lane;
    return ballot;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { cpu::exchange(mask, 0, "__syncwarp"); }
static inline unsigned __activemask() { return cpu::live_lanes(); }
static inline void __threadfence() {}

// ---------------------------------------------------------------------------------------------------------- atomics
// Threads of a launch take turns, so a plain read and write is atomic; the check does not call it a race.

namespace cpu {

template <typename T, typename Change>
__attribute__((noinline, no_sanitize("thread"))) T exchange_atomically(T* address, Change change) {
    check_atomic(address, sizeof(T));
    const T old = *address;
    *address = change(old);
    return old;
}

}  // namespace cpu

#define CPU_ATOMIC(NAME, RESULT)                                                      \
    template <typename T> T NAME(T* address, std::common_type_t<T> value) {          \
        return cpu::exchange_atomically(address, [=](T old) -> T { return RESULT; }); \
    }
CPU_ATOMIC(atomicAdd, old + value)
CPU_ATOMIC(atomicMax, old < value ? value : old)
CPU_ATOMIC(atomicMin, value < old ? value : old)
CPU_ATOMIC(atomicExch, value)
CPU_ATOMIC(atomicOr, old | value)
template <typename T> T atomicCAS(T* address, std::common_type_t<T> expected, std::common_type_t<T> value) {
    return cpu::exchange_atomically(address, [=](T old) -> T { return old == expected ? value : old; });
}

// ------------------------------------------------------------------------------------------------------------- maths

static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(x) * y) >> 64);
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
static inline int __float_as_int(float x) { return cpu::from_bits<int>(cpu::to_bits(x)); }
static inline float __int_as_float(int x) { return cpu::from_bits<float>(cpu::to_bits(x)); }
static inline unsigned __float_as_uint(float x) { return cpu::from_bits<unsigned>(cpu::to_bits(x)); }
static inline float __uint_as_float(unsigned x) { return cpu::from_bits<float>(cpu::to_bits(x)); }
#define CPU_MIN_MAX(T)                                       \
    static inline T min(T x, T y) { return y < x ? y : x; } \
    static inline T max(T x, T y) { return x < y ? y : x; }
CPU_MIN_MAX(int)
CPU_MIN_MAX(unsigned)
CPU_MIN_MAX(long long)
CPU_MIN_MAX(unsigned long long)
CPU_MIN_MAX(float)
CPU_MIN_MAX(double)
using std::erf;
using std::exp;
using std::fabs;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::log;
using std::pow;
using std::sqrt;
using std::tanh;

// ----------------------------------------------------------------------------------------------------------- exports

namespace cpu {

// The code of a parameter's type: NumPy's letter and bytes; '*' in front for each level of pointer. 'V' is a struct.
template <typename T> struct Code {
    static const char* get() {
        static char text[16];
        std::snprintf(text, sizeof text, "V%zu", sizeof(T));
        return text;
    }
};
template <typename T> struct Code<T*> {
    static const char* get() {
        static char text[16];
        return std::strcat(std::strcpy(text, "*"), Code<std::remove_cv_t<T>>::get());
    }
};
#define CPU_CODE(T, TEXT) \
    template <> struct Code<T> { static const char* get() { return TEXT; } };
CPU_CODE(float, "f4")
CPU_CODE(double, "f8")
CPU_CODE(bool, "b1")
CPU_CODE(signed char, "i1")
CPU_CODE(short, "i2")
CPU_CODE(unsigned char, "u1")
CPU_CODE(unsigned short, "u2")
CPU_CODE(int, "i4")
CPU_CODE(unsigned, "u4")
CPU_CODE(long long, "i8")
CPU_CODE(unsigned long long, "u8")

template <auto kernel, typename Signature = decltype(kernel)> struct Launcher;
template <auto kernel, typename... P> struct Launcher<kernel, void (*)(P...)> {
    static inline std::tuple<std::remove_cv_t<P>...> arguments;

    static const char* parameters() {
        static char text[12 * sizeof...(P) + 1] = "";
        if (!*text) (std::strcat(std::strcat(text, Code<std::remove_cv_t<P>>::get()), " "), ...);
        return text;
    }
    template <size_t... I> static void copy(void** values, std::index_sequence<I...>) {
        ((std::get<I>(arguments) = *static_cast<std::remove_cv_t<P>*>(values[I])), ...);
    }
    static int launch(const Launch& shape, void** values) {
        copy(values, std::index_sequence_for<P...>{});
        return run(shape, [] { std::apply(kernel, arguments); });
    }
};

template <auto kernel> struct Registration {
    explicit Registration(const char* name) {
        add_export({name, Launcher<kernel>::parameters(), &Launcher<kernel>::launch});
    }
};

}  // namespace cpu

#define CPU_EXPORT(NAME) static cpu::Registration<&NAME> cpu_export_##NAME(#NAME);
