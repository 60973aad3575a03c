#include "check.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "reference/gated_delta_net.hpp"

namespace deltaworks::cli {

namespace {

// The gates of published models: softplus decay, sigmoid rate, normalised queries and keys.
template <class T>
class Problem {
 public:
  explicit Problem(Draw& draw)
      : key_dim_(8 * draw.integer(1, 8)),
        value_dim_(draw.integer(1, 64)),
        offsets_(draw.cu_seqlens()),
        query_(draw.normal<T>(tokens() * kKeyHeads * key_dim_)),
        key_(draw.normal<T>(tokens() * kKeyHeads * key_dim_)),
        value_(draw.normal<T>(tokens() * kValueHeads * value_dim_)),
        decay_(draw.normal<float>(tokens() * kValueHeads)),
        beta_(draw.normal<float>(tokens() * kValueHeads)),
        a_log_(draw.normal<float>(kValueHeads, 0.5)),
        dt_bias_(draw.normal<float>(kValueHeads, 0.5)),
        initial_(draw.normal<float>(sequences() * state_size(), 0.2)),
        capture_(static_cast<std::size_t>(sequences()), kCapacity),
        output_(value_.size()),
        final_(initial_.size()),
        update_(static_cast<std::size_t>(sequences() * update_row())) {}

  void check(Measurements& measurements) {
    const auto call = args();
    const auto expected = reference::gated_delta_net(call);
    gated_delta_net(Cpu{}, call);
    // A recurrence of n tokens adds the errors of n tokens.
    const double factor = 1 + 0.1 * static_cast<double>(tokens());
    const DType dtype = dtype_of<T>();
    measurements.compare(dtype, "output", output_, expected.output, sizeof(T) == 2 ? 1.01 : factor);
    measurements.compare(dtype, "final_state", final_, expected.final_state, factor);
    measurements.compare(dtype, "state_update", update_, expected.state_update, factor);
    check_replay(measurements, expected.final_state, factor);
    check_chunked(measurements, expected, factor);
  }

 private:
  static constexpr std::int64_t kKeyHeads = 2, kValueHeads = 4, kCapacity = 7;

  std::int64_t sequences() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t tokens() const { return offsets_.back(); }
  std::int64_t state_size() const { return kValueHeads * value_dim_ * key_dim_; }
  std::int64_t update_row() const {
    return kCapacity * (kValueHeads + kKeyHeads * key_dim_ + kValueHeads * value_dim_);
  }

  // Replaying all tokens of a sequence that was captured whole gives its final state.
  void check_replay(Measurements& measurements, const std::vector<double>& final_state,
                    double factor) {
    std::vector<std::int32_t> count;
    std::int64_t whole = 0;  // sequences; the longer ones come last
    for (std::size_t b = 1; b < offsets_.size(); ++b) {
      const std::int32_t length = offsets_[b] - offsets_[b - 1];
      count.push_back(std::min<std::int32_t>(length, kCapacity));
      if (length <= kCapacity) ++whole;
    }
    const View<float, 4>::Extents extents{sequences(), kValueHeads, value_dim_, key_dim_};
    std::vector<float> replayed(initial_.size());
    replay_gated_delta_state(Cpu{}, {.initial_state = {initial_.data(), extents},
                                     .state_update = {update_.data(), {sequences(), update_row()}},
                                     .count = {count.data(), {sequences()}},
                                     .final_state = {replayed.data(), extents},
                                     .key_heads = kKeyHeads,
                                     .state_update_capacity = kCapacity});
    measurements.compare(dtype_of<T>(), "replayed", replayed,
                         {final_state.begin(), final_state.begin() + whole * state_size()}, factor);
  }

  // The other engine, which serves sequences that capture nothing.
  void check_chunked(Measurements& measurements, const reference::GatedDeltaNetResult& expected,
                     double factor) {
    std::fill(capture_.begin(), capture_.end(), 0);
    auto call = args();
    call.engine = Engine::kChunked;
    gated_delta_net(Cpu{}, call);
    const DType dtype = dtype_of<T>();
    measurements.compare(dtype, "output, chunked", output_, expected.output,
                         sizeof(T) == 2 ? 1.01 : factor);
    measurements.compare(dtype, "final_state, chunked", final_, expected.final_state, factor);
  }

  GatedDeltaNetArgs<T> args() {
    const std::int64_t n = tokens(), b = sequences();
    GatedDeltaNetArgs<T> call{
        .query = {query_.data(), {n, kKeyHeads, key_dim_}},
        .key = {key_.data(), {n, kKeyHeads, key_dim_}},
        .value = {value_.data(), {n, kValueHeads, value_dim_}},
        .cu_seqlens = {offsets_.data(), {b + 1}},
        .output = {output_.data(), {n, kValueHeads, value_dim_}},
        .final_state = {final_.data(), {b, kValueHeads, value_dim_, key_dim_}}};
    call.initial_state = {initial_.data(), {b, kValueHeads, value_dim_, key_dim_}};
    call.decay = {decay_.data(), {n, kValueHeads}};
    call.beta = {beta_.data(), {n, kValueHeads}};
    call.a_log = {a_log_.data(), {kValueHeads}};
    call.dt_bias = {dt_bias_.data(), {kValueHeads}};
    call.capture_count = {capture_.data(), {b}};
    call.state_update = {update_.data(), {b, update_row()}};
    call.state_update_capacity = kCapacity;
    call.gate_activation = GateActivation::kSoftplus;
    call.beta_activation = BetaActivation::kSigmoid;
    call.qk_l2_norm = true;
    return call;
  }

  std::int64_t key_dim_, value_dim_;
  std::vector<std::int32_t> offsets_;
  std::vector<T> query_, key_, value_;
  std::vector<float> decay_, beta_, a_log_, dt_bias_, initial_;
  std::vector<std::int32_t> capture_;
  std::vector<T> output_;
  std::vector<float> final_, update_;
};

}  // namespace

void check_gated_delta_net(Draw& draw, Measurements& measurements) {
  Problem<float>(draw).check(measurements);
  Problem<Float16>(draw).check(measurements);
  Problem<BFloat16>(draw).check(measurements);
}

}  // namespace deltaworks::cli
