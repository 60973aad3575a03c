#include "profiled_run.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "block_drafter.hpp"
#include "model.hpp"

namespace deltaworks::cli {

namespace {

namespace fs = std::filesystem;

// ONNX Runtime keeps a million events; 100 tokens of a 48-layer model are a tenth of that.
constexpr std::int64_t kProfiledTokens = 100;

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "deltaworks-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("cannot make " + path_ + ": " + std::strerror(errno));
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

nlohmann::json read_events(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

double seconds_a_call(const Generation& g) {
  return g.calls > 0 ? g.seconds / static_cast<double>(g.calls) : 0;
}

}  // namespace

OperatorShares profiled_run(const Package& package, int threads,
                            const std::vector<std::int32_t>& prompt, const Sampler& sampler,
                            Decoding how, const Generation& unprofiled) {
  how.max_tokens = std::min(how.max_tokens, kProfiledTokens);
  how.on_text = nullptr;
  const TemporaryFolder folder;
  const auto longest = static_cast<std::int64_t>(prompt.size()) + how.max_tokens;
  Model model(package, {threads, folder.path() + "/model"}, longest, how.tap);
  std::optional<BlockDrafter> drafter;
  if (how.tap) {
    drafter.emplace(package, GraphOptions{threads, folder.path() + "/drafter"}, longest);
    how.drafter = block_drafts(model, *drafter, sampler);
  }
  const Generation profiled = generate_text(model, prompt, sampler, how);
  nlohmann::json events = read_events(model.graph().end_profiling());
  if (drafter) {
    const nlohmann::json more = read_events(drafter->graph().end_profiling());
    events.insert(events.end(), more.begin(), more.end());
  }
  const double before = seconds_a_call(unprofiled);
  return {operator_times(events), before > 0 ? seconds_a_call(profiled) / before : 1};
}

}  // namespace deltaworks::cli
