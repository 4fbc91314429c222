#include "sim/engines/vllm/startup_rules.hpp"

#include <map>
#include <optional>

#include "models/data.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast::vllm {
namespace {

constexpr const char* kFile = "engines/vllm/presets.json";

// The last row whose `since` is not above the version; the first for older ones.
const Json* row_for(const Json* rows, const Version& version, const std::string& key,
                    Problems& problems) {
  const Json* found = nullptr;
  if (rows != nullptr && rows->is_array()) {
    for (const Json& row : *rows) {
      const auto since = row.is_object() && row.contains("since") && row["since"].is_string()
                             ? parse_version(row["since"].get<std::string>())
                             : std::nullopt;
      if (!since || !row.contains("value")) {
        problems.add({kFile, key, row.dump().substr(0, 80), "rows with `since` and `value`", ""});
        return nullptr;
      }
      // The first row also stands for older versions, which run the same engine core.
      if (*since <= version || found == nullptr) {
        found = &row;
      }
    }
  }
  if (found == nullptr) {
    problems.add({kFile, key, to_string(version), "a row for this version", ""});
  }
  return found;
}

class Reader {
 public:
  Reader(const Json& file, const Version& version, Problems& problems)
      : rules_(file, kFile, "", problems), version_(version), problems_(problems) {}

  const Json* rule(const std::string& key) const {
    const auto section = rules_.object("rules");
    const Json* rows = section ? section->find(key) : nullptr;
    return row_for(rows, version_, "rules." + key, problems_);
  }
  bool boolean(const std::string& key) const {
    const Json* row = rule(key);
    return row != nullptr &&
           checked<bool>(*row, key, row->at("value").is_boolean(), "true or false");
  }
  double number(const std::string& key) const {
    const Json* row = rule(key);
    return row == nullptr ? 0
                          : checked<double>(*row, key, row->at("value").is_number(), "a number");
  }
  std::int64_t integer(const std::string& key) const {
    return static_cast<std::int64_t>(number(key));
  }
  Version version(const std::string& key) const {
    const Json* row = rule(key);
    const auto value = row != nullptr && row->at("value").is_string()
                           ? parse_version(row->at("value").get<std::string>())
                           : std::nullopt;
    if (row != nullptr && !value) {
      problems_.add({kFile, "rules." + key, row->at("value").dump(), "a version", ""});
    }
    return value.value_or(Version{});
  }
  template <typename Enum>
  Enum choice(const std::string& key, const std::map<std::string, Enum>& choices) const {
    const Json* row = rule(key);
    if (row == nullptr) {
      return {};
    }
    const Json& value = row->at("value");
    const auto found = value.is_string() ? choices.find(value.get<std::string>()) : choices.end();
    if (found == choices.end()) {
      problems_.add({kFile, "rules." + key, value.dump(), "a known choice", ""});
      return {};
    }
    return found->second;
  }
  // A measured value in `unit`s; adds its provenance.
  std::int64_t measured(const std::string& key, std::vector<std::string>& provenance) const {
    const auto section = rules_.object("measured");
    const auto entry = section ? section->object(key) : std::nullopt;
    if (!entry) {
      problems_.add({kFile, "measured." + key, "nothing", "a measured value with rows", ""});
      return 0;
    }
    const Json* rows = entry->find("rows");
    const Json* row = row_for(rows, version_, "measured." + key, problems_);
    if (row == nullptr || !row->at("value").is_number_integer()) {
      problems_.add({kFile, "measured." + key, "", "an integer `value`", ""});
      return 0;
    }
    const auto value = row->at("value").get<std::int64_t>();
    std::string spread;
    if (const auto mib = entry->number("uncertainty_mib")) {
      spread = fmt::format(" +-{} MiB", *mib);
    } else if (const auto percent = entry->number("uncertainty_percent")) {
      spread = fmt::format(" +-{} %", *percent);
    }
    provenance.push_back(fmt::format("{} = {}{}: {} [{}]", key, value, spread,
                                     entry->text("about").value_or(""),
                                     entry->text("source").value_or("")));
    return value;
  }
  double step_time(const std::string& key) const {
    const auto section = rules_.object("step_time");
    const auto value = section ? section->number(key) : std::nullopt;
    if (!value || *value < 0) {
      problems_.add({kFile, "step_time." + key, "", "a number of microseconds", ""});
      return 0;
    }
    return *value * 1e-6;
  }

 private:
  template <typename T>
  T checked(const Json& row, const std::string& key, bool right, const char* expected) const {
    if (!right) {
      problems_.add({kFile, "rules." + key, row.at("value").dump(), expected, ""});
      return T{};
    }
    return row.at("value").get<T>();
  }

