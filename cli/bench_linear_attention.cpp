#include <fmt/format.h>

#include "bench.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "deltaworks/linear_attention.hpp"
#include "reference/linear_attention.hpp"

namespace deltaworks::cli {

namespace {

using Shape = bench::GatedDeltaNetShape;

// One sequence of a dense graph. States are updated in place; with more than one of them each call
// takes the next, as the layers of a model do. Keys are drawn short: the delta rule diverges with long
// ones.
template <class T>
class Problem {
 public:
  Problem(const Shape& shape, std::int64_t tokens, std::int64_t states)
      : shape_(shape), tokens_(tokens), count_(states) {
    Draw draw(1);
    const std::int64_t heads = shape.value_heads;
    query_ = draw.buffer<T>(tokens * shape.key_heads * shape.key_dim, 0.05);
    key_ = draw.buffer<T>(tokens * shape.key_heads * shape.key_dim, 0.05);
    value_ = draw.buffer<T>(tokens * heads * shape.value_dim);
    decay_ = draw.normal<T, Buffer<T>>(tokens * heads, 0.05, -0.2);
    beta_ = draw.normal<T, Buffer<T>>(tokens * heads, 0.1, 0.5);
    states_.assign(static_cast<std::size_t>(states * state_size()), 0.01f);
    output_.resize(value_.size());
  }

  double error() {
    const auto expected = reference::linear_attention(args());
    linear_attention(Cpu{}, args());
    return std::max(excess<T>(output_, expected.output, 4),
                    excess<float>(states_, expected.present_state, 4));
  }
  void run(const Cpu& device) {
    linear_attention(device, args());
    turn_ = (turn_ + 1) % count_;
  }

  // The same calls with the other operator of this rule, whose state lies the other way.
  void run_v_major(const Cpu& device) {
    const auto call = args();
    const auto rows = [&](const auto& view, std::int64_t heads) {
      return View<const T, 3>{view.data(), {tokens_, heads, view.extent(2) / heads}};
    };
    const View<float, 4> state{call.present_state.data(),
                               {1, shape_.value_heads, shape_.value_dim, shape_.key_dim}};
    GatedDeltaNetArgs<T, T> other{
        .query = rows(call.query, shape_.key_heads),
        .key = rows(call.key, shape_.key_heads),
        .value = rows(call.value, shape_.value_heads),
        .cu_seqlens = {offsets_.data(), {2}},
        .output = {output_.data(), {tokens_, shape_.value_heads, shape_.value_dim}},
        .final_state = state};
    other.initial_state = state;
    other.decay = {decay_.data(), {tokens_, shape_.value_heads}};
    other.beta = {beta_.data(), {tokens_, shape_.value_heads}};
    gated_delta_net(device, other);
    turn_ = (turn_ + 1) % count_;
  }

  OnnxNode node() {
    const auto call = args();
    return {"LinearAttention",
            "com.microsoft",
            {operand("query", call.query), operand("key", call.key), operand("value", call.value),
             operand("past_state", *call.past_state), operand("decay", *call.decay),
             operand("beta", *call.beta)},
            {operand("output", call.output), operand("present_state", call.present_state)},
            {{"q_num_heads", call.q_num_heads}, {"kv_num_heads", call.kv_num_heads}},
            {}};
  }

 private:
  std::int64_t state_size() const { return shape_.value_heads * shape_.value_dim * shape_.key_dim; }
  LinearAttentionArgs<T> args() {
    const std::int64_t n = tokens_, heads = shape_.value_heads;
    const std::int64_t keys = shape_.key_heads * shape_.key_dim, values = heads * shape_.value_dim;
    LinearAttentionArgs<T> call{.query = {query_.data(), {1, n, keys}},
                                .key = {key_.data(), {1, n, keys}},
                                .value = {value_.data(), {1, n, values}},
                                .output = {output_.data(), {1, n, values}},
                                .present_state = {states_.data() + turn_ * state_size(),
                                                  {1, heads, shape_.key_dim, shape_.value_dim}},
                                .q_num_heads = shape_.key_heads,
                                .kv_num_heads = heads};
    call.past_state = call.present_state;
    call.decay = View<const T, 3>{decay_.data(), {1, n, heads}};
    call.beta = View<const T, 3>{beta_.data(), {1, n, heads}};
    return call;
  }

  Shape shape_;
  std::int64_t tokens_, count_, turn_ = 0;
  std::vector<std::int32_t> offsets_{0, static_cast<std::int32_t>(tokens_)};
  Buffer<T> query_, key_, value_, decay_, beta_, output_;
  Buffer<float> states_;
};

template <class T>
ReadyCall call_of(const Shape& shape, std::int64_t tokens, std::int64_t states) {
  const double error = Problem<T>(shape, std::min<std::int64_t>(tokens, 20), 1).error();
  const auto problem = std::make_shared<Problem<T>>(shape, tokens, states);
  ReadyCall ready{error, [problem](const Cpu& device) { problem->run(device); }};
  ready.variant = Variant{"gated_delta_net, V-major",
                          [problem](const Cpu& device) { problem->run_v_major(device); }};
  // ONNX Runtime has it in float32 alone.
  if (states == 1 && dtype_of<T>() == DType::kFloat32) {
    OnnxNode node = problem->node();
    node.memory = problem;
    ready.peers = PeerNodes{node, "its LinearAttention", node, {0, 1}};
  }
  return ready;
}

template <class T>
void add(const Shape& shape, BenchCalls& calls) {
  constexpr std::int64_t kCold = 256 << 20;  // bytes: more than most caches
  const std::int64_t size = shape.value_heads * shape.value_dim * shape.key_dim;
  const auto bytes = static_cast<std::size_t>(size) * sizeof(float);
  const auto push = [&](const std::string& what, const Bound& bound, std::int64_t tokens,
                        std::int64_t states) {
    calls.push_back({"linear_attention", shape_text(shape), shape.name, what, dtype_of<T>(), bound,
                     [shape, tokens, states] { return call_of<T>(shape, tokens, states); }});
  };
  // One token is bound by reading and writing its state, more by arithmetic.
  const double moved = 2 * static_cast<double>(bytes), flops = 6 * static_cast<double>(size);
  push("1 token", {Bound::Kind::kInPlace, moved, bytes, flops}, 1, 1);
  const std::int64_t cold = kCold / static_cast<std::int64_t>(bytes);
  if (bytes > 1 << 20) {
    push("1 token, states not in the caches",
         {Bound::Kind::kInPlace, moved, static_cast<std::size_t>(cold) * bytes, flops}, 1, cold);
  }
  for (const std::int64_t tokens : {16, 256}) {
    const std::int64_t elements =
        tokens * 2 * (shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim);
    push(count_text(tokens, "token"),
         {.kind = Bound::Kind::kFma,
          .amount = flops * static_cast<double>(tokens),
          .other = moved + static_cast<double>(elements) * sizeof(T)},
         tokens, 1);
  }
}

}  // namespace

void bench_linear_attention(DType dtype, BenchCalls& calls) {
  visit_dtype(dtype, [&]<class T>(T) {
    for (const Shape& shape : bench::kGatedDeltaNetShapes) add<T>(shape, calls);
  });
}

}  // namespace deltaworks::cli
