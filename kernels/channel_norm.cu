// Norms of images with the channels last, as rows of channels: batch, group and instance norm, forward and backward.
//
// The rows come in segments of equal length: one for batch norm, one a sample for the others. A segment's rows of one
// group of channels share mean and variance. A segment is cut into parts. A first kernel leaves, for each channel of
// each part, what a second one merges in every block that needs it, always in the same order.
//
// Moments of a part are a value of it, what its mean is away from that, and the squares about its mean: so no digit is
// lost where the mean is large. They are merged as Chan, Golub and LeVeque do, "Updating formulae and a pairwise
// algorithm for computing sample variances", 1979, and a mean is kept as two numbers: rounded, and what that took away.

#include "columns.cuh"

namespace {

struct Shape {
    int segments, channels, groups, parts, inside;  // parts: of a segment; inside: channels of a group
    long long length, height;                       // rows of a segment; of a part, the last may have fewer

    template <typename A> __device__ __forceinline__ A population() const {
        return static_cast<A>(length) * static_cast<A>(inside);
    }
    __device__ __forceinline__ long long rows_of(int part) const {
        return part + 1 < parts ? height : length - part * height;
    }
    // Where the numbers of a channel start: one for each part, those of the next channel behind them.
    __device__ __forceinline__ long long run(int segment, int channel) const {
        return (static_cast<long long>(segment) * channels + channel) * parts;
    }
    // Where the statistics of a group are.
    __device__ __forceinline__ long long place(int segment, int group) const {
        return static_cast<long long>(segment) * groups + group;
    }
};

// A tile of channels of a part of a segment: what a block works on at a time.
template <typename T> struct Work {
    int tile, part, segment;
    long long start, stop;  // rows of the matrix

    static __device__ __forceinline__ int tiles(const Shape& shape) {
        return (shape.channels + mg::tile_columns<T>() - 1) / mg::tile_columns<T>();
    }
    static __device__ __forceinline__ int total(const Shape& shape) {
        return shape.segments * shape.parts * tiles(shape);
    }
    __device__ __forceinline__ Work(const Shape& shape, int number) {
        const int parts = number / tiles(shape);
        tile = number % tiles(shape), segment = parts / shape.parts, part = parts % shape.parts;
        start = segment * shape.length + part * shape.height, stop = start + shape.rows_of(part);
    }

    // The groups that have a channel in the tile.
    __device__ __forceinline__ int first_channel() const { return tile * mg::tile_columns<T>(); }
    __device__ __forceinline__ int first_group(const Shape& shape) const { return first_channel() / shape.inside; }
    __device__ __forceinline__ int end_group(const Shape& shape) const {
        const int end = first_channel() + mg::tile_columns<T>();
        return ((end < shape.channels ? end : shape.channels) - 1) / shape.inside + 1;
    }
    // Whether what is to be written once for a group is to be written here.
    __device__ __forceinline__ bool writes(const Shape& shape, int group) const {
        return part == 0 && group * shape.inside >= first_channel();
    }
};

// Threads that merge together: a warp, or the whole block. The teams of a block take turns.
struct Team {
    bool whole;

