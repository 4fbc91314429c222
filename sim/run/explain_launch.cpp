// Flags that a log prints -> a launch line.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/logs/python_repr.hpp"
#include "sim/run/explain_identity.hpp"

namespace oomcast {
namespace {

using logs::EngineRun;
using logs::Figure;
using logs::Text;

// Names the model, or nothing that memory or scheduling depends on.
constexpr std::array<std::string_view, 9> kNoFlags = {
    "model",     "model_tag",         "model_path",
    "tokenizer", "tokenizer_path",    "served_model_name",
    "subparser", "dispatch_function", "config"};

struct Renamed {
  std::string_view printed;
  std::string_view flag;
};
// Resolved settings of vLLM's `with config:` that are flags under these names.
constexpr std::array<Renamed, 7> kVllmConfig = {
    {{"dtype", "dtype"},
     {"max_seq_len", "max-model-len"},
     {"tensor_parallel_size", "tensor-parallel-size"},
     {"pipeline_parallel_size", "pipeline-parallel-size"},
     {"data_parallel_size", "data-parallel-size"},
     {"enforce_eager", "enforce-eager"},
     {"kv_cache_dtype", "kv-cache-dtype"}}};

std::string shell_word(const std::string& word) {
  std::string out = "'";
  for (const char letter : word) {
    out += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return out + "'";
}

// A model name or the last folder of a path: catalogs know no places of machines.
std::string model_name(const std::string& name) {
  if (name.empty() || (name.front() != '/' && name.front() != '.')) {
    return name;
  }
  const std::size_t end = name.find_last_not_of('/');
  const std::size_t slash = name.rfind('/', end);
  return name.substr(slash + 1, end - slash);
}

// "--flag value" as typed; empty for a value that no command line can hold.
std::string typed(const std::string& flag, const OrderedJson& value, launch::Engine engine) {
  if (value.is_boolean()) {
    if (!value.get<bool>()) {
      return engine == launch::Engine::kVllm ? " --no-" + flag : "";
    }
    return " --" + flag;
  }
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
    constexpr std::string_view kTorch = "torch.";
    text = text.starts_with(kTorch) ? text.substr(kTorch.size()) : text;
  } else if (value.is_array()) {
    std::string words;
    for (const OrderedJson& entry : value) {
      words += " " + shell_word(entry.is_string() ? entry.get<std::string>() : entry.dump());
    }
    return value.empty() ? "" : " --" + flag + words;
  } else {
    text = value.dump();
  }
  return " --" + flag + " " + shell_word(text);
}

class LineBuilder {
 public:
  LineBuilder(launch::Engine engine, std::string version, const std::string& model)
      : engine_(engine), version_(std::move(version)) {
    switch (engine) {
      case launch::Engine::kVllm:
        line_ = "vllm serve " + shell_word(model);
        break;
      case launch::Engine::kSglang:
        line_ = "python -m sglang.launch_server --model-path " + shell_word(model);
        break;
      case launch::Engine::kTrtllm:
        line_ = "trtllm-serve " + shell_word(model);
        break;
    }
    base_ = line_;
  }

  // Adds a flag that the version takes; the default it would have is left out.
  void add(std::string flag, const OrderedJson& value) {
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (value.is_null() || std::find(added_.begin(), added_.end(), flag) != added_.end()) {
      return;
    }
    const std::string words = typed(flag, value, engine_);
    if (words.empty()) {
      return;
    }
    try {
      parse(base_ + words);
      line_ += words;
      added_.push_back(flag);
    } catch (const ConfigError&) {
      left_out_.push_back(flag);
    }
  }

  [[nodiscard]] const std::string& line() const { return line_; }
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  void parse(const std::string& line) const {
    launch::LaunchOptions options;
    options.engine_version = version_;
    launch::parse_launch(line, options);
  }

  launch::Engine engine_;
  std::string version_;
  std::string base_;
  std::string line_;
  std::vector<std::string> added_;
  std::vector<std::string> left_out_;
};

void add_arguments(const OrderedJson& arguments, LineBuilder& line) {
  for (const auto& [name, value] : arguments.items()) {
    if (std::find(kNoFlags.begin(), kNoFlags.end(), name) == kNoFlags.end()) {
      line.add(name, value);
    }
  }
}

// What the resolved settings and the figures tell where no flags were printed.
void add_resolved(const EngineRun& run, LineBuilder& line) {
  const OrderedJson config = logs::parse_python_settings(run.text(Text::kConfig).value);
  for (const Renamed& setting : kVllmConfig) {
    const auto found = config.find(std::string(setting.printed));
    const bool off = found != config.end() && *found == OrderedJson(false);
    if (found != config.end() && !off) {
      line.add(std::string(setting.flag), *found);
    }
  }
  const std::size_t rank = run.deciding_rank();
  if (const auto* share = run.nearest(Figure::kUtilization, rank)) {
    line.add("gpu-memory-utilization", share->value);
  }
  for (const auto& [figure, flag] : {std::pair(Figure::kBatchTokens, "max-num-batched-tokens"),
                                     std::pair(Figure::kMaxModelLen, "max-model-len")}) {
    if (const auto* count = run.nearest(figure, rank)) {
      line.add(flag, static_cast<std::int64_t>(count->value));
    }
  }
}

}  // namespace

std::string launch_line_of(const EngineRun& run, launch::Engine engine, const std::string& version,
                           std::vector<std::string>& notes) {
  const logs::TextReading& pasted = run.text(Text::kLaunchLine);
  if (pasted.line > 0) {
    return pasted.value;
  }
  const OrderedJson arguments = logs::parse_python_settings(run.text(Text::kArguments).value);
  std::string model = run.text(Text::kModel).value;
  for (const char* key : {"model_tag", "model", "model_path"}) {
    const auto found = arguments.find(key);
    if (found != arguments.end() && found->is_string() && model.empty()) {
      model = found->get<std::string>();
    }
  }
  if (model.empty()) {
    const OrderedJson config = logs::parse_python_settings(run.text(Text::kConfig).value);
    model = config.value("model", std::string());
  }
  if (model.empty()) {
    return {};
  }
  LineBuilder line(engine, version, model_name(model));
  add_arguments(arguments, line);
  if (engine == launch::Engine::kVllm && run.text(Text::kArguments).line == 0) {
    add_resolved(run, line);
    notes.emplace_back(
        "the flags were not printed; limits that no line tells are at their defaults");
  }
  if (!line.left_out().empty()) {
    notes.push_back(fmt::format("flags of the log that are not taken over: {}",
                                fmt::join(line.left_out(), ", ")));
  }
  return line.line();
}

}  // namespace oomcast
