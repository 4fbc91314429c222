#include "sim/engines/sglang/compressed_pools.hpp"

#include <algorithm>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;

constexpr std::int64_t kIndexed = 4;  // the ratio whose entries overlap and have an indexer
constexpr std::int64_t kCoarse = 128;
constexpr std::int64_t kPageUnit = 576;
constexpr std::int64_t kStateBytes = 4;

std::int64_t padded_page(std::int64_t entries, std::int64_t row) {
  return align_up(entries * row, kPageUnit);
}

// Of one stage, or of all layers with the draft's where a release counts those.
struct Layout {
  std::int64_t row = 0;    // bytes of an entry
  std::int64_t index = 0;  // of an indexer's key and its scales
  // Of one token in the making, values and scores; overlapping entries have two of each.
  std::int64_t indexed_state = 0;
  std::int64_t indexer_state = 0;
  std::int64_t coarse_state = 0;
  std::int64_t layers = 0;
  std::int64_t indexed = 0;
  std::int64_t coarse = 0;
  Tokens window;
  std::int64_t indexed_ring = 8;  // tokens in the making that a window's page, or a request, holds
  std::int64_t coarse_ring = 128;
  std::int64_t state_page = 0;  // slots of the window pool for one ring
};

void add_layer(Layout& out, const models::ModelSpec& model,
               const models::AttentionSpec& attention) {
  const models::CompressedSpec& compressed = attention.compressed;
  const std::int64_t rotated =
      attention.rope < 0 ? 0 : model.ropes.at(static_cast<std::size_t>(attention.rope)).rotary_dim;
  constexpr std::int64_t kScaledTogether = 64;
  const std::int64_t plain = compressed.latent - rotated;
  out.row = plain + 2 * rotated + plain / kScaledTogether + 1;
  out.window = std::max(out.window, attention.window);
  ++out.layers;
  out.coarse_state = 2 * compressed.latent * kStateBytes;
  if (compressed.ratio == kIndexed) {
    ++out.indexed;
    out.indexed_state = 2 * out.coarse_state;
    out.indexer_state = 2 * 2 * compressed.indexer_dim * kStateBytes;
    out.index = compressed.indexer_dim + div_ceil(compressed.indexer_dim, kCoarse) * 4;
  } else if (compressed.ratio > kIndexed) {
    ++out.coarse;
  }
}

Layout layout_of(const Deployment& deployment, int stage) {
  Layout out;
  const models::ModelSpec& model = *deployment.model;
  const models::LayerRange range = models::stage_layers(model, deployment.shard(stage));
  for (int i = range.begin; i < range.end; ++i) {
    add_layer(out, model, model.layer(i).attention);
  }
  if (deployment.speculation) {
    out.indexed_ring *= 2;
    out.coarse_ring *= 2;
  }
  out.state_page = deployment.rules.compressed == CompressedBudget::kByPages
                       ? deployment.page_size.count()
                       : out.window.count();
  return out;
}

std::int64_t requests_of_a_group(const Deployment& deployment) {
  return std::max<std::int64_t>(1, deployment.max_running.value_or(1) / deployment.attention_dp);
}

std::int64_t ring_rows(std::int64_t slots, std::int64_t ring, std::int64_t ratio) {
  return align_up(slots + ring + 1, ratio);
}

std::int64_t coarse_rows(const Deployment& deployment, const Layout& layout,
                         std::int64_t requests) {
  const std::int64_t slots = requests + preallocation_rows(deployment, requests) + 1;
  return ring_rows(slots * layout.coarse_ring, layout.coarse_ring, kCoarse);
}

// Bytes of an entry in pages of `entries`, as the budget counts them.
double counted_row(const Deployment& deployment, const Layout& layout, std::int64_t entries) {
  return deployment.rules.compressed == CompressedBudget::kByPages
             ? static_cast<double>(padded_page(entries, layout.row)) / static_cast<double>(entries)
             : static_cast<double>(layout.row);
}

double per_window_slot(const Deployment& deployment, const Layout& layout, std::int64_t layers) {
  const double rings =
      static_cast<double>(layout.indexed_ring) / static_cast<double>(layout.state_page);
  return counted_row(deployment, layout, deployment.page_size.count()) *
             static_cast<double>(layers) +
         rings *
             static_cast<double>((layout.indexed_state + layout.indexer_state) * layout.indexed);
}

double per_token(const Deployment& deployment, const Layout& layout) {
  const std::int64_t page = deployment.page_size.count();
  return (counted_row(deployment, layout, page / kIndexed) + static_cast<double>(layout.index)) /
             static_cast<double>(kIndexed) * static_cast<double>(layout.indexed) +
         counted_row(deployment, layout, page / kCoarse) / static_cast<double>(kCoarse) *
             static_cast<double>(layout.coarse);
}