    __device__ __forceinline__ int size() const { return whole ? blockDim.x : mg::warp_size; }
    __device__ __forceinline__ int member() const { return threadIdx.x % size(); }
    __device__ __forceinline__ int number() const { return threadIdx.x / size(); }
    __device__ __forceinline__ int count() const { return blockDim.x / size(); }
    template <typename A> __device__ __forceinline__ A sum(A x) const {
        return whole ? mg::block_reduce<mg::Sum>(x) : mg::warp_reduce<mg::Sum>(x);
    }
};

template <typename A> struct Moments {
    A mean, rest, variance;  // mean + rest is the mean
};

// -------------------------------------------------------------------------------------------------------- forward

template <typename T, bool wide, typename A = mg::compute_t<T>>
__device__ __forceinline__ void moments(const T* x, const Shape& shape, A* about, A* away, A* squares) {
    using Columns = mg::Columns<T, wide>;
#pragma unroll 1
    for (int number = blockIdx.x; number < Work<T>::total(shape); number += gridDim.x) {
        const Work<T> work(shape, number);
        const Columns columns(work.tile, shape.channels);
        A center[Columns::count], first[Columns::count], sum[Columns::count], square[Columns::count], count = 0;
        columns.read(x, work.start, center);
        long long row = work.start + columns.first_row();
        columns.read(x, row < work.stop ? row : work.start, first);
        for (int k = 0; k < Columns::count; ++k) sum[k] = square[k] = 0;
#pragma unroll 2
        for (; row < work.stop; row += columns.rows()) {
            A values[Columns::count];
            columns.read(x, row, values);
            for (int k = 0; k < Columns::count; ++k) {
                const A value = values[k] - first[k];
                sum[k] += value;
                square[k] += value * value;
            }
            count += A(1);
        }
        A own[Columns::count], mean[Columns::count];
        for (int k = 0; k < Columns::count; ++k) {
            const A shift = count > A(0) ? sum[k] / count : A(0);
            square[k] -= sum[k] * shift;
            own[k] = count > A(0) ? (first[k] - center[k]) + shift : A(0);
            mean[k] = own[k] * count;
        }
        mg::sum_by_lane(mean, columns.lanes);
        for (int k = 0; k < Columns::count; ++k) {
            mean[k] /= static_cast<A>(work.stop - work.start);
            square[k] += (own[k] - mean[k]) * (own[k] - mean[k]) * count;
        }
        mg::sum_by_lane(square, columns.lanes);
        if (columns.first_row() != 0) continue;
        for (int k = 0; k < Columns::count; ++k) {
            if (!columns.has(k)) continue;
            const long long i = shape.run(work.segment, columns.at(k)) + work.part;
            about[i] = center[k], away[i] = mean[k], squares[i] = square[k];
        }
    }
}

// The moments of a group, from those of its channels and parts; every thread of the team gets them.
template <typename A>
__device__ __forceinline__ Moments<A> merged(Team team, const Shape& shape, int segment, int group, const A* about,
                                             const A* away, const A* squares) {
    const long long run = shape.run(segment, group * shape.inside);
    const int items = shape.inside * shape.parts;
    const A center = about[run];
    A sum = 0, square = 0;
#pragma unroll 1
    for (int i = team.member(); i < items; i += team.size())
        sum += ((about[run + i] - center) + away[run + i]) * static_cast<A>(shape.rows_of(i % shape.parts));
    const A mean = team.sum(sum) / shape.population<A>();
#pragma unroll 1
    for (int i = team.member(); i < items; i += team.size()) {
        const A distance = ((about[run + i] - center) + away[run + i]) - mean;
        square += squares[run + i] + distance * distance * static_cast<A>(shape.rows_of(i % shape.parts));
    }
    square = team.sum(square);
    const A rounded = center + mean, added = rounded - center;  // Knuth's sum of two numbers
    return {rounded, (center - (rounded - added)) + (mean - added), square / shape.population<A>()};
}

// Running statistics, which one block moves towards the batch's: (1 - momentum) * running + momentum * new.
template <typename T> struct Running {
    T *mean, *variance;  // null where there are none
    long long* batches;
    double momentum;

    template <typename A>
    __device__ __forceinline__ void move(int channel, const Moments<A>& found, A population) const {
        const A kept = A(1.0 - momentum), share = A(momentum), unbiased = population / (population - A(1));
        if (mean) mean[channel] = mg::narrow<T>(mg::widen(mean[channel]) * kept + found.mean * share);
        if (variance)
            variance[channel] = mg::narrow<T>(mg::widen(variance[channel]) * kept + found.variance * unbiased * share);
    }
};

// What a forward pass leaves for the backward one, (segments, groups) each; variances may be null.
template <typename A> struct Found {
    A *means, *rests, *rstds, *variances;
};

// Where moments come from: those of parts, or else fixed ones of each channel, or else 0 and 1. Fixed ones are in the
// dtype of the rows, or, without squares, wide ones in about and away.
template <typename T, typename A> struct Source {
    const A *about, *away, *squares;
    const T *mean, *variance;
};

template <typename T, bool wide, typename A>
__device__ __forceinline__ void normalize_rows(const T* x, const T* gain, const T* shift, const Shape& shape,
                                               const Work<T>& work, const A* means, const A* rests, const A* rstds,
                                               T* y) {
    using Columns = mg::Columns<T, wide>;
    const Columns columns(work.tile, shape.channels);
    A mean[Columns::count], rest[Columns::count], scale[Columns::count], offset[Columns::count];
    for (int k = 0; k < Columns::count; ++k) {
        const int channel = columns.has(k) ? columns.at(k) : work.first_channel();
        const int group = channel / shape.inside - work.first_group(shape);
        mean[k] = means[group], rest[k] = rests[group];
        scale[k] = gain ? rstds[group] * mg::widen(gain[channel]) : rstds[group];
        offset[k] = shift ? mg::widen(shift[channel]) : A(0);
    }
#pragma unroll 1
    for (long long row = work.start + columns.first_row(); row < work.stop; row += columns.rows()) {
        A values[Columns::count];
        columns.read(x, row, values);
        for (int k = 0; k < Columns::count; ++k) values[k] = ((values[k] - mean[k]) - rest[k]) * scale[k] + offset[k];
        columns.write(y, row, values);
    }
}

// y = (x - mean) / sqrt(variance + eps) * gain + shift.
template <typename T, typename A>
__device__ __forceinline__ void normalize(const T* x, const T* gain, const T* shift, const Shape& shape, double eps,
                                          Team team, const Source<T, A>& source, const Running<T>& running, T* y,
                                          const Found<A>& found) {
    __shared__ A means[mg::tile_columns<T>()], rests[mg::tile_columns<T>()], rstds[mg::tile_columns<T>()];
    const bool wide = mg::rows_aligned(x, shape.channels) && mg::rows_aligned(y, shape.channels);
#pragma unroll 1
    for (int number = blockIdx.x; number < Work<T>::total(shape); number += gridDim.x) {
        const Work<T> work(shape, number);
        const int first = work.first_group(shape), end = work.end_group(shape);
        __syncthreads();
#pragma unroll 1
        for (int group = first + team.number(); group < end; group += team.count()) {
            Moments<A> own{A(0), A(0), A(1)};
            if (source.squares)
                own = merged(team, shape, work.segment, group, source.about, source.away, source.squares);
            else if (source.mean)
                own = {mg::widen(source.mean[group]), A(0), mg::widen(source.variance[group])};
            else if (source.about)
                own = {source.about[group], A(0), source.away[group]};
            if (team.member() != 0) continue;
            const A rstd = A(1) / sqrt(own.variance + A(eps));
            means[group - first] = own.mean, rests[group - first] = own.rest, rstds[group - first] = rstd;
            if (!work.writes(shape, group)) continue;
            const long long i = shape.place(work.segment, group);
            found.means[i] = own.mean, found.rests[i] = own.rest, found.rstds[i] = rstd;
            if (found.variances) found.variances[i] = own.variance;
            running.move(group, own, shape.population<A>());
        }
        __syncthreads();
        if (number == 0 && threadIdx.x == 0 && running.batches) *running.batches += 1;
        if (wide) normalize_rows<T, true>(x, gain, shift, shape, work, means, rests, rstds, y);
        else normalize_rows<T, false>(x, gain, shift, shape, work, means, rests, rstds, y);
    }
}

// ------------------------------------------------------------------------------------------------------- backward

// For each channel of each part the sum of grad, and of grad * normal, normal = (x - mean) * rstd.
template <typename T, bool wide, typename A = mg::compute_t<T>>
__device__ __forceinline__ void sums(const T* grad, const T* x, const Shape& shape, const Found<const A>& found,
                                     A* totals, A* weighted) {
    using Columns = mg::Columns<T, wide>;
#pragma unroll 1
    for (int number = blockIdx.x; number < Work<T>::total(shape); number += gridDim.x) {
        const Work<T> work(shape, number);
        const Columns columns(work.tile, shape.channels);
        A mean[Columns::count], rest[Columns::count], rstd[Columns::count];
        A total[Columns::count], product[Columns::count];
        for (int k = 0; k < Columns::count; ++k) {
            const int channel = columns.has(k) ? columns.at(k) : 0;
            const long long i = shape.place(work.segment, channel / shape.inside);
            mean[k] = found.means[i], rest[k] = found.rests[i], rstd[k] = found.rstds[i];
            total[k] = product[k] = 0;
        }
#pragma unroll 2
        for (long long row = work.start + columns.first_row(); row < work.stop; row += columns.rows()) {
            A slopes[Columns::count], values[Columns::count];
            columns.read(grad, row, slopes);
            columns.read(x, row, values);
            for (int k = 0; k < Columns::count; ++k) {
                total[k] += slopes[k];
                product[k] += slopes[k] * (((values[k] - mean[k]) - rest[k]) * rstd[k]);
            }
        }
        mg::sum_by_lane(total, columns.lanes);
        mg::sum_by_lane(product, columns.lanes);
        if (columns.first_row() != 0) continue;
        for (int k = 0; k < Columns::count; ++k) {
            if (!columns.has(k)) continue;
            const long long i = shape.run(work.segment, columns.at(k)) + work.part;
            totals[i] = total[k], weighted[i] = product[k];
        }
    }
}

// dshift and dgain of one channel: the sums over its segments and parts.
template <typename T, typename A>
__device__ __forceinline__ void channel_gradient(Team team, const Shape& shape, int channel, const A* totals,
                                                 const A* weighted, T* dgain, T* dshift) {
    A total = 0, product = 0;
#pragma unroll 1
    for (int i = team.member(); i < shape.segments * shape.parts; i += team.size()) {
        const long long at = shape.run(i / shape.parts, channel) + i % shape.parts;
        total += totals[at];
        product += weighted[at];
    }
    total = team.sum(total);
    product = team.sum(product);
    if (team.member() != 0) return;
    if (dshift) dshift[channel] = mg::narrow<T>(total);
    if (dgain) dgain[channel] = mg::narrow<T>(product);
}

// dx = rstd * (h - mean(h) - normal * mean(h * normal)), h = grad * gain, with the means of each group of the tile.
// With fixed statistics it is rstd * h, whatever x is: infinite, too.
template <typename T, bool wide, typename A>
__device__ __forceinline__ void row_gradients(const T* grad, const T* x, const T* gain, const Shape& shape,
                                              const Work<T>& work, const Found<const A>& found, bool fixed,
                                              const A* means, const A* shares, T* dx) {
    using Columns = mg::Columns<T, wide>;
    const Columns columns(work.tile, shape.channels);
    A mean[Columns::count], rest[Columns::count], rstd[Columns::count], factor[Columns::count];
    A total[Columns::count], share[Columns::count];
    for (int k = 0; k < Columns::count; ++k) {
        const int channel = columns.has(k) ? columns.at(k) : work.first_channel(), group = channel / shape.inside;
        const long long i = shape.place(work.segment, group);
        mean[k] = found.means[i], rest[k] = found.rests[i], rstd[k] = found.rstds[i];
        factor[k] = gain ? mg::widen(gain[channel]) : A(1);
        total[k] = means[group - work.first_group(shape)], share[k] = shares[group - work.first_group(shape)];
    }
#pragma unroll 1
    for (long long row = work.start + columns.first_row(); row < work.stop; row += columns.rows()) {
        A slopes[Columns::count], values[Columns::count];
        columns.read(grad, row, slopes);
        for (int k = 0; k < Columns::count; ++k) slopes[k] *= factor[k];
        if (!fixed) {
            columns.read(x, row, values);
            for (int k = 0; k < Columns::count; ++k) {
                const A normal = ((values[k] - mean[k]) - rest[k]) * rstd[k];
                slopes[k] = slopes[k] - total[k] - normal * share[k];
            }
        }
        for (int k = 0; k < Columns::count; ++k) slopes[k] *= rstd[k];
        columns.write(dx, row, slopes);
    }
}

// The first turns give dgain and dshift, a channel a team of `columns`; the others dx. Null is what is not wanted.
// Without sums the statistics were fixed, and dx is rstd * h.
template <typename T, typename A>
__device__ __forceinline__ void gradients(const T* grad, const T* x, const T* gain, const Shape& shape,
                                          const Found<const A>& found, int fixed, Team team, Team columns,
                                          const A* totals, const A* weighted, T* dx, T* dgain, T* dshift) {
    __shared__ A means[mg::tile_columns<T>()], shares[mg::tile_columns<T>()];
    const bool wide = mg::rows_aligned(x, shape.channels) && mg::rows_aligned(grad, shape.channels) &&
                      mg::rows_aligned(dx, shape.channels);
    const int by_channel = dgain || dshift ? (shape.channels + columns.count() - 1) / columns.count() : 0;
    const int all = by_channel + (dx ? Work<T>::total(shape) : 0);
#pragma unroll 1
    for (int number = blockIdx.x; number < all; number += gridDim.x) {
        if (number < by_channel) {
            const int channel = number * columns.count() + columns.number();
            if (channel < shape.channels)
                channel_gradient(columns, shape, channel, totals, weighted, dgain, dshift);
            continue;
        }
        const Work<T> work(shape, number - by_channel);
        const int first = work.first_group(shape), end = work.end_group(shape);
        __syncthreads();
#pragma unroll 1
        for (int group = first + team.number(); group < end; group += team.count()) {
            const int channel = group * shape.inside, items = fixed ? 0 : shape.inside * shape.parts;
            const long long run = shape.run(work.segment, channel);
            A total = 0, product = 0;
#pragma unroll 1
            for (int i = team.member(); i < items; i += team.size()) {
                const A factor = gain ? mg::widen(gain[channel + i / shape.parts]) : A(1);
                total += totals[run + i] * factor;
                product += weighted[run + i] * factor;
            }
            total = team.sum(total) / shape.population<A>();
            product = team.sum(product) / shape.population<A>();
            if (team.member() == 0) means[group - first] = total, shares[group - first] = product;
        }
        __syncthreads();
        if (wide) row_gradients<T, true>(grad, x, gain, shape, work, found, fixed != 0, means, shares, dx);
        else row_gradients<T, false>(grad, x, gain, shape, work, found, fixed != 0, means, shares, dx);
    }
}

}  // namespace

