#pragma once
// The softmax of a row in one pass: each thread keeps its largest element and the sum of exp(x - largest), which it
// rescales when a larger one comes (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).

#include "rows.cuh"

namespace mg {

template <typename A> __device__ __forceinline__ A lowest() { return static_cast<A>(-3.402823466e38f); }
template <> __device__ __forceinline__ double lowest() { return -1.7976931348623157e308; }

// It starts from the lowest finite number: so -inf adds 0, and the largest element of nothing but -inf is finite.
template <typename A> struct Normalizer {
    A largest = lowest<A>(), total = 0;

    __device__ __forceinline__ void add(A x) {
        if (x > largest) total = total * exp(largest - x) + A(1), largest = x;
        else total += exp(x - largest);  // NaN comes here, and stays
    }

    // That of the whole row, for each thread of its team, all of which call it.
    template <typename Team> __device__ __forceinline__ Normalizer over() const {
        Normalizer all;
        all.largest = Team::template reduce<Max>(largest);
        all.total = Team::template reduce<Sum>(total * exp(largest - all.largest));
        return all;
    }
};

}  // namespace mg
