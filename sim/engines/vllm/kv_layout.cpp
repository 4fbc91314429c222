// KV cache groups, pages and what one request can need (facts: vLLM 4.1, 4.3, 2.5).
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/host_pool.hpp"
#include "sim/engines/vllm/kv_packed.hpp"
#include "sim/engines/vllm/kv_transfer.hpp"
#include "sim/engines/vllm/sparse_mla.hpp"

namespace oomcast::vllm {
namespace {

using models::AttentionKind;

// Layers with the same block table needs.
struct Bucket {
  KvGroup group;
  Bytes page;
  std::vector<int> stages;  // of each member, in layer order
  std::int64_t drafts = 0;  // of them, at the end: the drafter's
};

// Pages of different sizes become equal: by longer blocks where they divide the largest, else by
// padding. States are padded to their attention's page before.
void unify_pages(std::vector<Bucket>& buckets, bool pads, const std::string& model) {
  Bytes largest;
  for (const Bucket& bucket : buckets) {
    largest = std::max(largest, bucket.page);
  }
  for (Bucket& bucket : buckets) {
    if (bucket.page == largest) {
      continue;
    }
    if (bucket.group.type != KvGroup::Type::kMamba && largest.count() % bucket.page.count() == 0) {
      bucket.group.block_size = bucket.group.block_size * (largest / bucket.page);
    } else if (!pads) {
      throw ConfigError(
          Problem{model, "KV cache groups",
                  fmt::format("pages of {} and {} bytes", bucket.page.count(), largest.count()),
                  "page sizes that divide each other", "this version does not pad pages"});
    }
    bucket.page = largest;
  }
}

bool has_state_groups(const std::vector<Bucket>& buckets) {
  return std::any_of(buckets.begin(), buckets.end(), [](const Bucket& bucket) {
    return bucket.group.type == KvGroup::Type::kMamba;
  });
}

// `checkpoints`: prefills leave a state more.
std::int64_t blocks_needed(const KvGroup& group, Tokens length, Tokens in_flight,
                           bool checkpoints) {
  switch (group.type) {
    case KvGroup::Type::kSlidingWindow:
      return div_ceil(std::min(group.window - Tokens{1} + in_flight, length), group.block_size) + 1;
    case KvGroup::Type::kChunkedLocal:
      return div_ceil(std::min(group.window + in_flight, length), group.block_size);
    case KvGroup::Type::kMamba:
      return (group.mamba_mode == KvGroup::MambaMode::kAlign ? (checkpoints ? 3 : 2) : 1) +
             group.speculative_blocks;
    default:
      return div_ceil(length, group.block_size);
  }
}

}  // namespace

std::vector<models::KvLayerSpec> Deployment::kv_layers(int stage) const {
  std::vector<models::KvLayerSpec> all = models::kv_layers(*model, shard(stage));
  if (speculation && stage == pp - 1) {
    std::vector<models::KvLayerSpec> drafts;
    if (speculation->own_layers) {
      drafts = models::draft_kv_layers(*model, shard(stage));
    } else if (speculation->draft) {
      drafts = models::kv_layers(*speculation->draft, {.tp = tp});
      for (models::KvLayerSpec& layer : drafts) {
        layer.layer += model->layer_count();
      }
    }
    all.insert(all.end(), drafts.begin(), drafts.end());
  }
  std::vector<models::KvLayerSpec> out;
  for (models::KvLayerSpec layer : all) {
    if (layer.kind == AttentionKind::kMla && layer.layer < model->layer_count() &&
        expands_latents()) {
      const models::AttentionSpec& attention = model->layer(layer.layer).attention;
      layer.kind = AttentionKind::kFull;
      layer.kv_heads = std::max<std::int64_t>(1, attention.heads / tp);
      layer.head_dim = attention.mla.nope_dim + attention.mla.rope_dim;
      layer.v_head_dim = layer.head_dim;  // values are padded to the keys' width
    }
    if (layer.kind == AttentionKind::kMla && layer.indexer_bytes > 0) {
      // The indexer's keys are a cache of their own.
      models::KvLayerSpec keys = layer;
      keys.head_dim = 0;
      out.push_back(keys);
      layer.indexer_bytes = 0;
    }
    out.push_back(layer);
  }
  return out;
}

KvGroup Deployment::group_of(const models::KvLayerSpec& layer) const {
  const bool hybrid = !launch.on("disable-hybrid-kv-cache-manager");
  KvGroup group;
  group.block_size = block_size;
  if (has_state(layer.kind)) {
    group.block_size = state_block;
    if (state_cache != StateCache::kEvery) {
      group.type = KvGroup::Type::kMamba;
      group.mamba_mode = state_cache == StateCache::kAligned ? KvGroup::MambaMode::kAlign
                                                             : KvGroup::MambaMode::kNone;
      group.speculative_blocks = speculation ? speculation->tokens : 0;
    }
  } else if (hybrid && layer.kind == AttentionKind::kSlidingWindow) {
    group.type = KvGroup::Type::kSlidingWindow;
    group.window = layer.window;
  } else if (hybrid && layer.kind == AttentionKind::kChunked) {
    group.type = KvGroup::Type::kChunkedLocal;
    group.window = layer.window;
  }
  return group;
}

Bytes Deployment::kv_token_bytes(const models::KvLayerSpec& layer) const {
  const std::int64_t values = layer.kv_heads * (layer.head_dim + layer.v_head_dim);
  constexpr std::int64_t kScales = 8;  // two fp32
  if (layer.kind == AttentionKind::kMla && layer.head_dim > 0 && packs_sparse_latents(*this)) {
    constexpr std::int64_t kSparseLatent = 656;  // fp8_ds_mla: 512 fp8, 4 fp32 scales, 64 bf16
    return Bytes{kSparseLatent};
  }
  switch (kv_format) {
    case KvFormat::kPlain:
      break;
    case KvFormat::kTokenScale8:
      return Bytes{values + layer.kv_heads * kScales};
    case KvFormat::kTokenScale4:
      return Bytes{values / 2 + layer.kv_heads * kScales};
    case KvFormat::kNvfp4:
      return Bytes{values / 2 + values / 16};
  }
  return models::kv_bytes_per_token(layer, kv_dtype);
}

Bytes Deployment::state_bytes(const models::KvLayerSpec& layer) const {
  models::KvLayerSpec stored = layer;
  if (recurrent_dtype) {
    stored.recurrent_dtype = recurrent_dtype;
  }
  return models::state_bytes(stored, state_dtype);
}

// Grouping is the whole model's; each stage then has its own members of every group.
KvLayout Deployment::kv_layout(int stage) const {
  if (packs_kv(*model)) {
    return packed_kv_layout(*this, stage);
  }
  std::vector<Bucket> buckets;
  for (int owner = 0; owner < pp; ++owner) {
    for (const models::KvLayerSpec& layer : kv_layers(owner)) {
      const KvGroup group = group_of(layer);
      const Bytes page =
          has_state(layer.kind) ? state_bytes(layer) : kv_token_bytes(layer) * block_size.count();
      auto same = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
        return bucket.group == group && bucket.page == page;
      });
      if (same == buckets.end()) {
        same = buckets.insert(buckets.end(), {group, page, {}});
      }
      same->stages.push_back(owner);
      same->drafts += layer.layer >= model->layer_count() ? 1 : 0;
    }
  }
  OOMCAST_CHECK(!buckets.empty(), "{} has no KV layers", model->name);
  const auto members_here = [stage](const std::vector<int>& stages) {
    return std::count(stages.begin(), stages.end(), stage);
  };
  KvLayout layout;
  const bool one_type = std::all_of(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
    return bucket.group == buckets.front().group;
  });
  if (one_type) {
    // One block table; layers whose pages differ lie side by side in a block.
    std::int64_t layers = 0;
    Bytes block;
    for (const Bucket& bucket : buckets) {
      layers += members_here(bucket.stages);
      block += bucket.page * members_here(bucket.stages);
    }
    layout.groups = {{buckets.front().group, layers, {}}};
    layout.groups.front().group.eagle = drops_last_hit();
    layout.group_size = buckets.size() == 1 ? layers : 1;
    layout.page = buckets.size() == 1 ? buckets.front().page : block;
    return layout;
  }
  unify_pages(buckets, rules.pads_pages || has_state_groups(buckets), model->name);
  const auto layers_of = [](const Bucket& bucket) {
    return static_cast<std::int64_t>(bucket.stages.size());
  };
  const auto [fewest, most] = std::minmax_element(
      buckets.begin(), buckets.end(),
      [&](const Bucket& left, const Bucket& right) { return layers_of(left) < layers_of(right); });
  const bool nearly_equal = static_cast<double>(layers_of(*most)) <
                            rules.group_size_ratio * static_cast<double>(layers_of(*fewest));
  const std::int64_t group_size = nearly_equal ? layers_of(*most) : layers_of(*fewest);
  layout.page = buckets.front().page;
  for (const Bucket& bucket : buckets) {
    const std::int64_t groups = div_ceil(layers_of(bucket), group_size);
    for (std::int64_t i = 0; i < groups; ++i) {
      // Layer j of a bucket goes to its group j mod groups.
      std::int64_t here = 0;
      for (auto j = static_cast<std::size_t>(i); j < bucket.stages.size();
           j += static_cast<std::size_t>(groups)) {
        here += bucket.stages[j] == stage ? 1 : 0;
      }
      layout.groups.push_back({bucket.group, here, {}});
      // The engine marks the group of the last layer.
      const auto last = static_cast<std::int64_t>(bucket.stages.size()) - 1;
      layout.groups.back().group.eagle =
          drops_last_hit() && bucket.drafts > 0 && last % groups == i;
      // One page tensor for each member of the largest group, shared by the others.
      layout.group_size = std::max(layout.group_size, here);
    }
  }
  // With one stage the padding of short groups counts as members.
  layout.group_size = pp == 1 ? group_size : layout.group_size;
  return layout;
}