// The numbers that say how rows are shared out, all below 2**31 but for the lengths.
#define SIZES int segments, int channels, int groups, int parts, long long length, long long height
#define SHAPE Shape{segments, channels, groups, parts, channels / groups, length, height}

#define CHANNEL_NORM(NAME, T)                                                                                         \
    extern "C" __global__ void channel_norm_moments_##NAME(const T* x, SIZES, mg::compute_t<T>* about,                \
                                                           mg::compute_t<T>* away, mg::compute_t<T>* squares) {       \
        if (mg::rows_aligned(x, channels)) moments<T, true>(x, SHAPE, about, away, squares);                          \
        else moments<T, false>(x, SHAPE, about, away, squares);                                                       \
    }                                                                                                                 \
    extern "C" __global__ void channel_norm_normalize_##NAME(                                                         \
        const T* x, const T* gain, const T* shift, SIZES, double eps, int by_block, const mg::compute_t<T>* about,    \
        const mg::compute_t<T>* away, const mg::compute_t<T>* squares, const T* fixed_mean, const T* fixed_variance,  \
        T* running_mean, T* running_variance, long long* batches, double momentum, T* y, mg::compute_t<T>* means,     \
        mg::compute_t<T>* rests, mg::compute_t<T>* rstds, mg::compute_t<T>* variances) {                              \
        const Source<T, mg::compute_t<T>> source{about, away, squares, fixed_mean, fixed_variance};                   \
        const Running<T> running{running_mean, running_variance, batches, momentum};                                  \
        const Found<mg::compute_t<T>> found{means, rests, rstds, variances};                                          \
        normalize(x, gain, shift, SHAPE, eps, Team{by_block != 0}, source, running, y, found);                        \
    }                                                                                                                 \
    extern "C" __global__ void channel_norm_sums_##NAME(                                                              \
        const T* grad, const T* x, SIZES, const mg::compute_t<T>* means, const mg::compute_t<T>* rests,               \
        const mg::compute_t<T>* rstds, mg::compute_t<T>* totals, mg::compute_t<T>* weighted) {                        \
        const Found<const mg::compute_t<T>> found{means, rests, rstds, nullptr};                                      \
        if (mg::rows_aligned(x, channels) && mg::rows_aligned(grad, channels))                                        \
            sums<T, true>(grad, x, SHAPE, found, totals, weighted);                                                   \
        else                                                                                                          \
            sums<T, false>(grad, x, SHAPE, found, totals, weighted);                                                  \
    }                                                                                                                 \
    extern "C" __global__ void channel_norm_gradients_##NAME(                                                         \
        const T* grad, const T* x, const T* gain, SIZES, const mg::compute_t<T>* means,                               \
        const mg::compute_t<T>* rests, const mg::compute_t<T>* rstds, int fixed, int by_block, int long_columns,      \
        const mg::compute_t<T>* totals, const mg::compute_t<T>* weighted, T* dx, T* dgain, T* dshift) {               \
        const Found<const mg::compute_t<T>> found{means, rests, rstds, nullptr};                                      \
        gradients(grad, x, gain, SHAPE, found, fixed, Team{by_block != 0}, Team{long_columns != 0}, totals, weighted, \
                  dx, dgain, dshift);                                                                                 \
    }

CHANNEL_NORM(f32, float)
CHANNEL_NORM(f64, double)
CHANNEL_NORM(f16, __half)
CHANNEL_NORM(bf16, __nv_bfloat16)
