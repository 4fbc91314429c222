#include "sim/engines/sglang/cache_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/attention_kinds.hpp"
#include "sim/core/units_text.hpp"
#include "sim/engines/sglang/compressed_pools.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;
using models::KvLayerSpec;

constexpr std::int64_t kGibBytes = std::int64_t{1} << 30;

double gib(Bytes bytes) { return static_cast<double>(bytes.count()) / kGibBytes; }

Tokens floored(double tokens, Tokens page) {
  return Tokens{static_cast<std::int64_t>(std::max(tokens, 0.0)) / page.count() * page.count()};
}

std::string quoted_fraction(const Deployment& deployment) {
  return fmt::format("{}mem_fraction_static={}",
                     deployment.rules.quoted_self ? "self.server_args." : "",
                     deployment.mem_fraction);
}

// Where no prefix is kept, requests at a time bound what the window pool can ever hold.
std::optional<Tokens> window_cap(const Deployment& deployment, const CacheSizes& sizes) {
  if (sizes.window_cap || !deployment.rules.window_pool_capped || deployment.radix_cache ||
      !deployment.launch.given("max-running-requests") || deployment.chunk <= 0) {
    return sizes.window_cap;
  }
  return window_request_cap(deployment, sizes.window);
}

// Bytes that one page of the pool needs beyond what there is.
Bytes missing_for_a_page(const Deployment& deployment, const CacheSizes& sizes, Bytes kv) {
  const auto page = static_cast<double>(deployment.page_size.count());
  const auto cap = sizes.window_layers > 0 ? window_cap(deployment, sizes) : std::nullopt;
  const double window = cap ? static_cast<double>(cap->count()) : page;
  const double least = sizes.full_token * page + sizes.window_token * window;
  return Bytes{std::llround(std::ceil(least))} + sizes.fixed - kv;
}

CacheRefusal not_enough(const Deployment& deployment, const CacheSizes& sizes, Bytes kv) {
  return {OutcomeKind::kKvTooSmall, missing_for_a_page(deployment, sizes, kv),
          fmt::format("Not enough memory. Please try to increase --mem-fraction-static. Current "
                      "value: {}",
                      quoted_fraction(deployment))};
}

CacheRefusal weights_leave_nothing(const Deployment& deployment, const CacheSizes& sizes,
                                   const FreeMemory& free, double rest) {
  const double needed = std::ceil((1.0 - gib(free.after) / gib(free.before)) * 1000) / 1000;
  const Bytes kv{static_cast<std::int64_t>(rest * kGibBytes)};
  return {OutcomeKind::kKvTooSmall, missing_for_a_page(deployment, sizes, kv),
          fmt::format("Loaded weights leave no GPU memory for the KV cache under "
                      "--mem-fraction-static={}. Raise --mem-fraction-static above {:.3f}.",
                      deployment.mem_fraction, needed)};
}

struct Split {
  Tokens full;
  Tokens window;
};

Split split_by_bytes(const Deployment& deployment, const CacheSizes& sizes, double kv) {
  const double ratio = deployment.window_ratio;
  Split out;
  if (sizes.full_layers == 0) {
    out.full = floored(std::floor(kv / sizes.window_token), deployment.page_size);
    out.window = out.full;
    return out;
  }
  const double left = std::max(kv - static_cast<double>(sizes.fixed.count()), 0.0);
  if (const auto cap = window_cap(deployment, sizes)) {
    out.window = *cap;
    const double windows = static_cast<double>(cap->count()) * sizes.window_token;
    out.full = floored(std::floor((left - windows) / sizes.full_token), deployment.page_size);
    return out;
  }
  const double cell = sizes.full_token + ratio * sizes.window_token;
  out.full = floored(std::floor(left / cell), deployment.page_size);
  out.window = floored(static_cast<double>(out.full.count()) * ratio, deployment.page_size);
  return out;
}

Split split_by_layers(const Deployment& deployment, const CacheSizes& sizes, double kv) {
  const double ratio = deployment.window_ratio;
  const double tokens = std::floor(kv / sizes.any_token);
  const auto full = static_cast<double>(sizes.full_layers);
  const auto windowed = static_cast<double>(sizes.window_layers);
  const double each = tokens * (full + windowed) / (ratio * windowed + full);
  return {floored(each, deployment.page_size),
          floored(std::floor(each) * ratio, deployment.page_size)};
}

