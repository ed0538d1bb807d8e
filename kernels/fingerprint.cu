// The fingerprint of an array's bits: the sum, mod 2^64, of mix(bits of element i + (i + 1) * gamma) over its elements,
// mix the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
//
// Sums of integers have no order, so blocks add theirs to the total as they finish.

#include "vector.cuh"

namespace {

using Word = unsigned long long;

__device__ __forceinline__ Word mix(Word z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// `start` elements lie before x in the array of which it is a part. total holds 0 at first.
template <typename U> __device__ void fingerprint(const U* x, long long count, Word start, Word* total) {
    constexpr Word gamma = 0x9E3779B97F4A7C15ull;
    constexpr int N = mg::vector_length<U>();
    Word sum = 0;
    mg::share<N>(mg::grid_worker(), count, mg::aligned<N>(x), [&](auto width, long long first) {
        constexpr int n = decltype(width)::value;
        const mg::Vector<U, n> bits = mg::load<U, n>(x, first);
        for (int k = 0; k < n; ++k) sum += mix(bits.at[k] + (start + static_cast<Word>(first + k) + 1) * gamma);
    });
    sum = mg::block_reduce<mg::Sum>(sum);
    if (threadIdx.x == 0) atomicAdd(total, sum);
}

}  // namespace

#define FINGERPRINT(BITS, U)                                                                                       \
    extern "C" __global__ void fingerprint_##BITS(const U* x, long long count, Word start, Word* total) {          \
        fingerprint(x, count, start, total);                                                                       \
    }

FINGERPRINT(8, unsigned char)
FINGERPRINT(16, unsigned short)
FINGERPRINT(32, unsigned)
FINGERPRINT(64, unsigned long long)
