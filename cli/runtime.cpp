#include "runtime.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "adapter.hpp"
#include "ort.hpp"

namespace deltaworks::cli {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code none;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none)) {
    found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_runtime(const fs::path& path) {
  return path.filename().string().starts_with("libonnxruntime.so");
}

void add_runtimes(const fs::path& folder, std::vector<fs::path>& found) {
  std::vector<fs::path> all = entries(folder);
  std::copy_if(all.rbegin(), all.rend(), std::back_inserter(found), is_runtime);
}

// The wheel's library below a prefix such as a virtual environment or /usr/local.
void add_wheels(const fs::path& prefix, std::vector<fs::path>& found) {
  for (const fs::path& python : entries(prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      add_runtimes(python / packages / "onnxruntime" / "capi", found);
    }
  }
}

std::vector<fs::path> candidates() {
  std::vector<fs::path> found;
  if (const char* chosen = std::getenv("DELTAWORKS_ONNXRUNTIME")) {
    if (fs::is_directory(chosen)) {
      add_runtimes(chosen, found);
    } else {
      found.emplace_back(chosen);
    }
    return found;
  }
  const fs::path folder = program_folder();
  for (fs::path above = folder; above.has_relative_path(); above = above.parent_path()) {
    add_wheels(above / ".venv", found);
  }
  if (const char* environment = std::getenv("VIRTUAL_ENV")) add_wheels(environment, found);
  if (const char* home = std::getenv("HOME")) add_wheels(fs::path(home) / ".local", found);
  add_wheels("/usr/local", found);
  add_wheels("/usr", found);
  found.emplace_back("libonnxruntime.so.1");  // the loader's own search
  return found;
}

// Nothing when the file cannot be loaded; `why` then says so.
std::optional<Runtime> try_load(const fs::path& path, std::string& why) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = dlerror();
    return std::nullopt;
  }
  using GetBase = const OrtApiBase*(ORT_API_CALL*)();
  void* symbol = dlsym(library, "OrtGetApiBase");
  if (symbol == nullptr) {
    why = path.string() + " is not ONNX Runtime: it has no OrtGetApiBase";
    return std::nullopt;
  }
  const OrtApiBase* base = reinterpret_cast<GetBase>(symbol)();
  const std::string version = base->GetVersionString();
  // Version 1.N has interface level N. Asking for more than that would print an error of its own.
  const std::uint32_t level = version.starts_with("1.")
                                  ? static_cast<std::uint32_t>(std::atoi(version.c_str() + 2))
                                  : ORT_API_VERSION;
  const OrtApi* api = level < ort::kOldestApi
                          ? nullptr
                          : base->GetApi(std::min<std::uint32_t>(level, ORT_API_VERSION));
  if (api == nullptr) {
    why = fmt::format("{} is ONNX Runtime {}, which is older than 1.{}", path.string(), version,
                      ort::kOldestApi);
    return std::nullopt;
  }
  Ort::InitApi(api);
  Dl_info where{};
  const bool known = dladdr(symbol, &where) != 0 && where.dli_fname != nullptr;
  return Runtime{known ? where.dli_fname : path.string(), version};
}

Runtime load_first() {
  std::string why = "no file found";
  for (const fs::path& path : candidates()) {
    if (auto runtime = try_load(path, why)) return *runtime;
  }
  throw std::runtime_error(fmt::format(
      "ONNX Runtime's shared library was not found ({}). Run scripts/setup.sh, or `pip install "
      "onnxruntime`, or set DELTAWORKS_ONNXRUNTIME to libonnxruntime.so or its folder",
      why));
}

}  // namespace

const Runtime& load_runtime() {
  static const Runtime runtime = load_first();
  return runtime;
}

fs::path program_folder() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path();
}

fs::path find_operators(const std::string& name, const fs::path& package_folder) {
  const std::string wanted = name.empty() ? "libdeltaworks_onnxruntime.so" : name;
  const fs::path beside = program_folder().parent_path() / "lib";
  for (const fs::path& folder : {beside, package_folder}) {
    if (fs::exists(folder / wanted)) return fs::absolute(folder / wanted);
  }
  const std::string also = package_folder.empty() ? "" : " or " + package_folder.string();
  throw std::runtime_error(
      fmt::format("the operators' library {} is not in {}{}: build it with scripts/setup.sh",
                  wanted, beside.string(), also));
}

}  // namespace deltaworks::cli
