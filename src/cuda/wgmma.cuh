// Hopper's warpgroup products of 16-bit matrices, and the layout of their operands in shared memory.
//
// A tile has rows of 128 bytes (64 elements), starts at a multiple of 1024 bytes, and its 16-byte parts
// are permuted within groups of eight rows (the 128-byte swizzle): part p of row r lies at part
// p ^ (r mod 8). 128 columns are two tiles, one behind the other.
//
// Of a 64 × n product, warp w of the four has rows 16 w …, and lane l of columns 8 j … 8 j + 7 rows
// l / 4 and l / 4 + 8, columns 2 (l mod 4) and the next: sums[4 j … 4 j + 3]. Two neighbouring groups
// of columns, rounded, are a left operand of depth 16.
#pragma once

#include <cstdint>

#include "cuda/async_copy.cuh"
#include "cuda/pack.cuh"

namespace deltaworks::cuda {

inline constexpr int kTileRows = 64, kTileColumns = 64, kTileRowBytes = 128;
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;

struct Left {
  std::uint32_t at[4];
};  // 16 rows of a warp × 16

// Within ±65504, the range of half; a NaN stays one, which fminf and fmaxf would lose.
__device__ inline float in_range_of_half(float x) {
  asm("min.NaN.f32 %0, %0, 0f477FE000;\n"
      "max.NaN.f32 %0, %0, 0fC77FE000;"
      : "+f"(x));
  return x;
}

// Two operands of a product: in float16 an overflow would turn zeros elsewhere into NaN.
template <class T>
__device__ inline std::uint32_t pack2(float low, float high) {
  if constexpr (std::is_same_v<T, Float16>) {
    return narrow2<T>(in_range_of_half(low), in_range_of_half(high));
  } else {
    return narrow2<T>(low, high);
  }
}

// Where 16-byte part `part` of row `row` lies in a tile.
__device__ inline int tile_offset(int row, int part) {
  return row * kTileRowBytes + ((part ^ (row & 7)) << 4);
}

// What a product reads from tiles: bits 0–13 the address, 16–29 the leading and 32–45 the stride
// offset, all in units of 16 bytes, 62–63 the swizzle.
struct Tiles {
  std::uint64_t bits;
  __device__ Tiles skip(int bytes) const { return {bits + static_cast<std::uint64_t>(bytes >> 4)}; }
};

__device__ inline Tiles tiles_at(std::uint32_t shared) {
  constexpr std::uint64_t kGroup = 8 * kTileRowBytes;  // eight rows
  return {static_cast<std::uint64_t>((shared & 0x3ffff) >> 4) |
          static_cast<std::uint64_t>(kTileBytes >> 4) << 16 | (kGroup >> 4) << 32 | 1ull << 62};
}

// Operands along their rows: 16 columns further. Operands across rows: 16 rows further.
inline constexpr int kDepthBytes = 32, kDepthRowsBytes = 16 * kTileRowBytes;
// The tiles of 16 columns k … of a matrix with 128 columns.
__device__ inline Tiles columns_from(const Tiles& tiles, int k) {
  return tiles.skip(k / kTileColumns * kTileBytes + k % kTileColumns / 16 * kDepthBytes);
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending of the committed groups are under way.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading sums before a wait or changing them after products_begin.
template <int kSize>
__device__ inline void hold(float (&sums)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int kSize>
__device__ inline void hold(Left (&left)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(left[i].at[j])::"memory");
  }
}

#define DELTAWORKS_SUMS8(d, i)                                                                  \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), \
      "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define DELTAWORKS_SUMS16(d, i) DELTAWORKS_SUMS8(d, i), DELTAWORKS_SUMS8(d, (i) + 8)
#define DELTAWORKS_SUMS32(d, i) DELTAWORKS_SUMS16(d, i), DELTAWORKS_SUMS16(d, (i) + 16)
#define DELTAWORKS_NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define DELTAWORKS_NAMES32 \
  DELTAWORKS_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DELTAWORKS_NAMES64                                                                        \
  DELTAWORKS_NAMES32                                                                              \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DELTAWORKS_PRODUCT_OF(T)              \
  if constexpr (std::is_same_v<T, Float16>) { \
    DELTAWORKS_PRODUCT("f16");                \
  } else {                                    \
    DELTAWORKS_PRODUCT("bf16");               \
  }                                           \
  static_assert(true)
#define DELTAWORKS_LEFT "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3])

// sums [64, 32] (+)= left [64, 16] · rightᵀ, right [32, 16] in tiles.
#define DELTAWORKS_PRODUCT(type)                                                          \
  asm volatile(                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {" DELTAWORKS_NAMES16 \
      "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;}\n"                                         \
      : DELTAWORKS_SUMS16(sums, 0)                                                        \
      : DELTAWORKS_LEFT, "l"(right.bits), "n"(kAdds ? 1 : 0))
template <class T, bool kAdds>
__device__ inline void multiply(float (&sums)[16], const Left& left, const Tiles& right) {
  DELTAWORKS_PRODUCT_OF(T);
}
#undef DELTAWORKS_PRODUCT

// sums [64, 64] (+)= left [64, 16] · rightᵀ, both in tiles, right [64, 16].
#define DELTAWORKS_PRODUCT(type)                                                          \
  asm volatile(                                                                           \
      "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" DELTAWORKS_NAMES32 \
      "}, %32, %33, p, 1, 1, 0, 0;}\n"                                                    \
      : DELTAWORKS_SUMS32(sums, 0)                                                        \
      : "l"(left.bits), "l"(right.bits), "n"(kAdds ? 1 : 0))
template <class T, bool kAdds>
__device__ inline void multiply(float (&sums)[32], const Tiles& left, const Tiles& right) {
  DELTAWORKS_PRODUCT_OF(T);
}
#undef DELTAWORKS_PRODUCT

// sums [64, 128] += left [64, 16] · right, right [16, 128] in two tiles, its rows those of the tiles.
#define DELTAWORKS_PRODUCT(type)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type       \
               " {" DELTAWORKS_NAMES64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n" \
               : DELTAWORKS_SUMS32(sums, 0), DELTAWORKS_SUMS32(sums, 32)          \
               : DELTAWORKS_LEFT, "l"(right.bits))
template <class T>
__device__ inline void multiply_rows(float (&sums)[64], const Left& left, const Tiles& right) {
  DELTAWORKS_PRODUCT_OF(T);
}
#undef DELTAWORKS_PRODUCT
#undef DELTAWORKS_PRODUCT_OF
#undef DELTAWORKS_LEFT
#undef DELTAWORKS_NAMES16
#undef DELTAWORKS_NAMES32
#undef DELTAWORKS_NAMES64
#undef DELTAWORKS_SUMS8
#undef DELTAWORKS_SUMS16
#undef DELTAWORKS_SUMS32

// Columns 16 k … 16 k + 15 of sums as a left operand.
template <class T>
__device__ inline Left left_of(const float* sums, int k) {
  const float* const s = sums + 8 * k;
  return {{pack2<T>(s[0], s[1]), pack2<T>(s[2], s[3]), pack2<T>(s[4], s[5]), pack2<T>(s[6], s[7])}};
}

// Four transposed 8 × 8 matrices, whose rows start where lanes 0 … 7, 8 … 15, … point.
__device__ inline void load_transposed(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ inline void store_transposed(const std::uint32_t (&from)[4], std::uint32_t row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// What this thread wrote to shared memory, before a barrier, for the products that follow it.
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers of a thread of this warpgroup, from those that the kernel started with.
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace deltaworks::cuda
