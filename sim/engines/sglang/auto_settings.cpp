#include "sim/engines/sglang/auto_settings.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

constexpr double kMibPerGib = 1024;

double rounded(double fraction) { return std::round(fraction * 1000) / 1000; }

const MemoryClass& class_of(const StartupRules& rules, std::int64_t card_mib) {
  const auto found = std::find_if(rules.classes.begin(), rules.classes.end(),
                                  [&](const auto& one) { return card_mib < one.below_mib; });
  return found == rules.classes.end() ? rules.classes.back() : *found;
}

void append_range(std::vector<std::int64_t>& sizes, std::int64_t from, std::int64_t to,
                  std::int64_t step) {
  for (std::int64_t size = from; size <= to; size += step) {
    sizes.push_back(size);
  }
}

// Tokens whose activations are reserved for.
std::int64_t activation_tokens(const StartupRules& rules, const AutoInput& input,
                               const AutoSettings& out) {
  constexpr std::int64_t kLeast = 2048;
  if (input.role == Role::kDecode && rules.disaggregated_activation) {
    const std::int64_t requests =
        input.max_running.value_or(std::max<std::int64_t>(out.decode_max, 1));
    return std::max(requests * input.draft_tokens, kLeast);
  }
  return std::max(out.chunk > 0 ? out.chunk : input.max_prefill_tokens, kLeast);
}

double graph_reserve(const StartupRules& rules, const AutoInput& input, const AutoSettings& out) {
  const auto batch = static_cast<double>(out.decode_max);
  const bool decodes = input.role != Role::kPrefill || !rules.disaggregated_activation;
  double reserve = 0;
  if (decodes && (input.decode_graphs || !rules.disaggregated_activation)) {
    reserve += 2 * batch;
  }
  if (decodes && input.attention_dp > 1) {
    constexpr std::int64_t kLargeBatch = 300;
    reserve += (out.decode_max > kLargeBatch ? 4.5 : 3.0) * batch *
               static_cast<double>(input.attention_dp);
  }
  const bool captures_prefill =
      input.prefill_graphs && (input.role != Role::kDecode || !rules.disaggregated_activation);
  if (captures_prefill && rules.prefill_reserve == PrefillReserve::kPerSize) {
    reserve += input.mla && rules.mla_graph_reserve > Bytes{0}
                   ? static_cast<double>(rules.mla_graph_reserve / kMiB)
                   : 8.0 * static_cast<double>(prefill_capture_sizes(out.prefill_max).size());
  }
  return reserve;
}

double fraction_by_use(const StartupRules& rules, const AutoInput& input, const AutoSettings& out) {
  constexpr double kBase = 512;
  constexpr double kRank = 128;
  constexpr std::int64_t kLargeCard = 61440;
  constexpr double kLargeCardFloor = 10240;
  const auto card = static_cast<double>(*input.card_mib);
  double reserve = kBase + 1.5 * static_cast<double>(activation_tokens(rules, input, out)) +
                   kRank * static_cast<double>(input.tp * input.pp) +
                   graph_reserve(rules, input, out);
  if (*input.card_mib > kLargeCard) {
    reserve = std::max(reserve, kLargeCardFloor);
  }
  if (input.prefill_graphs && rules.prefill_reserve == PrefillReserve::kTokensAfterFloor) {
    const std::int64_t part = out.prefill_max / rules.prefill_reserve_divisor;  // rounded down
    reserve += static_cast<double>(part);
  }
  if (input.speculative) {
    reserve += static_cast<double>(
        (input.standalone_draft ? rules.standalone_reserve : rules.speculative_reserve) / kMiB);
  }
  if (input.deepep && input.decode_graphs && input.role != Role::kPrefill) {
    reserve += static_cast<double>(rules.deepep_reserve / kMiB);
  }
  return rounded((card - reserve) / card);
}

double fraction_by_class(const StartupRules& rules, const AutoInput& input) {
  const auto card = static_cast<double>(*input.card_mib);
  const MemoryClass& own = class_of(rules, *input.card_mib);
  double reserve =
      own.reserve_gib + own.reserve_rank_gib * static_cast<double>(input.tp * input.pp);
  if (input.speculative) {
    reserve += static_cast<double>(
                   (input.standalone_draft ? rules.standalone_reserve : rules.speculative_reserve) /
                   kMiB) /
               kMibPerGib;
  }
  constexpr double kAttentionDp = 4;
  if (input.attention_dp > 1) {
    reserve += kAttentionDp;
  }
  return rounded((card - reserve * kMibPerGib) / card);
}

double fraction_by_ranks(const StartupRules& rules, const AutoInput& input) {
  const auto own =
      std::find_if(rules.large_cards.rbegin(), rules.large_cards.rend(),
                   [&](const auto& one) { return input.card_mib.value_or(0) > one.above_mib; });
  if (own != rules.large_cards.rend() && own->fraction > 0) {
    return own->fraction;
  }
  if (own != rules.large_cards.rend()) {
    const auto card = static_cast<double>(*input.card_mib);
    const std::int64_t reserve =
        input.speculative ? own->speculative_reserve_mib : own->reserve_mib;
    return (card - static_cast<double>(reserve)) / card;
  }
  for (const auto& [ranks, fraction] : rules.fraction_by_ranks) {
    if (input.tp * input.pp >= ranks) {
      return fraction;
    }
  }
  return rules.fraction_unknown_card;
}

}  // namespace

