#include "tests/golden/vllm_scenario.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace oomcast::golden {
namespace {

vllm::KvGroup read_group(const JsonView& view) {
  vllm::KvGroup group;
  const std::string type = view.text("type").value_or("");
  group.block_size = Tokens{view.integer("block_size", 1, 1 << 30).value_or(1)};
  if (type == "sliding_window") {
    group.type = vllm::KvGroup::Type::kSlidingWindow;
    group.window = Tokens{view.integer("sliding_window", 1, 1 << 30).value_or(1)};
  } else if (type == "chunked_local") {
    group.type = vllm::KvGroup::Type::kChunkedLocal;
    group.window = Tokens{view.integer("attention_chunk_size", 1, 1 << 30).value_or(1)};
  } else if (type == "mamba") {
    group.type = vllm::KvGroup::Type::kMamba;
    group.mamba_mode = view.text("mode").value_or("none") == "align"
                           ? vllm::KvGroup::MambaMode::kAlign
                           : vllm::KvGroup::MambaMode::kNone;
    group.speculative_blocks = view.integer("num_speculative_blocks", 0, 1024).value_or(0);
  } else if (type != "full") {
    view.complain("type", "full, sliding_window, chunked_local or mamba");
  }
  return group;
}

std::vector<std::int32_t> read_table(const JsonView& view, std::string_view key) {
  std::vector<std::int32_t> table;
  const Json* found = view.find(key);
  if (found == nullptr) {
    return table;
  }
  for (const Json& number : *found) {
    if (!number.is_number_integer() || number < 0 || number > 1024) {
      view.complain(key, "counts from 0 to 1024");
      return {};
    }
    table.push_back(number.get<std::int32_t>());
  }
  return table;
}

void read_spec(const JsonView& view, vllm::SpecDecode& spec) {
  const std::string method = view.text("method").value_or("");
  spec.method = method == "ngram"         ? vllm::SpecDecode::Method::kNgram
                : method == "eagle"       ? vllm::SpecDecode::Method::kEagle
                : method == "draft_model" ? vllm::SpecDecode::Method::kDraftModel
                                          : vllm::SpecDecode::Method::kNone;
  if (spec.method == vllm::SpecDecode::Method::kNone) {
    view.complain("method", "ngram, eagle or draft_model");
  }
  spec.num_speculative_tokens = view.integer("num_speculative_tokens", 1, 1024).value_or(1);
  spec.accept = read_table(view, "accept");
  spec.drafts = read_table(view, "drafts");
  spec.lookahead_block_hashes = view.boolean("lookahead_block_hashes").value_or(true);
}

void read_config(const JsonView& view, vllm::SchedulerConfig& config) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  const auto number = [&](std::string_view key, std::int64_t otherwise) {
    return view.integer(key, 0, kMax).value_or(otherwise);
  };
  const auto tokens = [&](std::string_view key) -> std::optional<Tokens> {
    const std::optional<std::int64_t> found = view.integer(key, 0, kMax);
    return found ? std::optional<Tokens>{Tokens{*found}} : std::nullopt;
  };
  config.max_num_seqs = number("max_num_seqs", 0);
  config.max_num_active_seqs = view.integer("max_num_active_seqs", 1, kMax);
  config.max_num_batched_tokens = tokens("max_num_batched_tokens").value_or(Tokens{});
  config.max_num_scheduled_tokens = tokens("max_num_scheduled_tokens");
  config.max_model_len = tokens("max_model_len").value_or(Tokens{});
  config.num_gpu_blocks = Blocks{number("num_gpu_blocks", 0)};
  config.prefix_match_unit = tokens("prefix_match_unit");
  config.prefix_cache_retention_interval = tokens("prefix_cache_retention_interval");
  config.enable_prefix_caching = view.boolean("enable_prefix_caching").value_or(true);
  config.enable_chunked_prefill = view.boolean("enable_chunked_prefill").value_or(true);
  config.scheduler_reserve_full_isl = view.boolean("scheduler_reserve_full_isl").value_or(true);
  config.long_prefill_token_threshold = tokens("long_prefill_token_threshold").value_or(Tokens{});
  config.long_prefill_token_threshold_adaptive =
      view.boolean("long_prefill_token_threshold_adaptive").value_or(false);
  config.policy = view.text("policy").value_or("fcfs") == "priority"
                      ? vllm::SchedulerConfig::Policy::kPriority
                      : vllm::SchedulerConfig::Policy::kFcfs;
  config.async_scheduling = view.boolean("async_scheduling").value_or(false);
  config.pipeline_parallel_size = number("pipeline_parallel_size", 1);
  config.watermark = view.number("watermark").value_or(0);
  config.prefill_schedule_interval = number("prefill_schedule_interval", 1);
  if (const std::optional<JsonView> spec = view.object("spec")) {
    read_spec(*spec, config.spec);
  }
  config.groups.clear();
  if (const Json* groups = view.find("groups"); groups != nullptr && groups->is_array()) {
    for (std::size_t g = 0; g < groups->size(); ++g) {
      config.groups.push_back(read_group(JsonView(
          (*groups)[g], view.source(), fmt::format("config.groups[{}]", g), view.problems())));
    }
  }
}

