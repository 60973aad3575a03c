// The work of a node in ONNX Runtime, with this library and without it, in this process.
#pragma once

#include <memory>
#include <string>

#include "bench.hpp"
#include "timing.hpp"

namespace deltaworks::cli {

struct PeerFigures {
  Timing ours{}, theirs{};
  double difference = 0;  // of their results, as a multiple of the allowed one
  std::string missing{};  // why this ONNX Runtime cannot run theirs: there are no figures then
};

class Peers {
 public:
  // Finds ONNX Runtime and our operators for it, or throws std::runtime_error that says what to do.
  explicit Peers(int threads);
  ~Peers();

  // "ONNX Runtime 1.32.0"
  const std::string& name() const { return name_; }
  // The file of its library.
  const std::string& path() const { return path_; }

  // Runs both, compares and times them.
  PeerFigures measure(const PeerNodes& nodes, double seconds) const;

 private:
  struct Environment;

  int threads_;
  std::string name_, path_, operators_;
  std::unique_ptr<Environment> environment_;
};

}  // namespace deltaworks::cli
