#include "check.hpp"
#include "deltaworks/linear_attention.hpp"
#include "reference/linear_attention.hpp"

namespace deltaworks::cli {

namespace {

// As graphs for the CPU have it: two key heads on four states, gates computed, keys of length one.
template <class T, class S>
class Problem {
 public:
  explicit Problem(Draw& draw)
      : key_dim_(8 * draw.integer(1, 16)),
        value_dim_(draw.integer(1, 130)),
        length_(draw.integer(1, 80)),
        query_(draw.normal<T>(tokens() * kKeyHeads * key_dim_)),
        key_(draw.normal<T>(tokens() * kKeyHeads * key_dim_,
                            1 / std::sqrt(static_cast<double>(key_dim_)))),
        value_(draw.normal<T>(tokens() * kHeads * value_dim_)),
        decay_(draw.normal<T>(tokens() * kHeads, 0.05, -0.2)),
        beta_(draw.normal<T>(tokens() * kHeads, 0.1, 0.5)),
        past_(draw.normal<S>(kSequences * kHeads * key_dim_ * value_dim_, 0.2)),
        output_(value_.size()),
        present_(past_.size()) {}

  void check(Measurements& measurements, const char* state) {
    const auto call = args();
    const auto expected = reference::linear_attention(call);
    linear_attention(Cpu{}, call);
    // A recurrence of n tokens adds the errors of n tokens.
    const double factor = 1 + 0.1 * static_cast<double>(length_);
    const DType dtype = dtype_of<T>();
    measurements.compare(dtype, "output", output_, expected.output, sizeof(T) == 2 ? 1.01 : factor);
    measurements.compare(dtype, state, present_, expected.present_state,
                         sizeof(S) == 2 ? 1.01 : factor);
  }

 private:
  static constexpr std::int64_t kSequences = 2, kKeyHeads = 2, kHeads = 4;

  std::int64_t tokens() const { return kSequences * length_; }

  LinearAttentionArgs<T, S> args() {
    const std::int64_t b = kSequences, n = length_;
    LinearAttentionArgs<T, S> call{
        .query = {query_.data(), {b, n, kKeyHeads * key_dim_}},
        .key = {key_.data(), {b, n, kKeyHeads * key_dim_}},
        .value = {value_.data(), {b, n, kHeads * value_dim_}},
        .output = {output_.data(), {b, n, kHeads * value_dim_}},
        .present_state = {present_.data(), {b, kHeads, key_dim_, value_dim_}},
        .q_num_heads = kKeyHeads,
        .kv_num_heads = kHeads};
    call.past_state = View<const S, 4>{past_.data(), {b, kHeads, key_dim_, value_dim_}};
    call.decay = View<const T, 3>{decay_.data(), {b, n, kHeads}};
    call.beta = View<const T, 3>{beta_.data(), {b, n, kHeads}};
    return call;
  }

  std::int64_t key_dim_, value_dim_, length_;
  std::vector<T> query_, key_, value_, decay_, beta_;
  std::vector<S> past_;
  std::vector<T> output_;
  std::vector<S> present_;
};

}  // namespace

void check_linear_attention(Draw& draw, Measurements& measurements) {
  Problem<float, float>(draw).check(measurements, "state");
  Problem<Float16, float>(draw).check(measurements, "state float32");
  Problem<BFloat16, float>(draw).check(measurements, "state float32");
  Problem<Float16, Float16>(draw).check(measurements, "state");
  Problem<BFloat16, BFloat16>(draw).check(measurements, "state");
}

}  // namespace deltaworks::cli
