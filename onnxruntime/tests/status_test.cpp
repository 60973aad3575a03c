// Errors on their way through the C interface, also when memory does not suffice to tell them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "operator.hpp"

namespace {

bool no_memory = false;
char told[128];  // by the last status

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = no_memory ? nullptr : std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace deltaworks::ort {
namespace {

template <class Body>
std::string status_of_run(const Body& body) {
  OrtApi api{};
  api.CreateStatus = [](OrtErrorCode, const char* message) noexcept {
    std::strncpy(told, message, sizeof(told) - 1);
    return static_cast<OrtStatus*>(nullptr);
  };
  guarded(api, "GatedDeltaNet", body);
  no_memory = false;
  return told;
}

TEST(Status, StartsWithTheOperator) {
  EXPECT_EQ(status_of_run([] { throw InvalidArgument("gated_delta_net: beta has shape [1]"); }),
            "GatedDeltaNet: beta has shape [1]");
  EXPECT_EQ(status_of_run([] { throw std::runtime_error("lost"); }), "GatedDeltaNet: lost");
  EXPECT_EQ(status_of_run([] { throw 1; }), "GatedDeltaNet");
}

TEST(Status, IsTheOperatorAloneWithoutMemoryForMore) {
  const InvalidArgument argument("gated_delta_net: beta has shape [1]");
  const std::runtime_error failure("a text that no string holds by itself");
  EXPECT_EQ(status_of_run([&] {
              no_memory = true;
              throw argument;
            }),
            "GatedDeltaNet");
  EXPECT_EQ(status_of_run([&] {
              no_memory = true;
              throw failure;
            }),
            "GatedDeltaNet");
}

}  // namespace
}  // namespace deltaworks::ort
