#include "tests/golden/sglang_scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace oomcast::golden {
namespace {

constexpr std::int64_t kMax = std::int64_t{1} << 40;
// Outputs of request r are tokens of this segment + r.
constexpr std::uint64_t kOutputSegments = 1048576;
// Token 2 ends an output, token 0 stands for a prompt that is too long: both are tokens of segment
// 0 in the recordings' numbering.
constexpr sglang::ContentToken kEndToken{0, 2};
constexpr sglang::ContentToken kStubToken{0, 0};

template <typename Value>
void read_name(const JsonView& view, const char* key,
               std::optional<Value> (*find)(const std::string&), Value& value) {
  if (const std::optional<std::string> name = view.text(key)) {
    if (const std::optional<Value> found = find(*name)) {
      value = *found;
    } else {
      view.complain(key, "the name of a policy that has a rule");
    }
  }
}

void read_config(const JsonView& view, sglang::SchedulerConfig& config) {
  const auto integer = [&](std::string_view key) { return view.integer(key, 0, kMax); };
  const auto tokens = [&](std::string_view key) -> std::optional<Tokens> {
    const std::optional<std::int64_t> found = integer(key);
    return found ? std::optional<Tokens>{Tokens{*found}} : std::nullopt;
  };
  const auto flag = [&](std::string_view key) { return view.boolean(key).value_or(false); };
  config.pool_tokens = tokens("pool_tokens").value_or(Tokens{});
  config.page_size = tokens("page_size").value_or(Tokens{1});
  config.context_length = tokens("context_length").value_or(Tokens{});
  // As the engine resolves it: not more than half the slots.
  config.max_running_requests =
      std::min(std::max<std::int64_t>(integer("max_running_requests").value_or(1), 1),
               std::max<std::int64_t>(config.pool_tokens.count() / 2, 1));
  if (const auto chunk = view.integer("chunked_prefill_size", -1, kMax); chunk && *chunk > 0) {
    config.chunked_prefill_size = Tokens{*chunk};
  }
  config.max_prefill_tokens = tokens("max_prefill_tokens").value_or(config.max_prefill_tokens);
  config.schedule_conservativeness = view.number("schedule_conservativeness").value_or(1);
  config.disable_radix_cache = flag("disable_radix_cache");
  config.enable_mixed_chunk = flag("enable_mixed_chunk");
  config.disable_overlap_schedule = flag("disable_overlap_schedule");
  config.enable_priority_scheduling = flag("enable_priority_scheduling");
  config.schedule_low_priority_values_first = flag("schedule_low_priority_values_first");
  config.disable_priority_preemption = flag("disable_priority_preemption");
  config.priority_scheduling_preemption_threshold =
      view.integer("priority_scheduling_preemption_threshold", -kMax, kMax).value_or(10);
  read_name(view, "schedule_policy", sglang::schedule_policy_of, config.schedule_policy);
  read_name(view, "radix_eviction_policy", sglang::eviction_policy_of,
            config.radix_eviction_policy);
  read_name(view, "retraction_policy", sglang::retraction_policy_of, config.retraction_policy);
  config.prefill_max_requests = integer("prefill_max_requests");
  config.max_queued_requests = integer("max_queued_requests");
  config.min_free_slots_delay = integer("min_free_slots_delay");
  config.prefill_decode_interval = integer("prefill_decode_interval").value_or(0);
  config.prefill_decode_interval_min_bs = integer("prefill_decode_interval_min_bs").value_or(0);
  config.swa_pool_tokens = tokens("swa_pool_tokens");
  config.sliding_window = tokens("sliding_window").value_or(Tokens{});
}

// Recurrent layers: slots of the state pool, and how the prefix tree gets states.
void read_states(const JsonView& view, sglang::SchedulerConfig& config) {
  const std::optional<std::int64_t> slots = view.integer("state_slots", 1, kMax);
  if (!slots) {
    return;
  }
  sglang::StatePoolSettings pool;
  pool.slots = *slots;
  pool.overlap = !config.disable_overlap_schedule;
  pool.tracks = !config.disable_radix_cache &&
                view.text("mamba_radix_cache_strategy").value_or("") == "extra_buffer";
  if (const auto interval = view.integer("mamba_track_interval", 1, kMax)) {
    pool.track_interval = Tokens{*interval};
  }
  config.state_pool = pool;
}

// A scenario of a prefill or decode server.
void read_role(const JsonView& view, sglang::SchedulerConfig& config) {
  const std::optional<std::string> mode = view.text("disaggregation_mode");
  if (!mode) {
    return;
  }
  if (*mode == "prefill") {
    config.role = sglang::Role::kPrefill;
  } else if (*mode == "decode") {
    config.role = sglang::Role::kDecode;
    config.extra_rows = view.integer("pd_prealloc_rows", 0, kMax).value_or(0);
  } else if (*mode != "null") {
    view.complain("disaggregation_mode", "null, prefill or decode");
  }
  config.transfer_steps = view.integer("pd_transfer_steps", 0, kMax).value_or(0);
  if (const auto reserved = view.integer("num_reserved_decode_tokens", 0, kMax)) {
    config.num_reserved_decode_tokens = Tokens{*reserved};
  }
}

std::vector<ContentSegment> read_prompt(const JsonView& view) {
  std::vector<ContentSegment> prompt;
  const Json* segments = view.find("prompt");
  if (segments == nullptr || !segments->is_array()) {
    view.complain("prompt", "a list of segments [id, tokens]");
    return prompt;
  }
  for (const Json& segment : *segments) {
    if (!segment.is_array() || segment.size() != 2 || !segment[0].is_number_unsigned() ||
        !segment[1].is_number_unsigned() || segment[1].get<std::uint64_t>() > (1U << 30)) {
      view.complain("prompt", "segments [id, tokens] of at most 2^30 tokens");
      return prompt;
    }
    prompt.push_back({segment[0].get<std::uint64_t>(), Tokens{segment[1].get<std::int64_t>()}});
  }
  return prompt;
}

void read_request(const JsonView& view, SglangRequest& request,
                  const std::map<std::string, std::uint64_t>& routing_keys) {
  sglang::RequestSpec& spec = request.spec;
  spec.id = static_cast<RequestId>(view.integer("id", 0, kMax).value_or(0));
  spec.tie_order = spec.id;  // the engine's id is this one with eight digits
  request.arrival_step = view.integer("arrival_step", 0, kMax).value_or(0);
  request.prompt = read_prompt(view);
  for (const ContentSegment& segment : request.prompt) {
    spec.prompt_len += segment.length;
  }
  spec.max_output = Tokens{view.integer("max_new_tokens", 0, kMax).value_or(0)};
  if (const auto stop = view.integer("stop_after", 1, kMax)) {
    spec.stop_after = Tokens{*stop};
  }
  spec.ignore_eos = view.boolean("ignore_eos").value_or(false);
  spec.priority = view.integer("priority", -kMax, kMax);
  if (const auto key = view.text("routing_key"); key && !key->empty()) {
    spec.routing_key = routing_keys.at(*key);
  }
  spec.output_content = kOutputSegments + spec.id;
  spec.end_token = kEndToken;
  spec.stub_token = kStubToken;
}

// Numbers for the keys, in their order as text.
std::map<std::string, std::uint64_t> number_routing_keys(const Json& requests) {
  std::map<std::string, std::uint64_t> numbers;
  for (const Json& request : requests) {
    if (request.is_object() && request.contains("routing_key") &&
        request["routing_key"].is_string()) {
      numbers.emplace(request["routing_key"].get<std::string>(), 0);
    }
  }
  std::uint64_t next = 1;
  for (auto& [key, number] : numbers) {
    number = next++;
  }
  return numbers;
}

}  // namespace