std::vector<ContentSegment> read_prompt(const JsonView& view) {
  std::vector<ContentSegment> prompt;
  const Json* segments = view.find("prompt");
  if (segments == nullptr) {
    return prompt;
  }
  for (const Json& segment : *segments) {
    if (!segment.is_array() || segment.size() < 2 || segment.size() > 3 ||
        !std::all_of(segment.begin(), segment.end(),
                     [](const Json& part) { return part.is_number_unsigned(); })) {
      view.complain("prompt", "segments [id, tokens] or [id, tokens, count]");
      return prompt;
    }
    const auto first = segment[0].get<std::uint64_t>();
    const auto count = segment.size() == 3 ? segment[2].get<std::uint64_t>() : 1;
    if (count > (1U << 20) || segment[1].get<std::uint64_t>() > (1U << 30)) {
      view.complain("prompt", "at most a million segments of at most 2^30 tokens");
      return prompt;
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      prompt.push_back({first + i, Tokens{segment[1].get<std::int64_t>()}});
    }
  }
  return prompt;
}

void read_request(const JsonView& view, ScenarioRequest& request) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  request.id = view.text("id").value_or("");
  request.arrival_step = view.integer("arrival_step", 0, kMax).value_or(0);
  request.abort_step = view.integer("abort_step", 0, kMax).value_or(-1);
  request.spec.arrival_time =
      view.number("arrival_time").value_or(static_cast<double>(request.arrival_step));
  request.spec.priority = view.integer("priority", -kMax, kMax).value_or(0);
  request.spec.prompt_len = Tokens{view.integer("prompt_len", 0, kMax).value_or(0)};
  request.spec.max_output = Tokens{view.integer("max_tokens", 0, kMax).value_or(0)};
  if (const std::optional<std::int64_t> out =
          view.integer("out", 0, std::numeric_limits<std::int64_t>::max())) {
    request.spec.output_content = static_cast<std::uint64_t>(*out);
  }
  request.prompt = read_prompt(view);
  request.accept = read_table(view, "accept");
  request.drafts = read_table(view, "drafts");
}

std::vector<std::int64_t> read_delays(const JsonView& view, std::string_view key) {
  std::vector<std::int64_t> delays;
  const Json* found = view.find(key);
  for (const Json& delay : found != nullptr && found->is_array() ? *found : Json::array()) {
    if (!delay.is_null() && (!delay.is_number_unsigned() || delay > (1U << 30))) {
      view.complain(key, "steps");
      break;
    }
    delays.push_back(delay.is_null() ? TransferScript::kNever : delay.get<std::int64_t>());
  }
  if (delays.empty()) {
    view.complain(key, "at least one delay in steps");
    delays.push_back(1);
  }
  return delays;
}

template <typename Choice>
Choice read_choice(const JsonView& view, std::string_view key,
                   std::initializer_list<std::pair<std::string_view, Choice>> choices) {
  const std::string text = view.text(key).value_or("");
  for (const auto& [name, choice] : choices) {
    if (text == name) {
      return choice;
    }
  }
  std::string names;
  for (const auto& [name, choice] : choices) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  view.complain(key, names);
  return choices.begin()->second;
}