// Requests bound the window pool: what they hold, and four prefixes of each that stay cached.
std::optional<Tokens> window_for_requests(const Deployment& deployment, Tokens window) {
  if (deployment.rules.compressed != CompressedBudget::kByPages ||
      deployment.launch.given("swa-full-tokens-ratio") ||
      (deployment.role != Role::kDecode && deployment.chunk <= 0)) {
    return std::nullopt;
  }
  constexpr std::int64_t kPrefixes = 4;
  const std::int64_t tails =
      deployment.launch.integer("swa-prefix-tails")
          .value_or(deployment.radix_cache ? kPrefixes * requests_of_a_group(deployment) : 0);
  const Tokens headroom{tails * (window + deployment.page_size).count()};
  return align_up(window_request_cap(deployment, window) + headroom, deployment.page_size);
}

}  // namespace

bool has_compressed(const models::ModelSpec& model) {
  return models::has_attention(model, AttentionKind::kCompressed);
}

CacheSizes compressed_sizes(const Deployment& deployment, int stage) {
  const Layout layout = layout_of(deployment, stage);
  const bool by_tokens = deployment.rules.compressed == CompressedBudget::kByTokens;
  const auto drafts = static_cast<std::int64_t>(deployment.model->draft_layers.size());
  const std::int64_t layers = layout.layers + (by_tokens ? drafts : 0);
  CacheSizes sizes;
  sizes.full_layers = layout.indexed + layout.coarse;
  sizes.window_layers = layout.layers;
  sizes.window = layout.window;
  sizes.full_token = per_token(deployment, layout);
  sizes.window_token = per_window_slot(deployment, layout, layers);
  if (by_tokens) {
    sizes.window_token += static_cast<double>(layout.coarse_ring * layout.coarse_state) /
                          static_cast<double>(layout.state_page) *
                          static_cast<double>(layout.coarse);
  } else {
    sizes.fixed =
        Bytes{layout.coarse_state} *
        detail::checked_mul(coarse_rows(deployment, layout, requests_of_a_group(deployment)),
                            layout.coarse);
  }
  if (deployment.speculation) {
    const double grown = static_cast<double>(layers + 1) / static_cast<double>(layers);
    sizes.full_token *= grown;
    sizes.window_token *= grown;
  }
  sizes.window_cap = window_for_requests(deployment, layout.window);
  return sizes;
}

std::vector<opgraph::LiveTensor> compressed_pools(const Deployment& deployment,
                                                  const CachePlan& plan, int stage) {
  const Layout layout = layout_of(deployment, stage);
  const std::int64_t page = deployment.page_size.count();
  const std::int64_t tokens = plan.tokens.count();
  std::vector<opgraph::LiveTensor> out;
  const auto add = [&](const char* name, const char* formula, std::int64_t count, std::int64_t rows,
                       std::int64_t bytes) {
    for (std::int64_t i = 0; i < count; ++i) {
      out.push_back({name, formula, "", Leaf::kKvPool, Bytes{detail::checked_mul(rows, bytes)}});
    }
  };
  const auto pages = [](std::int64_t slots, std::int64_t of) { return slots / of + 1; };
  const std::int64_t window = plan.window_tokens.count();
  const std::int64_t fine = page / kIndexed;
  const std::int64_t coarse = page / kCoarse;
  const std::int64_t drafts = deployment.speculation ? 1 : 0;
  add("window latents of a layer", "pages x up(P x row, 576)", layout.layers + drafts,
      pages(window, page), padded_page(page, layout.row));
  add("latents of 4 tokens", "pages x up(P / 4 x row, 576)", layout.indexed,
      pages(tokens / kIndexed, fine), padded_page(fine, layout.row));
  add("latents of 128 tokens", "pages x up(P / 128 x row, 576)", layout.coarse,
      pages(tokens / kCoarse, coarse), padded_page(coarse, layout.row));
  add("keys of an indexer", "pages x P / 4 x (width + scale)", layout.indexed,
      pages(tokens / kIndexed, fine), fine * layout.index);
  const std::int64_t rows =
      ring_rows(window / layout.state_page * layout.indexed_ring, layout.indexed_ring, kIndexed);
  const bool by_tokens = deployment.rules.compressed == CompressedBudget::kByTokens;
  const std::int64_t coarse_slots =
      by_tokens
          ? ring_rows(window / layout.state_page * layout.coarse_ring, layout.coarse_ring, kCoarse)
          : coarse_rows(deployment, layout, plan.max_running);
  add("states of 4 tokens", "rings x 4 x latent x 4", layout.indexed, rows, layout.indexed_state);
  add("states of an indexer", "rings x 4 x width x 4", layout.indexed, rows, layout.indexer_state);
  add("states of 128 tokens", "rings x 2 x latent x 4", layout.coarse, coarse_slots,
      layout.coarse_state);
  return out;
}

}  // namespace oomcast::sglang