SglangScenario read_sglang_scenario(const Json& header, const std::string& path) {
  Problems problems;
  const JsonView view(header, path, "", problems);
  SglangScenario scenario;
  scenario.name = view.text("scenario").value_or("");
  const std::optional<JsonView> config = view.object("config");
  const std::optional<Version> version = parse_version(view.text("version").value_or(""));
  const Json* requests = view.find("requests");
  if (!version) {
    view.complain("version", "an engine version");
  }
  if (!config) {
    view.complain("config", "the scheduler's settings");
  }
  if (requests == nullptr || !requests->is_array()) {
    view.complain("requests", "a list of requests");
  }
  problems.raise_if_any();
  read_config(*config, scenario.config);
  read_states(*config, scenario.config);
  read_role(*config, scenario.config);
  scenario.config.rules = sglang::rules_for(*version);
  const std::map<std::string, std::uint64_t> routing_keys = number_routing_keys(*requests);
  scenario.requests.resize(requests->size());
  for (std::size_t i = 0; i < requests->size(); ++i) {
    SglangRequest& request = scenario.requests[i];
    read_request(JsonView((*requests)[i], path, fmt::format("requests[{}]", i), problems), request,
                 routing_keys);
    request.spec.prompt = request.prompt;
  }
  if (const Json* aborts = view.find("aborts"); aborts != nullptr && aborts->is_array()) {
    for (std::size_t i = 0; i < aborts->size(); ++i) {
      const JsonView abort((*aborts)[i], path, fmt::format("aborts[{}]", i), problems);
      scenario.aborts.emplace_back(
          abort.integer("step", 0, kMax).value_or(0),
          static_cast<RequestId>(abort.integer("id", 0, kMax).value_or(0)));
    }
    std::stable_sort(scenario.aborts.begin(), scenario.aborts.end(),
                     [](const auto& left, const auto& right) { return left.first < right.first; });
  }
  problems.raise_if_any();
  return scenario;
}

