#pragma once
// Matrices by rows: a team of threads, a warp or a whole block, takes one row after the other.

#include "vector.cuh"

namespace mg {

template <bool whole_block> struct Team {
    static __device__ __forceinline__ Worker worker() { return whole_block ? block_worker() : warp_worker(); }
    static __device__ __forceinline__ bool leads() { return worker().index == 0; }

    // The rows of a team: for (long long row = first_row(); row < rows; row += row_stride())
    static __device__ __forceinline__ long long first_row() {
        return whole_block ? blockIdx.x : first_element() / warp_size;
    }
    static __device__ __forceinline__ long long row_stride() {
        return whole_block ? gridDim.x : element_stride() / warp_size;
    }

    // Over the threads of the team, all of which call it; each gets the result.
    template <typename Op, typename T> static __device__ __forceinline__ T reduce(T x) {
        if constexpr (whole_block) return block_reduce<Op>(x);
        else return warp_reduce<Op>(x);
    }
};

}  // namespace mg
