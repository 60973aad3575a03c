// Memory for operands that are timed.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace deltaworks::bench {

// Allocates at cache lines, as ONNX Runtime does: elsewhere every wide load and store crosses one,
// which takes twice the time.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>& /*other*/) {}
  T* allocate(std::size_t size) { return static_cast<T*>(::operator new(size * sizeof(T), kLine)); }
  void deallocate(T* memory, std::size_t /*size*/) { ::operator delete(memory, kLine); }
  friend bool operator==(CacheLineAllocator, CacheLineAllocator) { return true; }
};

template <class T>
using CacheLineVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace deltaworks::bench
