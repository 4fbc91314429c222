// Random small deployments and workloads of SGLang's scheduler.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "sim/core/random.hpp"
#include "sim/engines/sglang/scheduler.hpp"
#include "tests/property/cases.hpp"

namespace oomcast::sglang {

struct Arrival {
  std::int64_t step = 0;
  std::int64_t abort_step = -1;
  RequestSpec spec;
  std::vector<ContentSegment> prompt;
};

struct Case {
  SchedulerConfig config;
  std::vector<Arrival> arrivals;  // by step; ids are positions
  std::int64_t longest_copy = 0;  // steps that a copy to or from the host takes
};

class Generator : private RandomCase {
 public:
  explicit Generator(std::int64_t seed)
      : RandomCase(random_stream(static_cast<std::uint64_t>(seed), "property.sglang")) {}

  Case any() {
    Case made;
    settings(made.config);
    workload(made);
    host(made);
    states(made.config);
    return made;
  }

 private:
  void settings(SchedulerConfig& config);
  void window(SchedulerConfig& config);
  void role(SchedulerConfig& config);
  void host(Case& made);
  void states(SchedulerConfig& config);
  void workload(Case& made);
};

inline void Generator::settings(SchedulerConfig& config) {
  config.rules = rules_for(Version{{0, 5, chance(50) ? 23 : static_cast<int>(number(8, 23))}});
  const std::int64_t page = chance(50) ? 1 : std::int64_t{1} << number(1, 4);
  config.page_size = Tokens{page};
  config.pool_tokens = Tokens{page * number(std::max<std::int64_t>(40 / page, 3), 400 / page + 4)};
  config.context_length = Tokens{number(40, 400)};
  config.max_running_requests = number(1, 14);
  if (chance(75)) {
    config.chunked_prefill_size = Tokens{page * number(1, 6)};
  }
  config.max_prefill_tokens = Tokens{number(4, 200)};
  constexpr SchedulePolicy kPolicies[] = {
      SchedulePolicy::kFcfs,       SchedulePolicy::kFcfs,           SchedulePolicy::kLof,
      SchedulePolicy::kLpm,        SchedulePolicy::kDfsWeight,      SchedulePolicy::kHrrn,
      SchedulePolicy::kRoutingKey, SchedulePolicy::kShortestPrefill};
  config.schedule_policy = kPolicies[number(0, 7)];
  config.schedule_conservativeness = chance(50) ? 1.0 : static_cast<double>(number(0, 100)) / 100;
  config.disable_radix_cache =
      config.schedule_policy != SchedulePolicy::kShortestPrefill && chance(25);
  config.enable_mixed_chunk = chance(25);
  config.disable_overlap_schedule = chance(50);
  config.radix_eviction_policy = static_cast<EvictionPolicy>(number(0, 7));
  if (chance(50)) {
    config.radix_eviction_policy = EvictionPolicy::kLru;
  }
  config.tlru_threshold = Tokens{number(0, 60)};
  config.retraction_policy = chance(20) ? RetractionPolicy::kPriority : RetractionPolicy::kLength;
  config.enable_priority_scheduling = chance(25);
  config.schedule_low_priority_values_first = chance(50);
  config.disable_priority_preemption = chance(30);
  config.priority_scheduling_preemption_threshold = number(0, 4);
  if (chance(10)) {
    config.prefill_max_requests = number(1, 4);
  }
  if (chance(10)) {
    config.max_queued_requests = number(1, 8);
  }
  if (chance(10)) {
    config.min_free_slots_delay = number(1, 5);
  }
  if (chance(10)) {
    config.prefill_decode_interval = number(1, 4);
    config.prefill_decode_interval_min_bs = number(0, 4);
  }
  config.clip_max_new_tokens_estimation = Tokens{chance(30) ? number(1, 30) : 4096};
  if (config.rules.sliding_window_pools && chance(25)) {
    window(config);
  } else if (config.rules.disaggregation && chance(20)) {
    role(config);
  }
}

inline void Generator::window(SchedulerConfig& config) {
  const std::int64_t page = config.page_size.count();
  config.enable_mixed_chunk = false;
  config.sliding_window = Tokens{number(1, 60)};
  config.swa_eviction_interval = Tokens{number(1, 40)};
  const std::int64_t least = align_up(config.sliding_window.count() + page + 1, page);
  config.swa_pool_tokens = Tokens{least + page * number(2, 200 / page + 2)};
}

inline void Generator::role(SchedulerConfig& config) {
  config.role = chance(50) ? Role::kPrefill : Role::kDecode;
  config.enable_priority_scheduling = false;
  config.enable_mixed_chunk = false;
  config.transfer_steps = number(0, 5);
  config.extra_rows = number(0, 8);
  config.num_reserved_decode_tokens = Tokens{number(0, 40)};
  if (config.role == Role::kDecode) {
    config.disable_radix_cache = true;
    config.schedule_policy = SchedulePolicy::kFcfs;
  } else {
    config.extra_rows = 0;
  }
}

// Last, so that other cases stay what they were.
inline void Generator::host(Case& made) {
  SchedulerConfig& config = made.config;
  if (!config.rules.host_tier || config.disable_radix_cache || config.swa_pool_tokens ||
      config.role != Role::kMixed || chance(30)) {
    return;
  }
  const std::int64_t pool = config.pool_tokens.count() / config.page_size.count();
  config.host_tier = HostTierSettings{config.page_size * number(1, chance(70) ? 3 * pool : pool),
                                      static_cast<WritePolicy>(number(0, 2))};
  made.longest_copy = number(0, 8);
}

// Recurrent layers, with little more than the slots that requests need.
inline void Generator::states(SchedulerConfig& config) {
  const bool sharing = !config.disable_radix_cache;
  if (config.swa_pool_tokens || config.host_tier || config.role != Role::kMixed ||
      (sharing && !config.rules.state_trees) || chance(50)) {
    return;
  }
  StatePoolSettings pool;
  pool.tracks = sharing && (config.page_size > Tokens{1} || chance(50));
  pool.overlap = !config.disable_overlap_schedule;
  pool.kernel_chunk = Tokens{std::int64_t{1} << number(0, 5)};
  pool.track_interval = Tokens{number(1, 40)};
  pool.slots = pool.slots_per_request(sharing) * config.max_running_requests +
               number(0, chance(50) ? 3 : 40);
  config.state_pool = pool;
}

inline void Generator::workload(Case& made) {
  const std::int64_t longest = made.config.context_length.count();
  const std::int64_t requests = number(1, 24);
  const std::int64_t spread = number(1, 120);
  const bool popular = chance(60);
  for (std::int64_t i = 0; i < requests; ++i) {
    Arrival arrival;
    arrival.step = number(0, spread);
    arrival.abort_step = chance(8) ? arrival.step + number(0, 60) : -1;
    RequestSpec& spec = arrival.spec;
    if (chance(70)) {
      spec.priority = number(0, 8);
    }
    spec.routing_key = static_cast<std::uint64_t>(number(0, 3));
    spec.prompt_len = Tokens{chance(95) ? number(1, std::min<std::int64_t>(longest, 120))
                                        : number(0, longest + 4)};
    spec.max_output = Tokens{number(chance(5) ? 0 : 1, chance(30) ? 150 : 30)};
    if (chance(40)) {
      spec.stop_after = Tokens{number(1, spec.max_output.count() + 5)};
    }
    spec.ignore_eos = chance(20);
    if (popular && chance(70)) {
      arrival.prompt.push_back({static_cast<std::uint64_t>(number(1, 3)), Tokens{number(1, 80)}});
      if (chance(50)) {
        arrival.prompt.push_back({static_cast<std::uint64_t>(number(1, 5)), Tokens{number(1, 60)}});
      }
      spec.output_continues_prompt = chance(20);
    }
    if (chance(40)) {
      spec.output_content = static_cast<std::uint64_t>(number(1, 5));
    }
    if (chance(50)) {
      spec.end_token = ContentToken{0, 2};
    }
    made.arrivals.push_back(std::move(arrival));
  }
  std::stable_sort(
      made.arrivals.begin(), made.arrivals.end(),
      [](const Arrival& left, const Arrival& right) { return left.step < right.step; });
  for (std::size_t i = 0; i < made.arrivals.size(); ++i) {
    made.arrivals[i].spec.id = i;
    made.arrivals[i].spec.tie_order = i;
    made.arrivals[i].spec.prompt = made.arrivals[i].prompt;
  }
}

}  // namespace oomcast::sglang
