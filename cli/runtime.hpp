// Finds ONNX Runtime's shared library and our library of operators.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace deltaworks::cli {

struct Runtime {
  std::string path;
  std::string version;
};

// Loads the library once for the process and makes the C++ interface usable. Looks at
// $DELTAWORKS_ONNXRUNTIME (a file or a folder) and nowhere else if that is set; then in the .venv
// of the folders above this program, in Python's package folders, and where the system's loader
// looks. Throws std::runtime_error that says what to do.
const Runtime& load_runtime();

// Our operators for ONNX Runtime: in ../lib beside this program, else in the package's folder.
// An empty name means our own. Throws std::runtime_error when there is none.
std::filesystem::path find_operators(const std::string& name,
                                     const std::filesystem::path& package_folder);

std::filesystem::path program_folder();

}  // namespace deltaworks::cli