Split split(const Deployment& deployment, const CacheSizes& sizes, double kv) {
  if (sizes.window_layers > 0) {
    return deployment.rules.window_split_by_bytes || has_compressed(*deployment.model)
               ? split_by_bytes(deployment, sizes, kv)
               : split_by_layers(deployment, sizes, kv);
  }
  const double cell = std::max(sizes.full_token, 1.0);  // without attention any number fits
  return {floored(std::floor(kv / cell), deployment.page_size), Tokens{0}};
}

// Tokens of a draft whose states a request keeps beside its own; 0: no draft.
std::int64_t drafts_at_once(const Deployment& deployment) {
  return deployment.speculation ? deployment.speculation->draft_tokens : 0;
}

// Slots of recurrent state for `rest` GiB.
std::int64_t slots_for(const Deployment& deployment, const CacheSizes& sizes, double rest) {
  if (deployment.state_slots) {
    return *deployment.state_slots / deployment.attention_dp;
  }
  if (!deployment.radix_cache && deployment.launch.given("max-running-requests")) {
    return *deployment.max_running / deployment.attention_dp;
  }
  const double ratio = deployment.state_ratio;
  const double budget = rest * ratio / (1 + ratio) * kGibBytes;
  const auto slot = static_cast<double>(sizes.state.count());
  const auto drafts = static_cast<double>(drafts_at_once(deployment));
  double padding = deployment.rules.state_padding_slot ? slot : 0;
  double each = slot;
  if (drafts > 0 && deployment.rules.draft_states == DraftStates::kPerSlot) {
    each *= 1 + drafts;
  } else if (drafts > 0 && deployment.rules.draft_states == DraftStates::kShared) {
    padding *= 1 + drafts;
    each *= 1 + drafts / static_cast<double>(deployment.slots_per_request);
  }
  return static_cast<std::int64_t>(std::floor((budget - padding) / each));
}

// States of drafts that the budget holds back beside the slots.
Bytes draft_states(const Deployment& deployment, const CacheSizes& sizes, std::int64_t slots) {
  const std::int64_t drafts = drafts_at_once(deployment);
  const std::int64_t asked =
      std::max<std::int64_t>(1, deployment.max_running.value_or(1) / deployment.attention_dp);
  switch (deployment.rules.draft_states) {
    case DraftStates::kPerSlot:
      return sizes.state * drafts * slots;
    case DraftStates::kPerRequest:
      return sizes.state * drafts * asked;
    case DraftStates::kShared:
      break;
  }
  const std::int64_t requests = std::min(asked, slots / deployment.slots_per_request) +
                                (deployment.rules.state_padding_slot ? 1 : 0);
  return sizes.state * drafts * requests;
}

std::int64_t requests(const Deployment& deployment, Tokens tokens, std::int64_t* rows) {
  constexpr std::int64_t kLeast = 2048;
  constexpr std::int64_t kMost = 4096;
  constexpr double kPerContext = 512;
  const std::int64_t half = tokens.count() / 2;
  const std::int64_t usual =
      std::clamp(static_cast<std::int64_t>(static_cast<double>(tokens.count()) /
                                           static_cast<double>(deployment.max_model_len.count()) *
                                           kPerContext),
                 kLeast, kMost);
  if (!deployment.max_running) {
    *rows = deployment.rules.pool_caps_given_requests ? std::min(usual, half) : usual;
    const bool one_more = deployment.rules.request_padding_row == PaddingRow::kUsable;
    return std::min(one_more ? usual + 1 : usual, half);
  }
  const std::int64_t each =
      std::max<std::int64_t>(1, *deployment.max_running / deployment.attention_dp);
  if (deployment.rules.pool_caps_given_requests) {
    *rows = std::min(each, half);
    return *rows;
  }
  *rows = *deployment.max_running;
  return std::min(each, *rows);
}

}  // namespace

