// deltaworks generate: a byte-level model package writes on from a prompt.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "block_drafter.hpp"
#include "command.hpp"
#include "lookup.hpp"
#include "model.hpp"
#include "profiled_run.hpp"
#include "prompts.hpp"
#include "report.hpp"

namespace deltaworks::cli {

namespace {

constexpr std::int64_t kDefaultDrafts = 7;

struct GenerateOptions {
  std::string model, prompt, prompt_file, draft = "none";
  std::int64_t max_tokens = 200;
  std::int64_t draft_tokens = kDefaultDrafts;
  bool draft_tokens_given = false;
  int threads = 1;  // more spin between small kernels, and lose where others compute too
  double temperature = 0;
  std::uint64_t seed = 0;
  bool stats = false, verify = false, json = false;
};

class GenerateCommand {
 public:
  explicit GenerateCommand(const GenerateOptions& options)
      : options_(options),
        batch_(options.prompt_file.ends_with(".jsonl")),
        prompts_(read_prompts()),
        package_(read_package(options.model)),
        sampler_(options.temperature, options.seed, allowed_tokens()),
        how_(decoding()),
        model_(package_, {options.threads, ""}, longest_text(), how_.tap) {
    if (!how_.tap) return;
    drafter_.emplace(package_, GraphOptions{options.threads, ""}, longest_text());
    how_.drafter = block_drafts(model_, *drafter_, sampler_);
  }

  int run() {
    for (std::size_t i = 0; i < prompts_.size(); ++i) run_prompt(i);
    if (batch_ && options_.json) write_json(total_json(total_, options_.verify));
    if (options_.verify) print_verify_total(total_);
    if (options_.stats) print_stats(total_);
    if (operators_) print_operators(*operators_);
    return total_.equal == total_.prompts ? 0 : 1;
  }

 private:
  std::vector<std::string> read_prompts() const {
    try {
      if (options_.prompt_file.empty()) {
        return {options_.prompt == "-" ? read_file("-") : options_.prompt};
      }
      const std::string text = read_file(options_.prompt_file);
      if (batch_) return parse_prompt_lines(options_.prompt_file, text);
      return {text};
    } catch (const std::runtime_error& error) {
      throw UsageError(error.what());
    }
  }

  std::vector<std::int32_t> allowed_tokens() const {
    std::vector<std::int32_t> allowed;
    for (std::int32_t byte = 0; byte < 256; ++byte) allowed.push_back(byte);
    allowed.insert(allowed.end(), package_.end_tokens.begin(), package_.end_tokens.end());
    return allowed;
  }

  std::int64_t longest_text() const {
    std::size_t longest = 1;
    for (const std::string& prompt : prompts_) longest = std::max(longest, prompt.size());
    const auto prompt = static_cast<std::int64_t>(longest);
    if (options_.max_tokens > package_.context_length - prompt) {
      throw UsageError(
          fmt::format("a prompt of {} tokens and --max-tokens {} exceed the model's {} positions",
                      prompt, options_.max_tokens, package_.context_length));
    }
    // The last token is never run: it leaves room for the one that begins the document.
    return prompt + std::max<std::int64_t>(options_.max_tokens, 1);
  }

  std::int64_t draft_tokens() const {
    if (options_.draft == "none") return 0;
    if (package_.capture_capacity == 0) {
      throw UsageError(
          fmt::format("--draft {}: this package cannot take tokens back (its graph captures "
                      "no state updates)",
                      options_.draft));
    }
    std::int64_t most = package_.capture_capacity;
    if (options_.draft == "dflash2") most = std::min(most, drafter_slots());
    if (options_.draft_tokens_given && options_.draft_tokens > most) {
      throw UsageError(fmt::format("--draft-tokens {}: this package can {} at most {}",
                                   options_.draft_tokens,
                                   most < package_.capture_capacity ? "draft" : "verify", most));
    }
    return std::min(options_.draft_tokens, most);
  }

  std::int64_t drafter_slots() const {
    if (!package_.drafter) {
      throw UsageError(
          "--draft dflash2: this package has no drafter (its genai_config.json has no "
          "model.dflash2)");
    }
    if (options_.verify && options_.temperature > 0) {
      throw UsageError(
          "--verify with --draft dflash2 needs --temperature 0: drawn drafts keep the text's "
          "distribution, not its bytes");
    }
    return package_.drafter->block - 1;
  }