Tokens Deployment::own_part(Tokens length) const { return Tokens{div_ceil(length.count(), dcp)}; }

bool Deployment::drops_last_hit() const {
  return speculation && speculation->method == SpecDecode::Method::kEagle;
}

Tokens Deployment::tokens_in_flight() const {
  const std::int64_t batches =
      rules.window_in_flight_batches ? pipeline_depth(pipeline_settings()) : 1;
  return max_num_batched_tokens * batches;
}

Bytes Deployment::kv_needed(const KvLayout& layout, Tokens length) const {
  const Tokens in_flight = tokens_in_flight();
  Bytes needed;
  for (const KvGroupLayout& member : layout.groups) {
    const std::int64_t blocks =
        blocks_needed(member.group, own_part(length), in_flight, checkpoints_prefills());
    if (layout.packed) {
      needed += layout.packed->tuple * detail::checked_mul(blocks, layout.packed->tuples);
      continue;
    }
    const bool by_layers = layout.groups.size() == 1 || !rules.needed_from_groups;
    const std::int64_t tensors =
        by_layers && layout.group_size != 1 ? member.layers : layout.group_size;
    needed += layout.page * detail::checked_mul(blocks, tensors);
  }
  return needed;
}

std::int64_t Deployment::blocks_per_sequence(const KvLayout& layout) const {
  Bytes needed;
  for (const KvGroupLayout& member : layout.groups) {
    const Bytes page = layout.packed ? member.page : layout.block_bytes();
    needed += page * blocks_needed(member.group, own_part(max_model_len), tokens_in_flight(),
                                   checkpoints_prefills());
  }
  return div_ceil(needed, layout.packed ? layout.groups.front().page : layout.block_bytes());
}