SglangRun::SglangRun(const SglangScenario& scenario, bool detail)
    : scheduler([&] {
        sglang::SchedulerConfig config = scenario.config;
        config.detail = detail;
        return config;
      }()),
      scenario_(scenario),
      by_arrival_(scenario.requests.size()) {
  std::iota(by_arrival_.begin(), by_arrival_.end(), std::size_t{0});
  std::stable_sort(
      by_arrival_.begin(), by_arrival_.end(), [&](std::size_t left, std::size_t right) {
        return scenario.requests[left].arrival_step < scenario.requests[right].arrival_step;
      });
}

void SglangRun::step() {
  while (next_arrival_ < by_arrival_.size() &&
         scenario_.requests[by_arrival_[next_arrival_]].arrival_step <= executed) {
    scheduler.add(scenario_.requests[by_arrival_[next_arrival_++]].spec);
  }
  while (next_abort_ < scenario_.aborts.size() && scenario_.aborts[next_abort_].first <= executed) {
    scheduler.abort(scenario_.aborts[next_abort_++].second);
  }
  plan = &scheduler.schedule();
  output = scheduler.batches_in_flight() == scheduler.depth() ? &scheduler.complete() : nullptr;
  ++executed;
}

std::int64_t SglangRun::jump() {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  if (next_arrival_ < by_arrival_.size()) {
    limit = scenario_.requests[by_arrival_[next_arrival_]].arrival_step - executed;
  }
  if (next_abort_ < scenario_.aborts.size()) {
    limit = std::min(limit, scenario_.aborts[next_abort_].first - executed);
  }
  const std::int64_t steps = limit > 0 ? scheduler.steady_steps(limit) : 0;
  if (steps > 0) {
    steady = &scheduler.advance_steady(steps);
    executed += steps;
  }
  return steps;
}

bool SglangRun::over() const { return next_arrival_ == by_arrival_.size() && scheduler.idle(); }

}  // namespace oomcast::golden
