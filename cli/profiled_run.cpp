#include "profiled_run.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

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
  Model model(package, {threads, folder.path() + "/profile"},
              static_cast<std::int64_t>(prompt.size()) + how.max_tokens);
  const Generation profiled = generate_text(model, prompt, sampler, how);
  std::ifstream file(model.graph().end_profiling());
  const double before = seconds_a_call(unprofiled);
  return {operator_times(nlohmann::json::parse(file)),
          before > 0 ? seconds_a_call(profiled) / before : 1};
}

}  // namespace deltaworks::cli
