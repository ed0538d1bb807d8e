#pragma once
// The part of CUDA's <cuda_fp16.h> that kernels here use: conversions, rounding to nearest even.

struct __half {
    uint16_t bits;
};

static inline __half __float2half_rn(float x) {
    const uint32_t all = cpu::from_bits<uint32_t>(cpu::to_bits(x));
    const uint16_t sign = all >> 16 & 0x8000u;
    const uint32_t size = all & 0x7fffffffu;
    if (size > 0x7f800000u) return {0x7fff};                                 // CUDA's one NaN
    if (size >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)}; // 65520 and more: infinite
    uint32_t kept, lost, half;
    if (size >= 0x38800000u) {  // normal
        kept = (size - 0x38000000u) >> 13, lost = size & 0x1fffu, half = 0x1000u;
    } else {                    // subnormal; below 2^-25 all is lost
        if (size < 0x33000000u) return {sign};
        const uint32_t shift = 126 - (size >> 23), fraction = (size & 0x7fffffu) | 0x800000u;
        kept = fraction >> shift, lost = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
    }
    const bool up = lost > half || (lost == half && (kept & 1));
    return {static_cast<uint16_t>(sign | (kept + up))};
}

static inline float __half2float(__half x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    const uint32_t exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ffu;
    if (exponent == 0) {
        const float size = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -size : size;
    }
    const uint32_t wide = exponent == 31 ? 255u : exponent + 112;
    return cpu::from_bits<float>(sign | wide << 23 | fraction << 13);
}

namespace cpu {
CPU_CODE(__half, "f2")
}