Tokens window_request_cap(const Deployment& deployment, Tokens window) {
  constexpr std::int64_t kEvictionInterval = 128;
  const std::int64_t page = deployment.page_size.count();
  const auto& draft = deployment.speculation;
  const std::int64_t drafts = draft ? draft->draft_tokens : 1;
  const std::int64_t at_once =
      draft ? 2 * std::max(draft->steps * draft->topk, draft->draft_tokens) : page;
  const std::int64_t each = window.count() + kEvictionInterval * drafts + page + at_once;
  const std::int64_t requests =
      std::max<std::int64_t>(1, deployment.max_running.value_or(1) / deployment.attention_dp);
  if (deployment.role == Role::kDecode) {
    return Tokens{requests * each +
                  (window.count() + page) * preallocation_rows(deployment, requests)};
  }
  const std::int64_t in_flight = deployment.overlap ? 2 : 1;
  return Tokens{align_up(requests * each + in_flight * deployment.chunk + page, page)};
}

bool in_window_pool(const Deployment& deployment, const KvLayerSpec& layer) {
  return deployment.window_pool && models::has_window(layer.kind);
}

double token_bytes(const Deployment& deployment, const KvLayerSpec& layer) {
  const double element = static_cast<double>(models::bits_of(deployment.kv_dtype)) / 8;
  const auto heads = static_cast<double>(layer.kv_heads);
  const auto width = static_cast<double>(deployment.rules.unequal_values_in_cell ||
                                                 layer.kind == AttentionKind::kMla
                                             ? layer.head_dim + layer.v_head_dim
                                             : 2 * layer.head_dim);
  double bytes = heads * width * element;
  if (deployment.kv_dtype == models::DType::kFloat4) {
    constexpr double kScaledTogether = 16;
    bytes += heads * width / kScaledTogether;
  }
  const bool sparse = layer.kind == AttentionKind::kMla && layer.indexer_bytes > 0;
  if (sparse && deployment.rules.sparse_fp8_row && deployment.kv_dtype == models::DType::kFloat8) {
    constexpr double kSparseRow = 656;  // 512 fp8, 4 fp32 scales, 64 in 16 bits
    bytes = kSparseRow;
  }
  return bytes + static_cast<double>(layer.indexer_bytes);
}

CacheSizes cache_sizes(const Deployment& deployment, int stage) {
  if (has_compressed(*deployment.model)) {
    return compressed_sizes(deployment, stage);
  }
  CacheSizes sizes;
  double widest_full = 0;
  double window_cell = 0;
  for (const KvLayerSpec& layer : deployment.kv_layers(stage)) {
    sizes.state += models::state_bytes(layer, deployment.dtype);
    const double bytes = models::has_state(layer.kind) ? 0 : token_bytes(deployment, layer);
    if (bytes <= 0) {
      continue;
    }
    if (in_window_pool(deployment, layer)) {
      sizes.window_token += bytes;
      window_cell = bytes;
      ++sizes.window_layers;
      sizes.window = std::max(sizes.window, layer.window);
    } else {
      sizes.full_token += bytes;
      widest_full = std::max(widest_full, bytes);
      ++sizes.full_layers;
    }
  }
  const auto all = static_cast<double>(sizes.full_layers + sizes.window_layers);
  sizes.any_token = (widest_full > 0 ? widest_full : window_cell) * all;
  if (window_cell != widest_full && sizes.full_layers > 0) {
    sizes.any_token += sizes.window_token;  // layers of another shape were counted again
  }
  if (deployment.speculation && deployment.speculation->own_layers && sizes.full_layers > 0 &&
      models::named(deployment.rules.drafts_in_cell, *deployment.model)) {
    const auto drafts = static_cast<double>(deployment.model->draft_layers.size());
    sizes.full_token +=
        std::floor(sizes.full_token * drafts / static_cast<double>(sizes.full_layers));
  }
  return sizes;
}

