#include <fmt/format.h>

#include <numeric>

#include "bench.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "reference/gated_delta_net.hpp"

namespace deltaworks::cli {

namespace {

using Shape = bench::GatedDeltaNetShape;

// One sequence with the gates of published models. States are updated in place; with more than one
// of them each call takes the next, as the layers of a model do.
template <class T>
class Problem {
 public:
  struct Size {
    std::int64_t tokens, capacity = 0, states = 1;
    Engine engine = Engine::kRecurrent;
  };

  Problem(const Shape& shape, const Size& size)
      : shape_(shape),
        size_(size),
        offsets_{0, static_cast<std::int32_t>(size.tokens)},
        capture_{static_cast<std::int32_t>(size.capacity)} {
    Draw draw(1);
    const std::int64_t n = size.tokens, heads = shape.value_heads;
    query_ = draw.buffer<T>(n * shape.key_heads * shape.key_dim);
    key_ = draw.buffer<T>(n * shape.key_heads * shape.key_dim);
    value_ = draw.buffer<T>(n * heads * shape.value_dim);
    decay_ = draw.buffer<float>(n * heads);
    beta_ = draw.buffer<float>(n * heads);
    a_log_ = draw.buffer<float>(heads, 0.5);
    dt_bias_ = draw.buffer<float>(heads, 0.5);
    states_.assign(static_cast<std::size_t>(size.states * state_size()), 0.01f);
    output_.resize(value_.size());
    update_.resize(static_cast<std::size_t>(update_row()));
  }

  std::int64_t state_size() const { return shape_.value_heads * shape_.value_dim * shape_.key_dim; }

  double error() {
    const auto expected = reference::gated_delta_net(args());
    gated_delta_net(Cpu{}, args());
    return std::max(excess<T>(output_, expected.output, 4),
                    excess<float>(states_, expected.final_state, 4));
  }

  void run(const Cpu& device) {
    gated_delta_net(device, args());
    turn_ = (turn_ + 1) % size_.states;
  }

  void replay(const Cpu& device) {
    replay_gated_delta_state(device, {.initial_state = state(),
                                      .state_update = {update_.data(), {1, update_row()}},
                                      .count = {&kReplayed, {1}},
                                      .final_state = state(),
                                      .key_heads = shape_.key_heads,
                                      .state_update_capacity = size_.capacity});
  }

  OnnxNode node() {
    const auto call = args();
    OnnxNode node{"GatedDeltaNet", "com.microsoft", {}, {}, {}, {}};
    node.inputs = {operand("query", call.query),      operand("key", call.key),
                   operand("value", call.value),      operand("cu_seqlens", call.cu_seqlens),
                   operand("decay", *call.decay),     operand("beta", *call.beta),
                   operand("initial_state", state()), operand("a_log", *call.a_log),
                   operand("dt_bias", *call.dt_bias)};
    node.outputs = {operand("output", call.output), operand("final_state", state())};
    node.attributes = {{"gate_activation", "softplus"},
                       {"beta_activation", "sigmoid"},
                       {"qk_l2_norm", std::int64_t{1}}};
    if (size_.capacity > 0) {
      node.inputs.push_back(operand("capture_count", *call.capture_count));
      node.outputs.push_back(operand("state_update", *call.state_update));
      node.attributes["state_update_capacity"] = size_.capacity;
    }
    return node;
  }

  static constexpr std::int32_t kReplayed = 4;

 private:
  std::int64_t update_row() const {
    return size_.capacity * (shape_.value_heads + shape_.key_heads * shape_.key_dim +
                             shape_.value_heads * shape_.value_dim);
  }
  View<float, 4> state() {
    return {states_.data() + turn_ * state_size(),
            {1, shape_.value_heads, shape_.value_dim, shape_.key_dim}};
  }

  GatedDeltaNetArgs<T> args() {
    const std::int64_t n = size_.tokens, heads = shape_.value_heads;
    GatedDeltaNetArgs<T> call{.query = {query_.data(), {n, shape_.key_heads, shape_.key_dim}},
                              .key = {key_.data(), {n, shape_.key_heads, shape_.key_dim}},
                              .value = {value_.data(), {n, heads, shape_.value_dim}},
                              .cu_seqlens = {offsets_.data(), {2}},
                              .output = {output_.data(), {n, heads, shape_.value_dim}},
                              .final_state = state()};
    call.initial_state = state();
    call.decay = {decay_.data(), {n, heads}};
    call.beta = {beta_.data(), {n, heads}};
    call.a_log = {a_log_.data(), {heads}};
    call.dt_bias = {dt_bias_.data(), {heads}};
    call.gate_activation = GateActivation::kSoftplus;
    call.beta_activation = BetaActivation::kSigmoid;
    call.qk_l2_norm = true;
    call.engine = size_.engine;
    if (size_.capacity > 0) {
      call.capture_count = {capture_.data(), {1}};
      call.state_update = {update_.data(), {1, update_row()}};
      call.state_update_capacity = size_.capacity;
    }
    return call;
  }

