/// Element types. A 16-bit element is stored as its bits; all arithmetic is float32.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace deltaworks {

enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt32 };

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kInt32: return "int32";
  }
  return "unknown";
}

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Float16 {
  std::uint16_t bits;
  friend bool operator==(Float16, Float16) = default;
};

/// The upper half of a float32: 1 sign, 8 exponent, 7 fraction bits.
struct BFloat16 {
  std::uint16_t bits;
  friend bool operator==(BFloat16, BFloat16) = default;
};

template <class T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) {
    return DType::kFloat32;
  } else if constexpr (std::is_same_v<U, Float16>) {
    return DType::kFloat16;
  } else if constexpr (std::is_same_v<U, BFloat16>) {
    return DType::kBFloat16;
  } else {
    static_assert(std::is_same_v<U, std::int32_t>, "no such element type");
    return DType::kInt32;
  }
}

constexpr float to_float(float x) { return x; }

constexpr float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

constexpr float to_float(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity and NaN keep their fraction
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  }
  // Exponent and fraction moved into place are too small by 2^112; the product is exact, subnormals
  // included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

/// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN, an overflow becomes infinity.
template <class T>
constexpr T from_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    if (x != x) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
  } else {
    static_assert(std::is_same_v<T, Float16>, "no such element type");
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (x != x) return {static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
    if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // >= 65520
    if (magnitude <
        0x38800000u) {  // below 2^-14: one float32 addition rounds to multiples of 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return {
          static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
    }
    const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
    return {static_cast<std::uint16_t>(sign | rounded >> 13)};
  }
}

}  // namespace deltaworks