std::variant<CacheBudget, CacheRefusal> cache_budget(const Deployment& deployment,
                                                     const CacheSizes& sizes,
                                                     const FreeMemory& free) {
  double rest = gib(free.after) - gib(free.before) * (1 - deployment.mem_fraction) -
                gib(deployment.multimodal_reservation);
  if (deployment.assumed.cache_pool) {
    // Every pool has a padding slot; releases that do not charge for it have it beside the rest.
    rest = gib(*deployment.assumed.cache_pool);
    rest -= deployment.rules.state_padding_slot ? 0 : gib(sizes.state);
  }
  CacheBudget budget;
  if (rest > 0 && sizes.state > Bytes{0}) {
    if (deployment.rules.draft_states == DraftStates::kPerRequest) {
      rest -= gib(draft_states(deployment, sizes, 0));
    }
    budget.state_slots = slots_for(deployment, sizes, rest);
    if (budget.state_slots <= 0) {
      return CacheRefusal{
          OutcomeKind::kKvTooSmall, sizes.state * 2,
          fmt::format("Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
                      "Computed max_mamba_cache_size={}.",
                      budget.state_slots)};
    }
    if (budget.state_slots / deployment.slots_per_request <= 0) {
      return CacheRefusal{
          OutcomeKind::kKvTooSmall,
          sizes.state * (deployment.slots_per_request - budget.state_slots),
          fmt::format("Hybrid (mamba/linear-attention) state cache is too small to serve any "
                      "requests: max_mamba_cache_size={}, {} state slots per request.",
                      budget.state_slots, deployment.slots_per_request)};
    }
    const std::int64_t charged = budget.state_slots + (deployment.rules.state_padding_slot ? 1 : 0);
    rest -= gib(sizes.state * charged);
    if (deployment.rules.draft_states != DraftStates::kPerRequest) {
      rest -= gib(draft_states(deployment, sizes, budget.state_slots));
    }
  }
  if (deployment.assumed.available_kv) {
    budget.kv = *deployment.assumed.available_kv;
    return budget;
  }
  if (rest <= 0) {
    if (deployment.rules.weights_leave_nothing) {
      return weights_leave_nothing(deployment, sizes, free, rest);
    }
    return not_enough(deployment, sizes, Bytes{static_cast<std::int64_t>(rest * kGibBytes)});
  }
  budget.kv = Bytes{static_cast<std::int64_t>(rest * kGibBytes)};
  return budget;
}

std::variant<CachePlan, CacheRefusal> cache_plan(const Deployment& deployment,
                                                 const CacheSizes& sizes,
                                                 const CacheBudget& budget) {
  const Split parts = split(deployment, sizes, static_cast<double>(budget.kv.count()));
  CachePlan plan;
  plan.tokens = parts.full;
  plan.window_tokens = parts.window;
  plan.state_slots = budget.state_slots;
  if (deployment.max_total_tokens && *deployment.max_total_tokens < plan.tokens) {
    plan.tokens =
        floored(static_cast<double>(deployment.max_total_tokens->count()), deployment.page_size);
    if (sizes.window_layers > 0) {
      plan.window_tokens = floored(
          static_cast<double>(plan.tokens.count()) * deployment.window_ratio, deployment.page_size);
    }
  }
  if (plan.tokens <= Tokens{0}) {
    return not_enough(deployment, sizes, budget.kv);
  }
  if (sizes.window_layers > 0 && sizes.full_layers > 0 &&
      sizes.window + deployment.page_size >= plan.window_tokens) {
    const Tokens missing = sizes.window + deployment.page_size - plan.window_tokens + Tokens{1};
    return CacheRefusal{
        OutcomeKind::kKvTooSmall,
        Bytes{std::llround(sizes.window_token * static_cast<double>(missing.count()))},
        fmt::format("SWA pool ({} tokens) cannot hold even one request: the window of {} tokens "
                    "and a page must fit. Raise --mem-fraction-static or --swa-full-tokens-ratio.",
                    plan.window_tokens.count(), sizes.window.count())};
  }
  plan.max_running = requests(deployment, plan.tokens, &plan.rows);
  if (plan.state_slots > 0) {
    plan.max_running = std::min(plan.max_running, plan.state_slots / deployment.slots_per_request);
    plan.rows = std::min(plan.rows, plan.max_running);
  }
  plan.rows += preallocation_rows(deployment, plan.max_running);
  if (deployment.rules.request_padding_row != PaddingRow::kNone) {
    ++plan.rows;
  }
  if (std::min(deployment.max_model_len.count() - 1, plan.tokens.count() - 1) <= 0) {
    return CacheRefusal{OutcomeKind::kKvTooSmall, missing_for_a_page(deployment, sizes, {}),
                        "Memory pool size is too small"};
  }
  return plan;
}

std::int64_t preallocation_rows(const Deployment& deployment, std::int64_t max_running) {
  constexpr std::int64_t kFew = 32;
  return deployment.role == Role::kDecode && max_running <= kFew ? 2 * max_running : 0;
}

}  // namespace oomcast::sglang
