#pragma once
// The part of CUDA's <cuda_bf16.h> that kernels here use: conversions, rounding to nearest even.

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    const uint32_t all = cpu::from_bits<uint32_t>(cpu::to_bits(x));
    if ((all & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // CUDA's one NaN
    return {static_cast<uint16_t>((all + 0x7fffu + (all >> 16 & 1)) >> 16)};
}

static inline float __bfloat162float(__nv_bfloat16 x) {
    return cpu::from_bits<float>(static_cast<uint32_t>(x.bits) << 16);
}

namespace cpu {
CPU_CODE(__nv_bfloat16, "bf2")
}