SchedulerConfig Deployment::pipeline_settings() const {
  SchedulerConfig config;
  config.async_scheduling = async_scheduling;
  config.pipeline_parallel_size = pp;
  config.rules = rules_for(launch.version);
  // The version's default runner is not always the one that runs.
  config.rules.model_runner_v2 = runner_v2;
  return config;
}

SchedulerConfig Deployment::scheduler_config(Blocks blocks) const {
  SchedulerConfig config = pipeline_settings();
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.max_model_len = max_model_len;
  config.num_gpu_blocks = blocks;
  config.groups.clear();
  for (const KvGroupLayout& member : kv_layout(0).groups) {
    config.groups.push_back(member.group);
    config.groups.back().block_size = member.group.block_size * dcp;  // tokens of all its ranks
  }
  if (speculation) {
    config.spec = scheduler_speculation(*speculation, acceptance());
  }
  config.enable_prefix_caching = prefix_caching;
  config.enable_chunked_prefill = chunked_prefill;
  config.policy = policy;
  config.scheduler_reserve_full_isl =
      launch.boolean("scheduler-reserve-full-isl").value_or(config.rules.full_sequence_check);
  config.long_prefill_token_threshold =
      Tokens{launch.integer("long-prefill-token-threshold").value_or(0)};
  config.watermark = launch.number("watermark").value_or(0.0);
  config.prefill_schedule_interval = launch.integer("prefill-schedule-interval").value_or(1);
  if (const auto limit = launch.integer("max-num-scheduled-tokens")) {
    config.max_num_scheduled_tokens = Tokens{*limit};
  }
  config.max_num_active_seqs = launch.integer("max-num-active-seqs");
  if (const auto transfer = kv_transfer(launch)) {
    config.connector = transfer->connector;
    if (const auto pool = host_pool(*this)) {
      pool->settle(*config.connector);
    }
  }
  return config;
}

}  // namespace oomcast::vllm
