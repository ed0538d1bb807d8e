// Rows of a table that integers name; and back: to each row of the table the sum of the rows that it was picked for.
//
// Sums are deterministic: a warp takes the rows that a table row was picked for in a fixed order, and so do those who
// add up what the warps of a block have.

#include "found.cuh"
#include "rows.cuh"

namespace {

// As CuPy does: an integer out of range wraps around, so that no memory is harmed.
__device__ __forceinline__ long long wrapped(long long i, long long length) {
    if (i >= 0 && i < length) return i;
    const long long rest = i % length;
    return rest < 0 ? rest + length : rest;
}

// out[i] = table[index[i]], rows of `width` elements; an index out of range is kept in `found`, where that is not null.
template <typename T>
__device__ void pick(const T* table, const long long* index, long long count, long long length, long long width,
                     unsigned long long* found, T* out) {
    constexpr int N = mg::vector_length<T>();
    using Team = mg::Team<false>;
    for (long long row = Team::first_row(); row < count; row += Team::row_stride()) {
        const long long name = index[row], place = wrapped(name, length);
        if (found && Team::leads() && name != place) mg::keep_found(found, name, 0, length);
        const T* from = table + place * width;
        T* to = out + row * width;
        mg::share<N>(Team::worker(), width, mg::aligned<N>(from) && mg::aligned<N>(to), [&](auto lanes, long long i) {
            constexpr int n = decltype(lanes)::value;
            mg::store<T, n>(to, i, mg::load<T, n>(from, i));
        });
    }
}

// Sums what the warps of a block have of 32 columns, in the order of the warps; the first warp gets it.
template <typename A> __device__ A over_warps(A sum) {
    __shared__ A partial[mg::max_warps][mg::warp_size];
    const int lane = threadIdx.x % mg::warp_size, warp = threadIdx.x / mg::warp_size;
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp == 0)
        for (int other = 1; other < static_cast<int>(blockDim.x) / mg::warp_size; ++other) sum += partial[other][lane];
    __syncthreads();
    return sum;
}

// out[name] = the sum of the rows whose index is name, 0 for `skipped`. A block takes 32 columns of one name, and looks
// at each index: for few names.
template <typename T, typename A>
__device__ void sum_by_looking(const T* rows, const long long* index, long long count, long long length,
                               long long width, long long skipped, T* out) {
    const int lane = threadIdx.x % mg::warp_size, warp = threadIdx.x / mg::warp_size;
    const long long tiles = (width + mg::warp_size - 1) / mg::warp_size;
    for (long long work = blockIdx.x; work < length * tiles; work += gridDim.x) {
        const long long name = work / tiles, column = work % tiles * mg::warp_size + lane;
        const long long stop = name == skipped ? 0 : count;
        A sum = 0;
        for (long long first = warp * mg::warp_size; first < stop; first += blockDim.x) {
            const bool named = first + lane < count && wrapped(index[first + lane], length) == name;
            for (unsigned left = __ballot_sync(mg::all_lanes, named); left; left &= left - 1) {
                const long long row = first + __ffs(static_cast<int>(left)) - 1;
                if (column < width) sum += mg::widen(rows[row * width + column]);
            }
        }
        sum = over_warps(sum);
        if (warp == 0 && column < width) out[name * width + column] = mg::narrow<T>(sum);
    }
}

// The same for an index in range whose `order` sorts it, into zeros: a block takes 32 columns of one run of equal names.
template <typename T, typename A>
__device__ void sum_by_order(const T* rows, const long long* index, const long long* order, long long count,
                             long long width, long long skipped, T* out) {
    const int lane = threadIdx.x % mg::warp_size, warp = threadIdx.x / mg::warp_size;
    const int warps = blockDim.x / mg::warp_size;
    const long long tiles = (width + mg::warp_size - 1) / mg::warp_size;
    for (long long work = blockIdx.x; work < count * tiles; work += gridDim.x) {
        const long long first = work / tiles, column = work % tiles * mg::warp_size + lane;
        const long long name = index[order[first]];
        if (name == skipped || (first > 0 && index[order[first - 1]] == name)) continue;
        A sum = 0;
        for (long long i = first + warp; i < count && index[order[i]] == name; i += warps)
            if (column < width) sum += mg::widen(rows[order[i] * width + column]);
        sum = over_warps(sum);
        if (warp == 0 && column < width) out[name * width + column] = mg::narrow<T>(sum);
    }
}

}  // namespace

#define EMBEDDING(NAME, T)                                                                                           \
    extern "C" __global__ void embedding_pick_##NAME(const T* table, const long long* index, long long count,        \
                                                     long long length, long long width, unsigned long long* found,   \
                                                     T* out) {                                                       \
        pick(table, index, count, length, width, found, out);                                                        \
    }                                                                                                                \
    extern "C" __global__ void embedding_sum_##NAME(const T* rows, const long long* index, const long long* order,   \
                                                    long long count, long long length, long long width,              \
                                                    long long skipped, T* out) {                                     \
        using A = mg::compute_t<T>;                                                                                  \
        if (order) sum_by_order<T, A>(rows, index, order, count, width, skipped, out);                               \
        else sum_by_looking<T, A>(rows, index, count, length, width, skipped, out);                                  \
    }

EMBEDDING(f32, float)
EMBEDDING(f64, double)
EMBEDDING(f16, __half)
EMBEDDING(bf16, __nv_bfloat16)
