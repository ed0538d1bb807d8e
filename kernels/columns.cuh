#pragma once
// Matrices by columns: a block takes a tile of columns, and its threads take the rows in turns.
//
// Threads that lie side by side have a row's columns of the tile, at most 128 bytes of them: each several that move in
// one instruction where memory is aligned (`wide`), else single ones that lie `lanes` apart.

#include "vector.cuh"

namespace mg {

constexpr int column_warps = 8;  // of a block that works on columns, at most

template <typename T> constexpr int tile_columns() { return 128 / static_cast<int>(sizeof(T)); }

// Of values that the threads of a block have, the sum over those whose numbers are equal modulo `lanes`, a power of two
// of at most 32, in one order; each thread gets its own. All threads of the block call it, and may do so again at once.
template <int N, typename A> __device__ __forceinline__ void sum_by_lane(A (&values)[N], int lanes) {
    __shared__ A partial[column_warps][N][warp_size];
    const int place = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, warps = blockDim.x / warp_size;
#pragma unroll 1
    for (int distance = warp_size / 2; distance >= lanes; distance /= 2)
        for (int k = 0; k < N; ++k) values[k] += __shfl_xor_sync(all_lanes, values[k], distance);
    __syncthreads();
    for (int k = 0; k < N; ++k) partial[warp][k][place] = values[k];
    __syncthreads();
    for (int k = 0; k < N; ++k) values[k] = partial[0][k][place];
#pragma unroll 1
    for (int w = 1; w < warps; ++w)
        for (int k = 0; k < N; ++k) values[k] += partial[w][k][place];
}

// The columns of a thread: `count` of them. Those that the matrix does not have are read as 0 and not written.
template <typename T, bool wide> struct Columns {
    using A = compute_t<T>;
    static constexpr int of_tile = tile_columns<T>();
    static constexpr int width = wide ? vector_length<T>() : 1;
    static constexpr int count = wide ? width : (of_tile + warp_size - 1) / warp_size;

    int total, first, lanes;  // columns of the matrix; the first of this thread

    __device__ __forceinline__ Columns(int tile, int columns) : total(columns), lanes(1) {
        const int most = columns < of_tile ? columns : of_tile;
        while (lanes * width < most && lanes < warp_size) lanes *= 2;
        first = tile * of_tile + static_cast<int>(threadIdx.x % lanes) * width;
    }

    __device__ __forceinline__ int at(int k) const { return first + (wide ? k : k * lanes); }
    __device__ __forceinline__ bool has(int k) const { return at(k) < total; }

    // The rows of a thread: for (long long row = start + first_row(); row < stop; row += rows())
    __device__ __forceinline__ int first_row() const { return threadIdx.x / lanes; }
    __device__ __forceinline__ int rows() const { return blockDim.x / lanes; }

    __device__ __forceinline__ void read(const T* x, long long row, A (&values)[count]) const {
        const T* in = x + row * total;
        if constexpr (wide) {
            if (!has(0)) {
                for (int k = 0; k < count; ++k) values[k] = 0;
                return;
            }
            const Vector<T, width> found = load<T, width>(in, first);
            for (int k = 0; k < count; ++k) values[k] = widen(found.at[k]);
        } else {
            for (int k = 0; k < count; ++k) values[k] = has(k) ? widen(in[at(k)]) : A(0);
        }
    }

    __device__ __forceinline__ void write(T* y, long long row, const A (&values)[count]) const {
        T* out = y + row * total;
        if constexpr (wide) {
            if (!has(0)) return;
            Vector<T, width> given;
            for (int k = 0; k < count; ++k) given.at[k] = narrow<T>(values[k]);
            store<T, width>(out, first, given);
        } else {
            for (int k = 0; k < count; ++k)
                if (has(k)) out[at(k)] = narrow<T>(values[k]);
        }
    }
};

// Whether a matrix can be read and written by vectors.
template <typename T> __device__ __forceinline__ bool rows_aligned(const T* x, int columns) {
    return columns % vector_length<T>() == 0 && aligned<vector_length<T>()>(x);
}

}  // namespace mg
