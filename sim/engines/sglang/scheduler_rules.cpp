#include <algorithm>
#include <array>
#include <numeric>

#include "sim/core/setting_checks.hpp"
#include "sim/engines/sglang/scheduler_config.hpp"

namespace oomcast::sglang {
namespace {

constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

template <typename Value, std::size_t kSize>
std::optional<Value> look_up(const std::array<std::pair<const char*, Value>, kSize>& table,
                             const std::string& name) {
  for (const auto& [known, value] : table) {
    if (name == known) {
      return value;
    }
  }
  return std::nullopt;
}

void check_pages(const SchedulerConfig& config, SettingChecks& checks) {
  const std::int64_t page = config.page_size.count();
  if (page < 1) {
    return;
  }
  const auto multiple = [&](const char* name, Tokens tokens) {
    if (tokens.count() % page != 0) {
      checks.problem(name, fmt::format("{}", tokens.count()),
                     fmt::format("a multiple of page_size {}", page));
    }
  };
  multiple("pool_tokens", config.pool_tokens);
  multiple("host_tier.pool", config.host_tier.value_or(HostTierSettings{}).pool);
  multiple("swa_pool_tokens", config.swa_pool_tokens.value_or(Tokens{}));
  multiple("chunked_prefill_size", config.chunked_prefill_size.value_or(Tokens{}));
}

void check_window(const SchedulerConfig& config, SettingChecks& checks) {
  if (!config.swa_pool_tokens) {
    return;
  }
  checks.range("swa_pool_tokens", config.swa_pool_tokens->count(), 1, kMaxSlots);
  checks.range("sliding_window", config.sliding_window.count(), 1, kMaxTokens);
  if (!config.rules.sliding_window_pools) {
    checks.problem("swa_pool_tokens", fmt::format("{}", config.swa_pool_tokens->count()),
                   "no sliding-window pool before 0.5.23: its rules are not modelled");
  }
  if (config.enable_mixed_chunk) {
    checks.problem("enable_mixed_chunk", "true", "off with a sliding-window pool: not modelled");
  }
  if (config.sliding_window.count() > 0 && config.page_size.count() > 0 &&
      config.sliding_window + config.page_size >= *config.swa_pool_tokens) {
    checks.problem("swa_pool_tokens", fmt::format("{}", config.swa_pool_tokens->count()),
                   "more than a window and a page, or no request fits");
  }
}

// Where both rules are kept, it is safe that there is always a slot.
void check_states(const SchedulerConfig& config, SettingChecks& checks) {
  if (!config.state_pool) {
    return;
  }
  const StatePoolSettings& pool = *config.state_pool;
  checks.range("state_pool.slots", pool.slots, 1, kMaxSlots);
  checks.range("state_pool.kernel_chunk", pool.kernel_chunk.count(), 1, kMaxTokens);
  checks.range("state_pool.track_interval", pool.track_interval.count(), 1, kMaxTokens);
  const auto refuse = [&](const char* setting, bool set, const char* expected) {
    if (set) {
      checks.problem("state_pool", setting, expected);
    }
  };
  const bool sharing = !config.disable_radix_cache;
  refuse("fewer slots than requests need",
         pool.slots / pool.slots_per_request(sharing) < config.max_running_requests,
         "slots for max_running_requests, or the engine stops for want of them");
  refuse("with a sliding-window pool", sharing && config.swa_pool_tokens.has_value(),
         "one of the two with a prefix cache: a tree of both is not modelled");
  refuse("with a host tier", config.host_tier.has_value(), "none: not modelled");
  refuse("in a prefill or decode role", config.role != Role::kMixed, "both roles: not modelled");
  refuse("tracked without a prefix cache", pool.tracks && !sharing, "a prefix cache");
  refuse("untracked in pages", !pool.tracks && sharing && config.page_size > Tokens{1},
         "page_size 1, as the engine has it");
  refuse("before the unified tree", sharing && !config.rules.state_trees,
         "a release whose tree over states is modelled");
}

void check_tier(const SchedulerConfig& config, SettingChecks& checks) {
  if (!config.host_tier) {
    return;
  }
  checks.range("host_tier.pool", config.host_tier->pool.count(), 1, kMaxSlots);
  const auto refuse = [&](const char* setting, bool set, const char* expected) {
    if (set) {
      checks.problem("host_tier", setting, expected);
    }
  };
  refuse("without a prefix cache", config.disable_radix_cache, "a prefix cache");
  refuse("with a sliding-window pool", config.swa_pool_tokens.has_value(),
         "one pool: two are not modelled");
  refuse("in a prefill or decode role", config.role != Role::kMixed, "both roles: not modelled");
  refuse("before 0.5.21", !config.rules.host_tier,
         "0.5.21 or later: earlier rules are not modelled");
}

void check_role(const SchedulerConfig& config, SettingChecks& checks) {
  checks.range("extra_rows", config.extra_rows, 0, kMaxTokens);
  checks.range("num_reserved_decode_tokens", config.num_reserved_decode_tokens.count(), 0,
               kMaxTokens);
  checks.range("transfer_steps", config.transfer_steps.value_or(0), 0, kMaxTokens);
  if (config.role == Role::kMixed) {
    return;
  }
  const auto refuse = [&](const char* name, bool set) {
    if (set) {
      checks.problem(name, "true", "off in a prefill or decode role: not modelled");
    }
  };
  if (!config.rules.disaggregation) {
    checks.problem("role", "prefill or decode", "mixed before 0.5.23: other roles not modelled");
  }
  refuse("sliding-window pool", config.swa_pool_tokens.has_value());
  refuse("enable_priority_scheduling", config.enable_priority_scheduling);
  refuse("enable_mixed_chunk", config.enable_mixed_chunk);
  refuse("prefix cache of a decode server",
         config.role == Role::kDecode && !config.disable_radix_cache);
}

}  // namespace

Tokens StatePoolSettings::grid(Tokens page) const {
  return Tokens{std::lcm(chunk(page).count(), page.count())};
}

Tokens StatePoolSettings::track_grid(Tokens page) const {
  return Tokens{std::lcm(grid(page).count(), track_interval.count())};
}

std::optional<SchedulePolicy> schedule_policy_of(const std::string& name) {
  static constexpr std::array<std::pair<const char*, SchedulePolicy>, 7> kPolicies{{
      {"fcfs", SchedulePolicy::kFcfs},
      {"lof", SchedulePolicy::kLof},
      {"routing-key", SchedulePolicy::kRoutingKey},
      {"lpm", SchedulePolicy::kLpm},
      {"dfs-weight", SchedulePolicy::kDfsWeight},
      {"hrrn", SchedulePolicy::kHrrn},
      {"shortest-prefill-first", SchedulePolicy::kShortestPrefill},
  }};
  return look_up(kPolicies, name);
}

std::optional<EvictionPolicy> eviction_policy_of(const std::string& name) {
  static constexpr std::array<std::pair<const char*, EvictionPolicy>, 8> kPolicies{{
      {"lru", EvictionPolicy::kLru},
      {"lfu", EvictionPolicy::kLfu},
      {"slru", EvictionPolicy::kSlru},
      {"priority", EvictionPolicy::kPriority},
      {"tlru", EvictionPolicy::kTlru},
      {"fifo", EvictionPolicy::kFifo},
      {"mru", EvictionPolicy::kMru},
      {"filo", EvictionPolicy::kFilo},
  }};
  return look_up(kPolicies, name);
}

std::optional<RetractionPolicy> retraction_policy_of(const std::string& name) {
  static constexpr std::array<std::pair<const char*, RetractionPolicy>, 2> kPolicies{
      {{"length", RetractionPolicy::kLength}, {"priority", RetractionPolicy::kPriority}}};
  return look_up(kPolicies, name);
}

std::optional<WritePolicy> write_policy_of(const std::string& name) {
  static constexpr std::array<std::pair<const char*, WritePolicy>, 3> kPolicies{
      {{"write_through", WritePolicy::kWriteThrough},
       {"write_through_selective", WritePolicy::kWriteThroughSelective},
       {"write_back", WritePolicy::kWriteBack}}};
  return look_up(kPolicies, name);
}

// 0.5.8 and 0.5.23 are recorded decision by decision, and trees over recurrent states of 0.5.22.
// What the other releases between them do is read from their source.
SchedulerRules rules_for(const Version& version) {
  const auto at_least = [&](int patch) { return version >= Version{{0, 5, patch}}; };
  SchedulerRules rules;
  rules.memory_caps_output = at_least(12);
  rules.chunk_abort_at_once = at_least(14);
  rules.charges_page = at_least(10);
  rules.needs_page = at_least(11);
  rules.fixed_need_page = at_least(21);
  rules.input_cap_while_chunking = !at_least(13);
  rules.verdict_before_match = at_least(23);
  rules.reserves_fixed_outputs = at_least(22);
  rules.no_token_needs_work = at_least(20);
  rules.chunk_end_aligned = at_least(12);
  rules.counts_rows = at_least(12);
  rules.counts_held_rows = at_least(23);
  rules.slots_limit_chunks = !at_least(11);
  rules.preemption_uses_prompt = at_least(15);
  rules.preempted_always_requeued = at_least(22);
  rules.refreshes_waiting = at_least(22);
  rules.lpm_by_cut_match = at_least(13);
  rules.filters_every_step = at_least(23);
  rules.mixed_needs_room = at_least(22);
  rules.pages_by_written = at_least(9);
  rules.skips_certain_finishes = at_least(22);
  rules.last_request_aborted = at_least(10);
  rules.resets_ratio_when_idle = at_least(11);
  rules.stop_before_length = at_least(18);
  rules.prefill_only_joins = at_least(10);
  rules.publishes_outputs = at_least(9);
  rules.cuts_outputs = at_least(20);
  rules.evicts_shortfall = at_least(17);
  rules.unified_tree = at_least(19);
  rules.sliding_window_pools = at_least(23);
  rules.state_trees = at_least(22);
  rules.host_tier = at_least(21);
  rules.disaggregation = at_least(23);
  return rules;
}

void check(const SchedulerConfig& config, const std::string& source, Problems& problems) {
  SettingChecks checks(source, problems);
  checks.range("pool_tokens", config.pool_tokens.count(), 1, kMaxSlots);
  checks.range("page_size", config.page_size.count(), 1, kMaxTokens);
  checks.range("context_length", config.context_length.count(), 1, kMaxTokens);
  checks.range("max_running_requests", config.max_running_requests, 1, kMaxTokens);
  checks.range("chunked_prefill_size", config.chunked_prefill_size.value_or(Tokens{1}).count(), 1,
               kMaxTokens);
  checks.range("max_prefill_tokens", config.max_prefill_tokens.count(), 1, kMaxTokens);
  checks.range("prefill_max_requests", config.prefill_max_requests.value_or(1), 1, kMaxTokens);
  checks.range("max_queued_requests", config.max_queued_requests.value_or(0), 0, kMaxTokens);
  checks.range("min_free_slots_delay", config.min_free_slots_delay.value_or(0), 0, kMaxTokens);
  checks.range("prefill_decode_interval", config.prefill_decode_interval, 0, kMaxTokens);
  checks.range("prefill_decode_interval_min_bs", config.prefill_decode_interval_min_bs, 0,
               kMaxTokens);
  checks.range("clip_max_new_tokens_estimation", config.clip_max_new_tokens_estimation.count(), 1,
               kMaxTokens);
  checks.range("new_token_ratio_decay_steps", config.new_token_ratio_decay_steps, 1, kMaxTokens);
  checks.range("retract_decode_steps", config.retract_decode_steps, 0, kMaxTokens);
  checks.range("tlru_threshold", config.tlru_threshold.count(), 0, kMaxTokens);
  checks.range("tlru_next_prompt_estimate", config.tlru_next_prompt_estimate.count(), 0,
               kMaxTokens);
  if (!(config.schedule_conservativeness >= 0 && config.schedule_conservativeness <= 1e6)) {
    checks.problem("schedule_conservativeness", fmt::format("{}", config.schedule_conservativeness),
                   "a factor from 0 on");
  }
  if (config.schedule_policy == SchedulePolicy::kShortestPrefill && config.disable_radix_cache) {
    checks.problem("schedule_policy", "shortest-prefill-first", "a policy for no prefix cache");
  }
  check_pages(config, checks);
  check_window(config, checks);
  check_states(config, checks);
  check_tier(config, checks);
  check_role(config, checks);
}

}  // namespace oomcast::sglang