void read_connector(const JsonView& view, Scenario& scenario) {
  using Config = vllm::ConnectorConfig;
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  Config config;
  config.kind = read_choice<Config::Kind>(
      view, "connector",
      {{"NixlConnector", Config::Kind::kNixl}, {"OffloadingConnector", Config::Kind::kOffloading}});
  config.role = read_choice<Config::Role>(view, "role",
                                          {{"kv_both", Config::Role::kBoth},
                                           {"kv_producer", Config::Role::kProducer},
                                           {"kv_consumer", Config::Role::kConsumer}});
  config.load_failure_policy = read_choice<Config::LoadFailure>(
      view, "load_failure_policy",
      {{"fail", Config::LoadFailure::kFail}, {"recompute", Config::LoadFailure::kRecompute}});
  config.host_buffer = view.text("buffer_device").value_or("cuda") == "cpu";
  config.host_chunks = view.integer("host_chunks", 1, kMax).value_or(0);
  config.bytes_per_token = Bytes{32};  // of the recorded stand-in model, in each group
  if (const std::optional<JsonView> extra = view.object("extra")) {
    config.bidirectional = extra->boolean("bidirectional_kv_xfer").value_or(false);
    config.recompute_threshold =
        Tokens{extra->integer("kv_recompute_threshold", 0, kMax).value_or(64)};
    config.blocks_per_chunk = extra->integer("blocks_per_chunk", 1, 1024).value_or(1);
    config.eviction_policy = extra->text("eviction_policy").value_or("lru") == "arc"
                                 ? Config::Eviction::kArc
                                 : Config::Eviction::kLru;
    config.store_threshold = extra->integer("store_threshold", 0, kMax).value_or(0);
    config.offload_prompt_only = extra->boolean("offload_prompt_only").value_or(true);
    config.sync_load_budget = Bytes{extra->integer("sync_load_budget_bytes", 0, kMax).value_or(0)};
  }
  scenario.script.receive_delays = read_delays(view, "recv_delay");
  scenario.script.send_delays = read_delays(view, "send_delay");
  scenario.script.load_delays = read_delays(view, "load_delay");
  scenario.script.store_delays = read_delays(view, "store_delay");
  scenario.script.lease_steps = view.integer("lease_steps", 0, kMax).value_or(1);
  scenario.config.connector = config;
}

void read_transfer(const JsonView& view, ScenarioRequest& request) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  const auto tokens = [&](std::string_view key) -> std::optional<Tokens> {
    const std::optional<std::int64_t> found = view.integer(key, 0, kMax);
    return found ? std::optional(Tokens{*found}) : std::nullopt;
  };
  using Remote = vllm::KvTransferParams::Remote;
  if (view.has("remote")) {
    request.spec.transfer.remote = read_choice<Remote>(
        view, "remote", {{"prefill", Remote::kPrefill}, {"decode", Remote::kDecode}});
  }
  request.spec.transfer.remote_num_tokens = tokens("remote_num_tokens");
  request.spec.transfer.max_load_tokens = tokens("max_load_tokens");
  request.spec.transfer.max_offload_tokens = tokens("max_offload_tokens");
  request.receive_delay = view.integer("recv_delay", 0, kMax);
  request.send_delay = view.integer("send_delay", 0, kMax);
  if (view.raw().contains("send_delay") && !view.has("send_delay")) {
    request.send_delay = TransferScript::kNever;  // null: nobody fetches
  }
  const Json* fails = view.find("recv_fail");
  request.receive_fails = fails != nullptr && fails->is_string();
  for (const Json& block : fails != nullptr && fails->is_array() ? *fails : Json::array()) {
    if (!block.is_number_unsigned()) {
      view.complain("recv_fail", "\"request\" or indices of blocks");
      break;
    }
    request.bad_blocks.push_back(block.get<std::size_t>());
  }
}

// Equal priorities and arrival times go by the id as text.
void rank_by_text(std::vector<ScenarioRequest>& requests) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return requests[left].id < requests[right].id;
  });
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    requests[order[rank]].spec.tie_order = rank;
  }
}

}  // namespace

Scenario read_scenario(const Json& header, const std::string& path) {
  Problems problems;
  const JsonView view(header, path, "", problems);
  Scenario scenario;
  scenario.name = view.text("scenario").value_or("");
  const std::optional<JsonView> config = view.object("config");
  const std::optional<Version> version = parse_version(view.text("version").value_or(""));
  if (!version) {
    view.complain("version", "an engine version");
  }
  if (!config) {
    view.complain("config", "the scheduler's settings");
  }
  problems.raise_if_any();
  if (!config || !version) {
    return scenario;
  }
  read_config(*config, scenario.config);
  if (const std::optional<JsonView> kv = config->object("kv")) {
    read_connector(*kv, scenario);
  }
  scenario.config.rules = vllm::rules_for(*version);
  scenario.max_steps = view.integer("max_steps", 0, std::int64_t{1} << 40);
  if (const Json* derived = view.find("derived")) {
    scenario.derived = *derived;
  }
  const Json* requests = view.find("requests");
  if (requests == nullptr || !requests->is_array()) {
    view.complain("requests", "a list of requests");
    problems.raise_if_any();
  }
  scenario.requests.resize(requests->size());
  for (std::size_t i = 0; i < requests->size(); ++i) {
    ScenarioRequest& request = scenario.requests[i];
    const JsonView one((*requests)[i], path, fmt::format("requests[{}]", i), problems);
    read_request(one, request);
    read_transfer(one, request);
    if (!request.bad_blocks.empty() && scenario.config.groups.size() > 1) {
      one.complain("recv_fail", "\"request\" where there are several KV cache groups");
    }
    request.spec.id = i;
    request.spec.prompt = request.prompt;
    request.spec.accept = request.accept;
    request.spec.drafts = request.drafts;
    scenario.by_id.emplace(request.id, i);
  }
  problems.raise_if_any();
  rank_by_text(scenario.requests);
  return scenario;
}

