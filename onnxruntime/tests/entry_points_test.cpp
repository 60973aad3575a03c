// The entry points against runtimes that are no ONNX Runtime of the test matrix: too old, too new.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <onnxruntime_c_api.h>

extern "C" {
OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept;
OrtStatus* CreateEpFactories(const char* registered_name, const OrtApiBase* base,
                             const OrtLogger* default_logger, OrtEpFactory** factories,
                             std::size_t room, std::size_t* count) noexcept;
OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept;
}

// What a status is, is the runtime's affair.
struct OrtStatus {
  std::string message;
};

namespace {

const char* runtime_version = "";
std::uint32_t newest = 0;              // interface that the runtime hands out
std::vector<std::uint32_t> asked_for;  // interfaces
bool has_providers = true;

// All that an entry point may use of a runtime that it refuses.
const OrtApi& api() {
  static const OrtApi table = [] {
    OrtApi made{};
    made.CreateStatus = [](OrtErrorCode, const char* message) noexcept {
      return new OrtStatus{message};
    };
    made.ReleaseStatus = [](OrtStatus* status) noexcept { delete status; };
    made.GetEpApi = []() noexcept {
      static const OrtEpApi ep_api{};
      return has_providers ? &ep_api : nullptr;
    };
    return made;
  }();
  return table;
}

const OrtApiBase kBase{[](std::uint32_t version) noexcept -> const OrtApi* {
                         asked_for.push_back(version);
                         return version <= newest ? &api() : nullptr;
                       },
                       []() noexcept { return runtime_version; }};

void run_on(const char* version, std::uint32_t interfaces, bool providers = true) {
  has_providers = providers;
  runtime_version = version;
  newest = interfaces;
  asked_for.clear();
}

std::string message_of(OrtStatus* status) {
  if (status == nullptr) return "";
  const std::string message = status->message;
  api().ReleaseStatus(status);
  return message;
}

std::string create(std::size_t room, std::size_t& count, OrtEpFactory*& factory) {
  return message_of(CreateEpFactories("any", &kBase, nullptr, &factory, room, &count));
}

TEST(EntryPoints, RefuseRuntimesThatAreTooOld) {
  std::size_t count = 0;
  OrtEpFactory* factory = nullptr;
  run_on("1.17.3", 17);
  EXPECT_EQ(message_of(RegisterCustomOps(nullptr, &kBase)),
            "deltaworks needs ONNX Runtime 1.23.2 or later, this is 1.17.3");
  EXPECT_EQ(create(1, count, factory),
            "deltaworks needs ONNX Runtime 1.23.2 or later, this is 1.17.3");
  run_on("1.22.0", 22);
  EXPECT_EQ(message_of(RegisterCustomOps(nullptr, &kBase)),
            "deltaworks needs ONNX Runtime 1.23.2 or later, this is 1.22.0");
  EXPECT_EQ(create(1, count, factory),
            "deltaworks needs ONNX Runtime 1.23.2 or later, this is 1.22.0");
  EXPECT_EQ(factory, nullptr);
}

TEST(EntryPoints, RefuseRuntimesThatLackAnInterface) {
  std::size_t count = 0;
  OrtEpFactory* factory = nullptr;
  for (const char* version : {"2.0.0", "nonsense"}) {
    run_on(version, 1);
    const std::string expected = "deltaworks needs interface " + std::to_string(ORT_API_VERSION) +
                                 " of ONNX Runtime, which this one, " + version + ", does not have";
    EXPECT_EQ(message_of(RegisterCustomOps(nullptr, &kBase)), expected);
    EXPECT_EQ(create(1, count, factory), expected);
  }
  run_on("1.30.0", 30, false);
  EXPECT_EQ(create(1, count, factory),
            "deltaworks: this ONNX Runtime, 1.30.0, has no interface for execution providers");
  EXPECT_EQ(factory, nullptr);
}

TEST(EntryPoints, AskForNoInterfaceThatTheRuntimeLacks) {
  for (const auto& [version, interfaces] :
       {std::pair{"1.17.3", 17U}, std::pair{"1.22.1", 22U}, std::pair{"1.23.2", 23U},
        std::pair{"1.99.0", 99U}, std::pair{"2.0.1", 200U}}) {
    std::size_t count = 0;
    OrtEpFactory* factory = nullptr;
    run_on(version, interfaces);
    const std::string message = create(1, count, factory);
    for (const std::uint32_t interface : asked_for) {
      EXPECT_LE(interface, interfaces) << version;
      EXPECT_LE(interface, std::uint32_t{ORT_API_VERSION}) << version;
    }
    if (interfaces < 23) continue;
    EXPECT_EQ(message, "") << version;
    ASSERT_EQ(count, 1U) << version;
    EXPECT_EQ(factory->ort_version_supported, std::uint32_t{ORT_API_VERSION});
    EXPECT_STREQ(factory->GetName(factory), "DeltaworksExecutionProvider");
    EXPECT_EQ(ReleaseEpFactory(factory), nullptr);
  }
}

TEST(EntryPoints, NeedRoomForOneFactory) {
  std::size_t count = 7;
  OrtEpFactory* factory = nullptr;
  run_on("1.32.0", 32);
  EXPECT_EQ(create(0, count, factory), "deltaworks: no room for a factory, expected room for one");
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(ReleaseEpFactory(nullptr), nullptr);
}

}  // namespace
