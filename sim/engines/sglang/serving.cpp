#include "sim/engines/sglang/serving.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "models/attention_kinds.hpp"
#include "sim/engines/environment.hpp"

namespace oomcast::sglang {
namespace {

constexpr const char* kSource = "launch line";

// The value of an SGLANG_* variable of the launch line.
template <typename Number>
std::optional<Number> variable(const Deployment& deployment, const char* name, Problems& problems) {
  return number_variable(deployment.launch, name, Number{0}, std::numeric_limits<Number>::max(),
                         problems);
}

void read_variables(const Deployment& deployment, SchedulerConfig& config, Problems& problems) {
  const auto integer = [&](const char* name, std::int64_t fallback) {
    return variable<std::int64_t>(deployment, name, problems).value_or(fallback);
  };
  config.clip_max_new_tokens_estimation = Tokens{integer(
      "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", config.clip_max_new_tokens_estimation.count())};
  config.new_token_ratio_decay_steps =
      integer("SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS", config.new_token_ratio_decay_steps);
  config.retract_decode_steps = integer("SGLANG_RETRACT_DECODE_STEPS", config.retract_decode_steps);
  config.swa_eviction_interval =
      Tokens{integer("SGLANG_SWA_EVICTION_INTERVAL", config.swa_eviction_interval.count())};
  config.init_new_token_ratio =
      variable<double>(deployment, "SGLANG_INIT_NEW_TOKEN_RATIO", problems)
          .value_or(config.init_new_token_ratio);
  config.min_new_token_ratio_factor =
      variable<double>(deployment, "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR", problems)
          .value_or(config.min_new_token_ratio_factor);
}

// A policy by its flag; what has no rule here is a problem that names the known ones.
template <typename Policy>
void read_policy(const Deployment& deployment, const char* flag, const std::string& known,
                 std::optional<Policy> (*policy_of)(const std::string&), Policy& out,
                 Problems& problems) {
  const auto name = deployment.launch.text(flag);
  if (!name) {
    return;
  }
  if (const auto policy = policy_of(*name)) {
    out = *policy;
  } else {
    problems.add({kSource, fmt::format("--{}", flag), *name, known + " for a replay",
                  "its order is not modelled"});
  }
}

void read_policies(const Deployment& deployment, SchedulerConfig& config, Problems& problems) {
  read_policy(deployment, "schedule-policy",
              "fcfs, lof, lpm, dfs-weight, hrrn, routing-key or shortest-prefill-first",
              &schedule_policy_of, config.schedule_policy, problems);
  read_policy(deployment, "radix-eviction-policy", "lru, lfu, slru, priority or tlru",
              &eviction_policy_of, config.radix_eviction_policy, problems);
  read_policy(deployment, "retraction-policy", "length or priority", &retraction_policy_of,
              config.retraction_policy, problems);
}

void check_host_replay(const Deployment& deployment, Problems& problems) {
  if (!has_host_tier(deployment)) {
    return;
  }
  const launch::Launch& line = deployment.launch;
  const auto refuse = [&](const char* flag, std::string value, const char* expected,
                          const char* reason) {
    problems.add({kSource, flag, std::move(value), expected, reason});
  };
  constexpr const char* kFlag = "--enable-hierarchical-cache";
  if (!rules_for(line.version).host_tier) {
    refuse(kFlag, "on with " + to_string(line.version), "0.5.21 or later for a replay",
           "the rules of earlier host tiers are not modelled");
  }
  if (deployment.role != Role::kMixed) {
    refuse(kFlag, "on for one role", "off for a replay of a pair",
           "a host tier beside transfers is not modelled yet");
  }
  if (deployment.window_pool) {
    refuse(kFlag, "on with a window pool", "off, or --disable-hybrid-swa-memory, for a replay",
           "host tiers of two pools are not modelled yet");
  }
  if (const auto storage = line.text("hicache-storage-backend")) {
    refuse("--hicache-storage-backend", *storage, "none for a replay",
           "tiers beyond the host are not modelled yet");
  }
  if (deployment.gpu.host_link_bandwidth <= 0) {
    refuse(kFlag, "on with " + deployment.gpu.name, "a card with host_link_gb_s in the catalog",
           deployment.gpu.unified_memory ? "card and host share their memory" : "");
  }
}

// Without a prefix tree a request has its states from its row, and rows are all that it needs.
void check_state_replay(const Deployment& deployment, Problems& problems) {
  if (!models::has_recurrent_state(*deployment.model) || !deployment.radix_cache) {
    return;
  }
  const launch::Launch& line = deployment.launch;
  const auto refuse = [&](const char* flag, std::string value, const char* expected,
                          const char* reason) {
    problems.add({kSource, flag, std::move(value), expected,
                  fmt::format("{}; --disable-radix-cache works", reason)});
  };
  const auto has = [&](models::AttentionKind kind) {
    return models::has_attention(*deployment.model, kind);
  };
  if (has(models::AttentionKind::kCompressed)) {
    refuse("model", deployment.model->name, "a model without compressed latents for a replay",
           "the pools of compressed latents are not modelled for a prefix tree yet");
    return;
  }
  if (!rules_for(line.version).state_trees) {
    refuse("engine version", to_string(line.version), "0.5.22 or later for a replay",
           "earlier prefix trees over recurrent states are not modelled");
  }
  if (deployment.role != Role::kMixed) {
    refuse("--disaggregation-mode", line.text("disaggregation-mode").value_or(""),
           "a server of both roles for a replay", "transfers of recurrent states are not modelled");
  }
  if (deployment.window_pool) {
    refuse("model", deployment.model->name, "recurrent layers or a window pool for a replay",
           "a prefix tree over both is not modelled");
  }
  if (has_host_tier(deployment)) {
    refuse("--enable-hierarchical-cache", "on", "off for a replay of recurrent layers",
           "host copies of recurrent states are not modelled");
  }
  if (line.text("mamba-scheduler-strategy").value_or("auto") == "extra_buffer_lazy") {
    refuse("--mamba-scheduler-strategy", "extra_buffer_lazy", "another strategy for a replay",
           "tracking slots that come and go are not modelled");
  }
  if (!deployment.tracks_states && deployment.page_size > Tokens{1}) {
    refuse("--page-size", fmt::format("{}", deployment.page_size.count()), "1 for a replay",
           "states without --mamba-scheduler-strategy extra_buffer are cached token by token");
  }
  // The chunk of Mamba kernels stands in a model's config, but not in our description of it.
  if (deployment.tracks_states &&
      (has(models::AttentionKind::kMamba1) || has(models::AttentionKind::kMamba2))) {
    refuse("model", deployment.model->name, "--mamba-scheduler-strategy no_buffer for a replay",
           "at which tokens Mamba kernels give states to track is not modelled");
  }
  if (line.variable("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK")) {
    refuse("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "set", "unset for a replay",
           "states that can be evicted while they are in use are not modelled");
  }
}

}  // namespace

SchedulerConfig scheduler_config(const Deployment& deployment, const CachePlan& plan,
                                 const std::optional<HostPool>& host, Problems& problems) {
  const launch::Launch& line = deployment.launch;
  SchedulerConfig config;
  config.pool_tokens = plan.tokens;
  config.page_size = deployment.page_size;
  config.context_length = deployment.max_model_len;
  config.max_running_requests = plan.max_running;
  if (deployment.chunk > 0) {
    config.chunked_prefill_size = Tokens{deployment.chunk};
  }
  config.max_prefill_tokens = deployment.max_prefill_tokens;
  config.allow_auto_truncate = line.on("allow-auto-truncate");
  config.schedule_conservativeness = line.number("schedule-conservativeness").value_or(1);
  config.role = deployment.role;
  config.extra_rows = preallocation_rows(deployment, plan.max_running);
  config.num_reserved_decode_tokens =
      Tokens{line.integer("num-reserved-decode-tokens")
                 .value_or(config.num_reserved_decode_tokens.count())};
  // A decode server has a prefix cache only where it is asked for.
  config.disable_radix_cache =
      !deployment.radix_cache ||
      (deployment.role == Role::kDecode && !line.on("disaggregation-decode-enable-radix-cache"));
  config.enable_mixed_chunk = line.on("enable-mixed-chunk");
  config.disable_overlap_schedule = !deployment.overlap;
  config.enable_priority_scheduling = line.on("enable-priority-scheduling");
  config.schedule_low_priority_values_first = line.on("schedule-low-priority-values-first");
  config.disable_priority_preemption = line.on("disable-priority-preemption");
  config.priority_scheduling_preemption_threshold =
      line.integer("priority-scheduling-preemption-threshold")
          .value_or(config.priority_scheduling_preemption_threshold);
  config.prefill_max_requests = line.integer("prefill-max-requests");
  config.max_queued_requests = line.integer("max-queued-requests");
  config.prefill_decode_interval = line.integer("prefill-decode-interval").value_or(0);
  if (plan.window_tokens > Tokens{0}) {
    config.swa_pool_tokens = plan.window_tokens;
    config.sliding_window = cache_sizes(deployment, 0).window;
  }
  if (plan.state_slots > 0 && deployment.role == Role::kMixed) {
    StatePoolSettings pool;
    pool.slots = plan.state_slots;
    pool.tracks = deployment.tracks_states && deployment.radix_cache;
    pool.overlap = deployment.overlap;
    pool.track_interval =
        Tokens{line.integer("mamba-track-interval").value_or(pool.track_interval.count())};
    config.state_pool = pool;
  }
  if (host) {
    config.host_tier = HostTierSettings{
        host->tokens, write_policy_of(line.text("hicache-write-policy").value_or("write_through"))
                          .value_or(WritePolicy::kWriteThrough)};
  }
  config.rules = rules_for(line.version);
  read_policies(deployment, config, problems);
  read_variables(deployment, config, problems);
  check(config, kSource, problems);
  return config;
}

void check_serving(const Deployment& deployment, Problems& problems) {
  const launch::Launch& line = deployment.launch;
  const auto refuse = [&](const char* flag, std::string value, const char* expected,
                          const char* reason) {
    problems.add({kSource, flag, std::move(value), expected, reason});
  };
  if (deployment.speculation) {
    refuse("--speculative-algorithm", deployment.speculation->algorithm,
           "no speculative decoding for a replay", "its scheduling is not modelled yet");
  }
  if (deployment.attention_dp > 1 && deployment.dp > 1) {
    refuse("--dp-size", std::to_string(deployment.dp), "1 for a replay with --attn-dp-size",
           "several servers of such ranks are not modelled yet");
  }
  if (deployment.pp > 1) {
    refuse("--pipeline-parallel-size", std::to_string(deployment.pp), "1 for a replay",
           "SGLang's micro-batches are not modelled yet");
  }
  check_state_replay(deployment, problems);
  if (deployment.window_pool && cache_sizes(deployment, 0).full_layers == 0) {
    refuse("model", deployment.model->name, "a model with some layers of full attention",
           "SGLang's pool for windows alone is not modelled yet");
  }
  if (deployment.window_pool && !rules_for(line.version).sliding_window_pools) {
    refuse("engine version", to_string(line.version), "0.5.23 or later for a replay",
           "earlier pools for sliding windows are not modelled; --disable-hybrid-swa-memory works");
  }
  check_host_replay(deployment, problems);
  static constexpr std::array<std::pair<const char*, const char*>, 3> kSwitches = {{
      {"enable-dynamic-chunking", "chunks sized by predicted time are not modelled yet"},
      {"enable-lmcache", "the cache outside of the engine is not modelled yet"},
      {"enable-prefill-delayer", "held-back prefills are not modelled yet"},
  }};
  for (const auto& [flag, reason] : kSwitches) {
    if (line.on(flag)) {
      problems.add({kSource, fmt::format("--{}", flag), "on", "off for a replay", reason});
    }
  }
  if (line.integer("num-continuous-decode-steps").value_or(1) > 1) {
    refuse("--num-continuous-decode-steps",
           std::to_string(*line.integer("num-continuous-decode-steps")), "1 for a replay",
           "several decodes between two looks at the queue are not modelled yet");
  }
  SchedulerConfig policies;
  read_policies(deployment, policies, problems);
}

void check_serves_alone(const Deployment& deployment, Problems& problems) {
  if (deployment.role != Role::kMixed) {
    problems.add({kSource, "--disaggregation-mode",
                  deployment.launch.text("disaggregation-mode").value_or(""),
                  "a server of both roles for a replay",
                  "one role alone waits for the other: replay --prefill LINE --decode LINE"});
  }
}

}  // namespace oomcast::sglang