  JsonView rules_;
  Version version_;
  Problems& problems_;
};

}  // namespace

StartupRules startup_rules_for(const Version& version) {
  const Json file = models::embedded_json(kFile);
  Problems problems;
  const Reader read(file, version, problems);
  StartupRules rules;
  rules.budget =
      read.choice<Budget>("budget", {{"profile", Budget::kProfile},
                                     {"profile_and_estimate", Budget::kProfileAndEstimate},
                                     {"consumed", Budget::kConsumed}});
  rules.requested_is_ceiled = read.boolean("requested_is_ceiled");
  rules.graph_estimate_possible = read.boolean("graph_estimate_possible");
  rules.graph_estimate_v1 = read.boolean("graph_estimate_v1");
  rules.graph_estimate_v2 = read.boolean("graph_estimate_v2");
  rules.runner_v2 =
      read.choice<RunnerV2>("runner_v2", {{"never", RunnerV2::kNever},
                                          {"dense", RunnerV2::kDense},
                                          {"listed", RunnerV2::kListed},
                                          {"dense_or_listed", RunnerV2::kDenseOrListed},
                                          {"always", RunnerV2::kAlways}});
  if (const Json* row = read.rule("runner_v2"); row != nullptr && row->contains("architectures")) {
    for (const Json& name : row->at("architectures")) {
      rules.runner_v2_architectures.push_back(name.get<std::string>());
    }
  }
  rules.sampler_units_v1 = read.number("sampler_units_v1");
  rules.sampler_units_v2 = read.number("sampler_units_v2");
  rules.sampler_buffer_v1 = read.boolean("sampler_buffer_v1");
  rules.capture_step_from_256 = read.integer("capture_step_from_256");
  rules.capture_limit_blackwell = read.integer("capture_limit_blackwell");
  rules.capture_adds_batch_tokens = read.boolean("capture_adds_batch_tokens");
  rules.capture_adds_decode_sizes = read.boolean("capture_adds_decode_sizes");
  rules.batch_tokens_huge_card = read.integer("batch_tokens_huge_card");
  rules.unified_memory_is_small = read.boolean("unified_memory_is_small");
  rules.batch_tokens_capped_by_seqs = read.boolean("batch_tokens_capped_by_seqs");
  rules.async_by_default = read.boolean("async_by_default");
  rules.report_by_concurrency =
      read.choice<bool>("report_tokens", {{"blocks", false}, {"concurrency", true}});
  rules.null_block_in_check = read.boolean("null_block_in_check");
  rules.needed_from_groups = read.boolean("needed_from_groups");
  rules.cublas_before_snapshot = read.boolean("cublas_before_snapshot");
  rules.group_size_ratio = read.number("group_size_ratio");
  rules.window_in_flight_batches = read.boolean("window_in_flight_batches");
  rules.pads_pages = read.boolean("pads_pages");
  rules.recurrent_prefix_caching = read.boolean("recurrent_prefix_caching");
  rules.keeps_every_state = read.boolean("keeps_every_state");
  rules.checks_state_blocks = read.boolean("checks_state_blocks");
  rules.state_kernel_block_is_current = read.boolean("state_kernel_block_is_current");
  rules.long_log_names_model = read.boolean("long_log_names_model");
  rules.interleaved_rope_factor = read.integer("interleaved_rope_factor");
  rules.load_max_split = kMiB * read.integer("load_max_split_mib");
  rules.profile_max_split = kMiB * read.integer("profile_max_split_mib");
  rules.torch = read.version("torch");

  auto& notes = rules.provenance;
  rules.non_torch_single = kMiB * read.measured("non_torch_single_mib", notes);
  rules.non_torch_tensor_parallel = kMiB * read.measured("non_torch_tensor_parallel_mib", notes);
  rules.non_torch_pipeline = kMiB * read.measured("non_torch_pipeline_mib", notes);
  rules.graph_node = kKiB * read.measured("graph_node_kib", notes);
  rules.graph_executable = kKiB * read.measured("graph_executable_kib", notes);
  rules.graph_nodes_per_layer_full = read.measured("graph_nodes_per_layer_full", notes);
  rules.graph_nodes_per_piece = read.measured("graph_nodes_per_piece", notes);
  rules.runner_v2_resident = kMiB * read.measured("runner_v2_resident_mib", notes);
  rules.step_seconds = read.step_time("step_us");
  rules.layer_seconds = read.step_time("layer_us");
  rules.request_seconds = read.step_time("request_us");
  problems.raise_if_any();
  return rules;
}

}  // namespace oomcast::vllm
