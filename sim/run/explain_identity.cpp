#include "sim/run/explain_identity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/gpu.hpp"
#include "sim/core/error.hpp"
#include "sim/launch/flag_table.hpp"

namespace oomcast {
namespace {

using logs::EngineRun;
using logs::Figure;
using logs::Text;

std::string at_line(std::int64_t line) { return fmt::format("line {}", line); }

// Engine of a launch line; nullopt if it cannot be read.
std::optional<launch::Launch> try_parse(const std::string& line, const std::string& version) {
  try {
    launch::LaunchOptions options;
    options.engine_version = version;
    return launch::parse_launch(line, options);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

// The newest known version whose wording the lines have.
Identified version_by_wording(const EngineRun& run, launch::Engine engine) {
  if (launch::flag_table(engine) == nullptr || (!run.worded_since && !run.worded_until)) {
    return {};
  }
  const std::vector<Version>& known = launch::known_versions(engine).versions;
  Version chosen = known.back();
  for (const Version& version : known) {
    if (!run.worded_until || version <= *run.worded_until) {
      chosen = version;
    }
  }
  return {to_string(chosen),
          fmt::format("the wording of the lines: {}{}",
                      run.worded_since ? to_string(*run.worded_since) + " and newer" : "",
                      run.worded_until ? (run.worded_since ? ", " : "") + std::string("up to ") +
                                             to_string(*run.worded_until)
                                       : "")};
}

Identified version_of(const EngineRun& run, const ExplainOptions& options, launch::Engine engine) {
  if (!options.engine_version.empty()) {
    return {options.engine_version, "option"};
  }
  const logs::TextReading& printed = run.text(Text::kVersion);
  if (printed.line > 0 && parse_version(printed.value)) {
    return {printed.value, at_line(printed.line)};
  }
  return version_by_wording(run, engine);
}

// Cards whose memory is what the log calls the total.
std::vector<std::string> cards_of(double total_bytes) {
  constexpr double kDriversDiffer = 0.12 * 1073741824.0;
  std::vector<std::string> names;
  for (const std::string& name : models::gpu_names()) {
    const auto total = static_cast<double>(models::find_gpu(name).device_total.count());
    if (std::abs(total - total_bytes) < kDriversDiffer) {
      names.push_back(name);
    }
  }
  return names;
}

Identified gpu_of(const EngineRun& run, const ExplainOptions& options, Identity& identity) {
  if (!options.gpu.empty()) {
    return {models::find_gpu(options.gpu).name, "option"};
  }
  const logs::TextReading& printed = run.text(Text::kGpu);
  if (printed.line > 0) {
    try {
      return {models::find_gpu(printed.value).name, at_line(printed.line)};
    } catch (const ConfigError&) {
      identity.notes.push_back(
          fmt::format("card {} of line {} is not in the catalog", printed.value, printed.line));
    }
  }
  const logs::Reading* total = run.nearest(Figure::kTotal, run.deciding_rank());
  if (total == nullptr) {
    identity.missing.emplace_back("the card (--gpu)");
    return {};
  }
  const std::vector<std::string> cards = cards_of(total->value);
  if (cards.size() == 1) {
    return {cards.front(), fmt::format("the only card with {:.2f} GiB (line {})",
                                       to_gib(total->bytes()), total->line)};
  }
  identity.missing.push_back(
      cards.empty() ? fmt::format("the card (--gpu): none in the catalog has {:.2f} GiB",
                                  to_gib(total->bytes()))
                    : fmt::format("the card (--gpu): {:.2f} GiB has {}", to_gib(total->bytes()),
                                  fmt::join(cards, " or ")));
  return {};
}

// What the card showed, where the options do not say.
CardState card_of(const EngineRun& run, const ExplainOptions& options, launch::Engine engine) {
  CardState card = options.card;
  const std::size_t rank = run.deciding_rank();
  const logs::Reading* total = run.nearest(Figure::kTotal, rank);
  if (!card.total && total != nullptr && total->value > 0) {
    card.total = total->bytes();
  }
  // SGLang's budget is a share of what it finds free before loading.
  const logs::Reading* free = run.nearest(Figure::kFreeAtStart, rank);
  if (!card.free_at_start && engine == launch::Engine::kSglang && free != nullptr) {
    card.free_at_start = free->bytes();
  }
  return card;
}

void take_launch(const EngineRun& run, const ExplainOptions& options, Identity& identity) {
  if (!options.launch_line.empty()) {
    identity.launch_line = {options.launch_line, "option"};
    return;
  }
  const logs::TextReading& pasted = run.text(Text::kLaunchLine);
  identity.launch_line.value =
      launch_line_of(run, *identity.engine, identity.version.value, identity.notes);
  identity.launch_line.from = pasted.line > 0 ? at_line(pasted.line)
                              : run.text(Text::kArguments).line > 0
                                  ? at_line(run.text(Text::kArguments).line)
                                  : "settings that the lines tell";
}

}  // namespace

Identity identify(const EngineRun& run, const ExplainOptions& options) {
  Identity identity;
  identity.engine = run.engine;
  const std::string& typed =
      options.launch_line.empty() ? run.text(Text::kLaunchLine).value : options.launch_line;
  const auto launch = typed.empty() ? std::nullopt : try_parse(typed, options.engine_version);
  if (!identity.engine && launch) {
    identity.engine = launch->engine;
  }
  if (!identity.engine) {
    identity.missing.emplace_back("the engine: no line names it (--launch)");
    return identity;
  }
  identity.version = version_of(run, options, *identity.engine);
  if (identity.version.value.empty() && launch) {
    identity.version = {launch->version_text, "launch line"};
  }
  take_launch(run, options, identity);
  identity.gpu = gpu_of(run, options, identity);
  if (identity.launch_line.value.empty()) {
    identity.missing.emplace_back("the model and its flags (--launch)");
    return identity;
  }
  if (const auto parsed = try_parse(identity.launch_line.value, identity.version.value)) {
    identity.model = {parsed->model, identity.launch_line.from};
  }
  identity.input = {.launch_line = identity.launch_line.value,
                    .gpu = identity.gpu.value,
                    .engine_version = identity.version.value,
                    .model_config = options.model_config,
                    .card = card_of(run, options, *identity.engine),
                    .assume = options.assume};
  return identity;
}

}  // namespace oomcast