namespace {

// Up to 0.5.2 a list for the card, which the largest batch asked for cuts or lengthens by 16s.
std::vector<std::int64_t> steps_of_8(const CaptureRange& range, bool speculative, bool padded) {
  constexpr std::int64_t kAnyCard = 160;
  constexpr std::int64_t kLargeCard = 256;
  std::vector<std::int64_t> sizes;
  if (speculative) {
    append_range(sizes, 1, 8, 1);
    append_range(sizes, 10, 32, 2);
    append_range(sizes, 40, 63, 8);
    append_range(sizes, 80, kAnyCard, 16);
  } else if (!padded) {
    append_range(sizes, 1, 32, 1);
    append_range(sizes, 48, kAnyCard, 16);
  } else {
    sizes = {1, 2, 4};
    append_range(sizes, 8, kAnyCard, 8);
  }
  append_range(sizes, kAnyCard + 8, std::min(range.of_card, kLargeCard), 8);
  append_range(sizes, kLargeCard + 16, range.of_card, 16);
  std::erase_if(sizes, [&](std::int64_t size) { return size > range.most; });
  append_range(sizes, sizes.back() + 16, range.most, 16);
  return sizes;
}

}  // namespace

std::vector<std::int64_t> decode_capture_sizes(CaptureList list, const CaptureRange& range,
                                               bool speculative, bool padded) {
  if (list == CaptureList::kStepsOf8) {
    return steps_of_8(range, speculative, padded);
  }
  const std::int64_t most = range.most;
  std::vector<std::int64_t> sizes;
  if (!padded) {
    append_range(sizes, 1, most, 1);
    return sizes;
  }
  if (speculative) {
    append_range(sizes, 1, 8, 1);
    append_range(sizes, 10, 32, 2);
    append_range(sizes, 40, 64, 4);
    append_range(sizes, 72, 256, 8);
    append_range(sizes, 272, most, 16);
  } else {
    sizes = {1, 2, 4, 8, 12};
    append_range(sizes, 16, 256, 8);
    append_range(sizes, 272, 496, 16);
    append_range(sizes, 512, most, 32);
  }
  std::erase_if(sizes, [most](std::int64_t size) { return size > most; });
  if (sizes.empty() || sizes.back() != most) {
    sizes.push_back(most);
  }
  return sizes;
}

std::vector<std::int64_t> prefill_capture_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes;
  append_range(sizes, 4, 32, 4);
  append_range(sizes, 48, 256, 16);
  append_range(sizes, 288, 512, 32);
  append_range(sizes, 576, 1024, 64);
  append_range(sizes, 1280, 4096, 256);
  append_range(sizes, 4608, most, 512);
  std::erase_if(sizes, [most](std::int64_t size) { return size > most; });
  return sizes;
}

double multimodal_fraction_factor(std::int64_t layers, std::int64_t hidden) {
  constexpr double kUsualLayers = 24;
  constexpr double kUsualWidth = 1024;
  const double complexity = static_cast<double>(layers) * static_cast<double>(hidden) *
                            static_cast<double>(hidden) /
                            (kUsualLayers * kUsualWidth * kUsualWidth);
  return 0.95 * std::clamp(1.0 - 0.1 * (complexity - 1.0), 0.8, 1.05);
}

AutoSettings auto_settings(const StartupRules& rules, const AutoInput& input) {
  constexpr std::int64_t kChunkUnknown = 4096;
  constexpr std::int64_t kDecodeUnknown = 160;
  constexpr std::int64_t kManyRanks = 4;
  AutoSettings out;
  const MemoryClass* own = input.card_mib ? &class_of(rules, *input.card_mib) : nullptr;
  out.chunk = input.chunk.value_or(own != nullptr ? own->chunk : kChunkUnknown);
  out.decode_max = kDecodeUnknown;
  if (input.decode_max) {
    out.decode_max = *input.decode_max;
  } else if (own != nullptr) {
    out.decode_max = input.tp >= kManyRanks ? own->decode_tp4 : own->decode;
    if (input.attention_dp > 1) {
      out.decode_max = own->decode_groups.value_or(out.decode_max);
    }
    if (rules.decode_cut_to_requests && input.max_running) {
      out.decode_max = std::min(out.decode_max, *input.max_running);
    }
  }
  out.decode_of_card = own == nullptr           ? kDecodeUnknown
                       : input.attention_dp > 1 ? own->decode_groups.value_or(own->decode_tp4)
                                                : own->decode_tp4;
  const std::int64_t whole = out.chunk > 0 ? out.chunk : input.max_prefill_tokens;
  out.prefill_max =
      input.prefill_max.value_or(input.mla ? std::min(rules.prefill_max_mla, whole) : whole);
  switch (rules.fraction) {
    case FractionRule::kByRanks:
      out.mem_fraction = fraction_by_ranks(rules, input);
      break;
    case FractionRule::kByClass:
      out.mem_fraction =
          input.card_mib ? fraction_by_class(rules, input) : rules.fraction_unknown_card;
      break;
    case FractionRule::kByUse:
      out.mem_fraction =
          input.card_mib ? fraction_by_use(rules, input, out) : rules.fraction_unknown_card;
      break;
  }
  return out;
}

}  // namespace oomcast::sglang
