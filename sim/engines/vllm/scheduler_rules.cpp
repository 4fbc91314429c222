#include <algorithm>
#include <numeric>

#include "sim/core/setting_checks.hpp"
#include "sim/engines/vllm/scheduler_config.hpp"

namespace oomcast::vllm {
namespace {

constexpr Version since(int minor) { return Version{{0, minor, 0}}; }

constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 26;  // memory of the pool: about 4 GiB
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxSpeculative = 1024;
constexpr std::int64_t kMaxGroups = 64;

}  // namespace

// Read in the engine's releases 0.14, 0.19, 0.22, 0.24, 0.26, 0.29, 0.31 and 0.33: a row's version
// is the first of them that has the change (or the one the release notes name).
SchedulerRules rules_for(const Version& version) {
  const auto at_least = [&](int minor) { return version >= since(minor); };
  SchedulerRules rules;
  rules.unhashed_freed_first = at_least(24);
  rules.uncached_pool_freed_first = at_least(24) && !(at_least(27) && !at_least(28));
  rules.full_sequence_check = at_least(19);
  rules.admission_cap = at_least(20);
  rules.admission_lookahead = at_least(24);
  rules.window_freed_by_processed = at_least(26);
  rules.threshold_spares_lone_request = at_least(31);
  rules.victim_index_by_position = at_least(29);
  rules.self_victim_continues = at_least(33);
  rules.preemption_resets_placeholders = at_least(29);
  rules.stale_output_delays_resume = at_least(29);
  rules.trim_rolls_back_computed = at_least(33);
  rules.output_caches_to_processed = at_least(33);
  rules.lookahead_hashes = at_least(33);
  rules.pads_spec_decode = at_least(25);
  rules.draft_slots_per_request = at_least(29);
  rules.watermark = at_least(24);
  rules.prefill_interval = at_least(33);
  rules.active_seqs_limit = at_least(31);
  rules.transfers_leave_reserve = at_least(23);  // vllm-project/vllm#44560, June 2026
  rules.transfers_queue_first = at_least(18);
  rules.sparse_hashing = at_least(24);
  rules.aligned_hashing = at_least(29);
  rules.eagle_verified_once = at_least(22);
  rules.eagle_aligned_after_drop = at_least(22);
  rules.mamba_fine_hits = at_least(26);
  rules.mamba_speculative_margin = !at_least(26);
  rules.model_runner_v2 = at_least(29);
  return rules;
}

std::int64_t pipeline_depth(const SchedulerConfig& config) {
  const std::int64_t stages = config.pipeline_parallel_size;
  if (!config.async_scheduling) {
    return stages;
  }
  return config.rules.model_runner_v2 || stages <= 1 ? stages + 1 : stages;
}

namespace {

void check_group(const SchedulerConfig& config, const KvGroup& group, SettingChecks& checks) {
  checks.range("block_size", group.block_size.count(), 1, kMaxTokens);
  if (group.type == KvGroup::Type::kSlidingWindow || group.type == KvGroup::Type::kChunkedLocal) {
    checks.range("sliding_window", group.window.count(), 1, kMaxTokens);
  }
  checks.range("num_speculative_blocks", group.speculative_blocks, 0, kMaxSpeculative);
  if (config.enable_prefix_caching && group.type == KvGroup::Type::kMamba &&
      group.mamba_mode != KvGroup::MambaMode::kAlign) {
    checks.problem("mamba_cache_mode", "none", "align, when prefix caching is on");
  }
}

// Hits that end where no block of a group does cannot be served.
void check_block_sizes(const SchedulerConfig& config, SettingChecks& checks) {
  if (config.groups.size() < 2 || !config.enable_prefix_caching) {
    return;
  }
  std::int64_t multiple = 1;
  for (const KvGroup& group : config.groups) {
    const std::int64_t block = group.block_size.count();
    if (multiple > kMaxTokens / block) {
      checks.problem("block_size", fmt::format("{}", block), "sizes with a common multiple");
      return;
    }
    multiple = std::lcm(multiple, block);
  }
  for (const KvGroup& group : config.groups) {
    const std::int64_t block = group.block_size.count();
    if (config.prefix_match_unit &&
        (config.prefix_match_unit->count() < 1 || block % config.prefix_match_unit->count() != 0)) {
      checks.problem("prefix_match_unit", fmt::format("{}", config.prefix_match_unit->count()),
                     fmt::format("a divisor of the block size {}", block));
    }
    if (group.type == KvGroup::Type::kChunkedLocal &&
        (block != multiple || config.spec.method == SpecDecode::Method::kEagle)) {
      checks.problem("block_size", fmt::format("{}", block),
                     "one size for all groups and no eagle with chunked local attention");
    }
  }
  if (config.prefix_cache_retention_interval) {
    const std::int64_t interval = config.prefix_cache_retention_interval->count();
    if (interval < 0 || interval % multiple != 0) {
      checks.problem("prefix_cache_retention_interval", fmt::format("{}", interval),
                     fmt::format("0 or a multiple of {}", multiple));
    }
  }
}

void check_connector(const SchedulerConfig& config, SettingChecks& checks) {
  const ConnectorConfig& connector = *config.connector;
  const bool offloads = connector.kind == ConnectorConfig::Kind::kOffloading;
  if (offloads) {
    checks.range("host chunks", connector.host_chunks, 1, kMaxBlocks);
    checks.range("blocks_per_chunk", connector.blocks_per_chunk, 1, 1024);
    checks.range("store_threshold", connector.store_threshold, 0, kMaxTokens);
    checks.range("sync_load_budget_bytes", connector.sync_load_budget.count(), 0, kMaxTokens);
    checks.range("KV bytes of a token", connector.bytes_per_token.count(), 0, kMaxBlocks);
  } else {
    checks.range("kv_recompute_threshold", connector.recompute_threshold.count(), 0, kMaxTokens);
  }
  for (const KvGroup& group : config.groups) {
    if (group.type != KvGroup::Type::kMamba) {
      continue;
    }
    if (offloads) {
      checks.problem("kv_connector", "OffloadingConnector", "NixlConnector, with Mamba layers");
    } else if (group.mamba_mode == KvGroup::MambaMode::kAlign) {
      checks.problem("mamba_cache_mode", "align", "none, with a KV connector");
    }
  }
}

}  // namespace

void check(const SchedulerConfig& config, const std::string& source, Problems& problems) {
  SettingChecks checks(source, problems);
  checks.range("max_num_seqs", config.max_num_seqs, 1, kMaxTokens);
  checks.range("max_num_active_seqs", config.max_num_active_seqs.value_or(1), 1,
               std::max<std::int64_t>(config.max_num_seqs, 1));
  checks.range("max_num_batched_tokens", config.max_num_batched_tokens.count(), 1, kMaxTokens);
  checks.range("max_num_scheduled_tokens",
               config.max_num_scheduled_tokens.value_or(Tokens{1}).count(), 1,
               std::max<std::int64_t>(config.max_num_batched_tokens.count(), 1));
  checks.range("max_model_len", config.max_model_len.count(), 1, kMaxTokens);
  checks.range("num_gpu_blocks", config.num_gpu_blocks.count(), 1, kMaxBlocks);
  checks.range("long_prefill_token_threshold", config.long_prefill_token_threshold.count(), 0,
               kMaxTokens);
  checks.range("pipeline_parallel_size", config.pipeline_parallel_size, 1, 1024);
  checks.range("prefill_schedule_interval", config.prefill_schedule_interval, 1, kMaxTokens);
  if (!(config.watermark >= 0 && config.watermark < 1)) {
    checks.problem("watermark", fmt::format("{}", config.watermark), "a share, 0 to below 1");
  }
  if (config.spec.method != SpecDecode::Method::kNone) {
    checks.range("num_speculative_tokens", config.spec.num_speculative_tokens, 1, kMaxSpeculative);
  }
  if (config.spec.method == SpecDecode::Method::kDraftModel &&
      !config.rules.draft_slots_per_request && !config.max_num_scheduled_tokens) {
    checks.range("max_num_seqs", config.max_num_seqs, 1, config.max_num_batched_tokens.count() - 1);
  }
  checks.range("kv cache groups", static_cast<std::int64_t>(config.groups.size()), 1, kMaxGroups);
  const bool sizes_known =
      std::all_of(config.groups.begin(), config.groups.end(),
                  [](const KvGroup& group) { return group.block_size.count() >= 1; });
  for (const KvGroup& group : config.groups) {
    check_group(config, group, checks);
  }
  if (sizes_known) {
    check_block_sizes(config, checks);
  }
  if (config.connector) {
    check_connector(config, checks);
  }
}

}  // namespace oomcast::vllm
