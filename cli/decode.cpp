#include "decode.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace deltaworks::cli {

namespace {

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Decoder {
 public:
  Decoder(Sequence& model, const Sampler& sampler, const Decoding& how)
      : model_(model), sampler_(sampler), how_(how) {}

  Generation run(std::span<const std::int32_t> prompt) {
    Stopwatch prompt_watch;
    std::int32_t token = run_prompt(prompt);
    result_.prompt_seconds = prompt_watch.seconds();
    Stopwatch watch;
    while (emit(token)) token = step(token);
    result_.seconds = watch.seconds();
    result_.later_tokens = std::max<std::int64_t>(0, generated() - 1);
    return std::move(result_);
  }

 private:
  std::int64_t generated() const { return static_cast<std::int64_t>(result_.text.size()); }

  std::int32_t choose(std::span<const float> logits, std::int64_t position) const {
    return sampler_.choose(logits, static_cast<std::uint64_t>(position));
  }

  bool is_end(std::int32_t token) const {
    return std::find(how_.end_tokens.begin(), how_.end_tokens.end(), token) !=
           how_.end_tokens.end();
  }

  std::int32_t run_prompt(std::span<const std::int32_t> prompt) {
    model_.reset();
    history_.assign(prompt.begin(), prompt.end());
    result_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    std::span<const float> logits;
    for (std::size_t done = 0; done < prompt.size();) {
      const auto chunk = prompt.subspan(done, std::min(Sequence::kMaxCall, prompt.size() - done));
      logits = model_.advance(chunk);
      done += chunk.size();
      if (how_.on_prompt) how_.on_prompt(static_cast<std::int64_t>(done), result_.prompt_tokens);
    }
    return choose(logits, 0);
  }

  // False when the text is complete, with or without this token.
  bool emit(std::int32_t token) {
    result_.ended = is_end(token);
    if (result_.ended || generated() == how_.max_tokens) return false;
    history_.push_back(token);
    result_.text.push_back(static_cast<char>(token));
    if (how_.on_text) how_.on_text({&result_.text.back(), 1});
    return generated() < how_.max_tokens;
  }

  Draft draft() {
    // The token chosen after the drafts is the last that may still be wanted.
    const std::int64_t limit = std::min(how_.draft_tokens, how_.max_tokens - generated() - 1);
    if (limit <= 0) return {};
    const Stopwatch watch;
    Draft proposed = how_.drafter(history_, static_cast<std::size_t>(limit));
    result_.draft_seconds += watch.seconds();
    // A drawn token stays, the end too: what takes its place is drawn in view of it.
    if (!proposed.probabilities.empty()) return proposed;
    auto& tokens = proposed.tokens;
    tokens.erase(std::find_if(tokens.begin(), tokens.end(),
                              [&](std::int32_t token) { return token > 255 || is_end(token); }),
                 tokens.end());
    return proposed;
  }

  // Runs the newest token and drafts; emits what was accepted and returns the token after it.
  std::int32_t step(std::int32_t token) {
    const Draft proposed = draft();
    ++result_.calls;
    if (proposed.tokens.empty()) return choose(model_.advance({&token, 1}), generated());

    std::vector<std::int32_t> tokens{token};
    tokens.insert(tokens.end(), proposed.tokens.begin(), proposed.tokens.end());
    const auto rows = model_.verify(tokens);
    const std::int64_t before = generated();
    const std::int32_t next = proposed.probabilities.empty() ? accept_certain(proposed, rows)
                                                             : accept_drawn(proposed, rows);
    const std::int64_t accepted = generated() - before;
    model_.keep(accepted + 1);
    ++result_.verify_calls;
    result_.drafted += static_cast<std::int64_t>(proposed.tokens.size());
    result_.accepted += accepted;
    return next;
  }

  // Emits the drafts that decoding without them would choose; returns what it chooses after them.
  std::int32_t accept_certain(const Draft& draft, std::span<const std::span<const float>> rows) {
    std::size_t accepted = 0;
    std::int32_t next = choose(rows[0], generated());
    while (accepted < draft.tokens.size() && next == draft.tokens[accepted]) {
      emit(next);
      next = choose(rows[++accepted], generated());
    }
    return next;
  }

  // Emits the drafts that stand; returns what replaces the first that does not, or follows them.
  std::int32_t accept_drawn(const Draft& draft, std::span<const std::span<const float>> rows) {
    const std::size_t candidates = draft.candidate_ids.size() / draft.tokens.size();
    for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
      const auto of_token = [&](const auto& all) {
        return std::span(all).subspan(i * candidates, candidates);
      };
      const auto result =
          sampler_.verify(rows[i], static_cast<std::uint64_t>(generated()), draft.tokens[i],
                          of_token(draft.candidate_ids), of_token(draft.probabilities));
      if (!result.accepted || is_end(result.token)) return result.token;
      emit(result.token);
    }
    return choose(rows[draft.tokens.size()], generated());
  }

  Sequence& model_;
  const Sampler& sampler_;
  const Decoding& how_;
  Generation result_;
  std::vector<std::int32_t> history_;
};

}  // namespace

double Generation::mean_accepted_length() const {
  return ratio(static_cast<double>(accepted + verify_calls), static_cast<double>(verify_calls));
}
double Generation::prompt_tokens_per_second() const {
  return ratio(static_cast<double>(prompt_tokens), prompt_seconds);
}
double Generation::tokens_per_second() const {
  return ratio(static_cast<double>(later_tokens), seconds);
}

Generation& Generation::operator+=(const Generation& other) {
  prompt_tokens += other.prompt_tokens;
  later_tokens += other.later_tokens;
  calls += other.calls;
  verify_calls += other.verify_calls;
  drafted += other.drafted;
  accepted += other.accepted;
  prompt_seconds += other.prompt_seconds;
  seconds += other.seconds;
  draft_seconds += other.draft_seconds;
  return *this;
}

Generation generate_text(Sequence& model, std::span<const std::int32_t> prompt,
                         const Sampler& sampler, const Decoding& how) {
  return Decoder(model, sampler, how).run(prompt);
}

}  // namespace deltaworks::cli