ScenarioRun::ScenarioRun(const Scenario& scenario, bool detail)
    : workers(scenario),
      scheduler([&] {
        vllm::SchedulerConfig config = scenario.config;
        config.detail = detail;
        return config;
      }()),
      scenario_(scenario) {
  by_arrival_.resize(scenario.requests.size());
  std::iota(by_arrival_.begin(), by_arrival_.end(), std::size_t{0});
  by_abort_ = by_arrival_;
  std::erase_if(by_abort_, [&](std::size_t i) { return scenario.requests[i].abort_step < 0; });
  const auto sort = [&](std::vector<std::size_t>& order, auto step_of) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
      return step_of(scenario.requests[left]) < step_of(scenario.requests[right]);
    });
  };
  sort(by_arrival_, [](const ScenarioRequest& request) { return request.arrival_step; });
  sort(by_abort_, [](const ScenarioRequest& request) { return request.abort_step; });
}

void ScenarioRun::arrivals_and_aborts() {
  rejected.clear();
  aborted.clear();
  while (next_arrival_ < by_arrival_.size() &&
         scenario_.requests[by_arrival_[next_arrival_]].arrival_step <= now) {
    const std::size_t i = by_arrival_[next_arrival_++];
    if (scheduler.add(scenario_.requests[i].spec) != vllm::Added::kQueued) {
      rejected.push_back(i);
    }
  }
  while (next_abort_ < by_abort_.size() &&
         scenario_.requests[by_abort_[next_abort_]].abort_step <= now) {
    const std::size_t i = by_abort_[next_abort_++];
    if (scenario_.requests[i].abort_step == now && scheduler.abort(i).known) {
      aborted.push_back(i);
    }
  }
}

bool ScenarioRun::step() {
  if (scenario_.max_steps && executed >= *scenario_.max_steps) {
    return false;
  }
  if (scheduler.idle()) {
    scheduler.drop_empty_batches();
    batch_steps_.clear();
    if (next_arrival_ == by_arrival_.size()) {
      return false;
    }
    next_step_ = std::max(next_step_, scenario_.requests[by_arrival_[next_arrival_]].arrival_step);
  }
  now = next_step_++;
  arrivals_and_aborts();
  plan = &scheduler.schedule();
  output = nullptr;
  report = nullptr;
  if (scenario_.config.connector) {
    workers.start(plan->transfers, now);
    batch_steps_.push_back(now);
    while_running = scheduler.transfers();
  }
  if (scheduler.batches_in_flight() == scheduler.depth()) {
    if (scenario_.config.connector) {
      report = &workers.report(batch_steps_.front());
      batch_steps_.pop_front();
    }
    output = report != nullptr ? &scheduler.complete(*report) : &scheduler.complete();
  }
  ++executed;
  return true;
}

std::int64_t ScenarioRun::jump() {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  if (next_arrival_ < by_arrival_.size()) {
    limit = scenario_.requests[by_arrival_[next_arrival_]].arrival_step - next_step_;
  }
  if (next_abort_ < by_abort_.size()) {
    limit = std::min(limit, scenario_.requests[by_abort_[next_abort_]].abort_step - next_step_);
  }
  if (scenario_.max_steps) {
    limit = std::min(limit, *scenario_.max_steps - executed);
  }
  const std::int64_t steps = limit > 0 ? scheduler.steady_steps(limit) : 0;
  if (steps > 0) {
    steady = &scheduler.advance_steady(steps);
    next_step_ += steps;
    now = next_step_ - 1;
    executed += steps;
  }
  return steps;
}

}  // namespace oomcast::golden