  Shape shape_;
  Size size_;
  std::vector<std::int32_t> offsets_, capture_;
  Buffer<T> query_, key_, value_, output_;
  Buffer<float> decay_, beta_, a_log_, dt_bias_, states_, update_;
  std::int64_t turn_ = 0;
};

template <class T>
class Calls {
 public:
  using Size = typename Problem<T>::Size;

  Calls(const Shape& shape, BenchCalls& calls) : shape_(shape), calls_(calls) {}

  // Prompts and drafts are bound by arithmetic: three products and sums for each state element.
  void add_tokens(const std::string& what, const Size& size) {
    const std::int64_t elements =
        size.tokens * 2 *
        (shape_.key_heads * shape_.key_dim + shape_.value_heads * shape_.value_dim);
    add(what,
        {.kind = Bound::Kind::kFma,
         .amount = 6 * static_cast<double>(state_size() * size.tokens),
         .other = 2 * static_cast<double>(state_size()) * sizeof(float) +
                  static_cast<double>(elements) * sizeof(T)},
        size);
  }
  // One token is bound by reading and writing its state.
  void add_one(const std::string& what, std::int64_t states) {
    const std::size_t bytes = static_cast<std::size_t>(state_size()) * sizeof(float);
    add(what,
        {Bound::Kind::kInPlace, 2 * static_cast<double>(bytes),
         static_cast<std::size_t>(states) * bytes, 6 * static_cast<double>(state_size())},
        {.tokens = 1, .states = states});
  }
  void add_replay() {
    const Size size{.tokens = 8, .capacity = 7};
    const std::size_t bytes = static_cast<std::size_t>(state_size()) * sizeof(float);
    calls_.push_back(named(fmt::format("replay of {} tokens", Problem<T>::kReplayed),
                           {Bound::Kind::kInPlace, 2 * static_cast<double>(bytes), bytes}));
    calls_.back().prepare = [shape = shape_, size] {
      const auto problem = std::make_shared<Problem<T>>(shape, size);
      const double error = problem->error();  // captures what is replayed
      return ReadyCall{error, [problem](const Cpu& device) { problem->replay(device); }, {}};
    };
  }

 private:
  std::int64_t state_size() const { return shape_.value_heads * shape_.value_dim * shape_.key_dim; }
  BenchCall named(const std::string& what, const Bound& bound) const {
    return {"gated_delta_net", shape_text(shape_), shape_.name, what, dtype_of<T>(), bound, {}};
  }
  void add(const std::string& what, const Bound& bound, const Size& size) {
    calls_.push_back(named(what, bound));
    calls_.back().prepare = [shape = shape_, size] {
      Size few = size;
      few.tokens = std::min<std::int64_t>(size.tokens, 100);  // more than a kernel's block of 96
      few.states = 1;
      const double error = Problem<T>(shape, few).error();
      const auto problem = std::make_shared<Problem<T>>(shape, size);
      ReadyCall ready{error, [problem](const Cpu& device) { problem->run(device); }, {}};
      if (size.states == 1 && size.engine == Engine::kRecurrent) {
        OnnxNode node = problem->node();
        node.memory = problem;
        std::vector<std::size_t> all(node.outputs.size());
        std::iota(all.begin(), all.end(), 0);
        ready.peers = PeerNodes{node, "its GatedDeltaNet", node, all};
      }
      return ready;
    };
  }

  Shape shape_;
  BenchCalls& calls_;
};

}  // namespace

void bench_gated_delta_net(DType dtype, BenchCalls& calls) {
  constexpr std::int64_t kCold = 256 << 20;  // bytes: more than most caches
  visit_dtype(dtype, [&]<class T>(T) {
    for (const Shape& shape : bench::kGatedDeltaNetShapes) {
      const std::int64_t bytes = 4 * shape.value_heads * shape.value_dim * shape.key_dim;
      Calls<T> shaped(shape, calls);
      shaped.add_one("1 token", 1);
      if (bytes > 1 << 20) shaped.add_one("1 token, states not in the caches", kCold / bytes);
      shaped.add_tokens("8 tokens, 7 captured", {.tokens = 8, .capacity = 7});
      shaped.add_replay();
      shaped.add_tokens("256 tokens", {.tokens = 256});
      shaped.add_tokens("256 tokens, chunked", {.tokens = 256, .engine = Engine::kChunked});
      // Once: ONNX Runtime's own kernel takes a second for a call.
      if (&shape == bench::kGatedDeltaNetShapes) {
        shaped.add_tokens("1024 tokens", {.tokens = 1024});
        shaped.add_tokens("1024 tokens, chunked", {.tokens = 1024, .engine = Engine::kChunked});
      }
    }
  });
}

}  // namespace deltaworks::cli