  Decoding decoding() const {
    Decoding how;
    how.max_tokens = options_.max_tokens;
    how.end_tokens = package_.end_tokens;
    how.draft_tokens = draft_tokens();
    how.drafter = [](std::span<const std::int32_t> history, std::size_t limit) {
      return Draft{lookup_drafts(history, limit), {}, {}};
    };
    how.tap = options_.draft == "dflash2";
    if (!options_.json) how.on_text = [](std::string_view text) { write_output(text); };
    how.on_prompt = print_prompt_progress;
    return how;
  }

  void run_prompt(std::size_t index) {
    const auto tokens = byte_tokens(prompts_[index], package_.first_token);
    const Generation generation = generate_text(model_, tokens, sampler_, how_);
    if (!options_.json && (batch_ || isatty(STDOUT_FILENO) == 1)) write_output("\n");
    Outcome outcome{prompts_[index], generation, {}, true};
    if (options_.verify) {
      outcome.plain = generate_text(model_, tokens, sampler_, plain_decoding());
      outcome.equal = outcome.plain.text == generation.text;
    }
    if (options_.stats && index == 0) {
      operators_ = profiled_run(package_, options_.threads, tokens, sampler_, how_, generation);
    }
    total_ += outcome;
    if (options_.json) {
      auto json = outcome_json(outcome, options_.verify);
      if (operators_ && index == 0) json["operators"] = operators_json(*operators_);
      write_json(json);
    }
    if (options_.verify && batch_) print_verify_line(outcome, index + 1, prompts_.size());
    if (!outcome.equal) print_difference(outcome);
  }

  Decoding plain_decoding() const {
    Decoding plain = how_;
    plain.draft_tokens = 0;
    plain.on_text = nullptr;
    return plain;
  }

  GenerateOptions options_;
  bool batch_;
  std::vector<std::string> prompts_;
  Package package_;
  Sampler sampler_;
  Decoding how_;
  Model model_;
  std::optional<BlockDrafter> drafter_;
  std::optional<OperatorShares> operators_;
  Totals total_;
};

void add_options(CLI::App& command, GenerateOptions& options) {
  command.add_option("--model", options.model, "Folder with genai_config.json and the graph")
      ->required()
      ->check(CLI::ExistingDirectory);
  auto* prompt = command.add_option_group("Prompt")->require_option(1);
  prompt->add_option("--prompt", options.prompt, "The text to go on from; - reads standard input");
  prompt->add_option("--prompt-file", options.prompt_file,
                     "A file with it; - reads standard input. A name that ends in .jsonl has one "
                     "prompt a line, each a JSON string or an object with a string \"prompt\"; all "
                     "run on one load of the model");
  command.add_option("--max-tokens", options.max_tokens, "Length of the text at most")
      ->transform(number<std::int64_t>(0, std::numeric_limits<std::int32_t>::max()))
      ->capture_default_str();
  command
      .add_option("--draft", options.draft,
                  "Verify drafts: copied from what the text has said before (lookup), or by the "
                  "package's own block drafter (dflash2)")
      ->check(CLI::IsMember({"none", "lookup", "dflash2"}))
      ->capture_default_str();
  command
      .add_option_function<std::int64_t>(
          "--draft-tokens",
          [&options](const std::int64_t& drafts) {
            options.draft_tokens = drafts;
            options.draft_tokens_given = true;
          },
          "Drafts a verification at most, and no more than the package captures and its drafter "
          "has slots [7]")
      ->transform(number<std::int64_t>(1, kDefaultDrafts));
  command.add_option("--threads", options.threads, "Threads of ONNX Runtime")
      ->transform(number<int>(1, 1024))
      ->capture_default_str();
  command
      .add_option("--temperature", options.temperature,
                  "0 takes the likeliest byte; above, bytes are sampled")
      ->transform(number<double>(0, 100))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of sampling: equal seeds give equal texts")
      ->transform(number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  command.add_flag("--stats", options.stats,
                   "Tokens/s, mean accepted length and time per operator, on standard error");
  command.add_flag("--verify", options.verify,
                   "Decode every prompt without drafts too, with the same seed; exit 1 if a byte "
                   "differs. With --draft dflash2 at temperature 0 only");
  command.add_flag("--json", options.json,
                   "One JSON object a prompt on standard output, instead of the text; after those "
                   "of a .jsonl file the totals");
}

}  // namespace

void add_generate(CLI::App& app, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("generate", "Write on from a prompt with a byte-level model package");
  const auto options = std::make_shared<GenerateOptions>();
  add_options(*command, *options);
  command->callback(
      [&chosen, options] { chosen = [options] { return GenerateCommand(*options).run(); }; });
}

}  // namespace deltaworks::cli
