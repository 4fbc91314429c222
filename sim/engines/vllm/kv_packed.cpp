#include "sim/engines/vllm/kv_packed.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"

namespace oomcast::vllm {
namespace {

using models::AttentionKind;

constexpr std::int64_t kWindowBlock = 64;  // tokens of a window's block (v1 backends, sparse_swa)
constexpr std::int64_t kFp32 = 4;

// Bytes of the caches of one layer, by what fills them.
class Pages {
 public:
  explicit Pages(const Deployment& deployment)
      : deployment_(deployment),
        packed_fp8_(deployment.attention_backend != "FLASHINFER_MLA_SPARSE_DSV4") {}

  // FlashMLA's rows: 448 values in fp8, 64 in 16 bits, 8 scales.
  [[nodiscard]] Bytes latents(std::int64_t entries, const models::CompressedSpec& spec) const {
    constexpr std::int64_t kPackedRow = 584;
    const std::int64_t row =
        packed_fp8_ ? kPackedRow : spec.latent * models::bits_of(deployment_.kv_dtype) / 8;
    return aligned(detail::checked_mul(entries, row));
  }
  [[nodiscard]] Bytes keys(std::int64_t entries, const models::CompressedSpec& spec) const {
    return aligned(detail::checked_mul(entries, spec.indexer_dim + kFp32));
  }
  // Values and scores of a token, for each of the entries it is part of.
  [[nodiscard]] Bytes states(std::int64_t tokens, std::int64_t width, std::int64_t open) const {
    return aligned(detail::checked_mul(tokens, 2 * open * width) * kFp32);
  }

 private:
  [[nodiscard]] Bytes aligned(std::int64_t bytes) const {
    return Bytes{align_up(bytes, packed_fp8_ ? 576 : 512)};
  }

  const Deployment& deployment_;
  bool packed_fp8_;
};

// A cache of one layer.
struct Member {
  KvGroup group;
  Bytes page;
  int stage = 0;
};

std::int64_t state_block(std::int64_t ratio) { return ratio == 4 ? 4 : 8; }

void add_layer(const Deployment& deployment, const models::AttentionSpec& attention, int stage,
               std::vector<Member>& full, std::vector<Member>& windows) {
  const Pages pages(deployment);
  const models::CompressedSpec& spec = attention.compressed;
  const auto window = [&](std::int64_t block, std::int64_t tokens, Bytes page) {
    KvGroup group;
    group.type = KvGroup::Type::kSlidingWindow;
    group.block_size = Tokens{block};
    group.window = Tokens{tokens};
    windows.push_back({group, page, stage});
  };
  window(kWindowBlock, attention.window.count(), pages.latents(kWindowBlock, spec));
  if (spec.ratio == 0) {
    return;
  }
  KvGroup entries;
  entries.block_size = deployment.block_size;
  const std::int64_t stored = deployment.block_size.count() / spec.ratio;
  full.push_back({entries, pages.latents(stored, spec), stage});
  const std::int64_t open = spec.open_entries();
  const std::int64_t block = state_block(spec.ratio);
  window(block, open * spec.ratio, pages.states(block, spec.latent, open));
  if (spec.indexer_heads > 0) {
    full.push_back({entries, pages.keys(stored, spec), stage});
    window(block, open * spec.ratio, pages.states(block, spec.indexer_dim, open));
  }
}

// Layers of the most frequent page size: a tuple has one page of each size.
std::int64_t tuples_of(const std::vector<Member>& members) {
  std::map<Bytes, std::int64_t> layers;
  for (const Member& member : members) {
    ++layers[member.page];
  }
  std::int64_t most = 0;
  for (const auto& [page, count] : layers) {
    most = std::max(most, count);
  }
  return most;
}

// The number, at least `least`, to whose multiples the counts are padded with the fewest tuples;
// the larger of equals.
std::int64_t least_padding(const std::vector<std::int64_t>& counts, std::int64_t least) {
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  std::int64_t best = least;
  std::int64_t best_padding = -1;
  for (std::int64_t size = least; size <= most; ++size) {
    std::int64_t padding = 0;
    for (const std::int64_t count : counts) {
      padding += align_up(count, size) - count;
    }
    if (best_padding < 0 || padding <= best_padding) {
      best = size;
      best_padding = padding;
    }
  }
  return best;
}

struct Packed {
  std::vector<Bytes> sizes;  // pages of the first group, ascending
  std::int64_t tuples = 0;   // of a group, padding included
  std::map<Bytes, std::int64_t> slots;
  KvLayout layout;

  // Members of the group on `stage`, with pages that the first group has.
  void add(const std::vector<Member>& members, int stage) {
    KvGroupLayout group{members.front().group, 0, {}};
    std::map<Bytes, std::int64_t> own;
    for (const Member& member : members) {
      if (member.stage == stage) {
        const Bytes page = *std::lower_bound(sizes.begin(), sizes.end(), member.page);
        ++own[page];
        ++group.layers;
        group.page += page;
      }
    }
    for (const auto& [page, count] : own) {
      slots[page] = std::max(slots[page], count);
    }
    layout.groups.push_back(group);
  }
};

}  // namespace

bool packs_kv(const models::ModelSpec& model) {
  return models::has_attention(model, AttentionKind::kCompressed);
}

KvLayout packed_kv_layout(const Deployment& deployment, int stage) {
  std::vector<Member> full;
  std::vector<Member> windows;
  for (int owner = 0; owner < deployment.pp; ++owner) {
    const models::LayerRange range =
        models::stage_layers(*deployment.model, deployment.shard(owner));
    for (int i = range.begin; i < range.end; ++i) {
      add_layer(deployment, deployment.model->layer(i).attention, owner, full, windows);
    }
  }
  if (deployment.speculation && deployment.speculation->own_layers) {
    for (const models::LayerSpec& layer : deployment.model->draft_layers) {
      add_layer(deployment, layer.attention, deployment.pp - 1, full, windows);
    }
  }
  OOMCAST_CHECK(!full.empty(), "{} has no compressed layers", deployment.model->name);
  // Alike windows, in the order of their first layer.
  std::vector<std::vector<Member>> alike;
  for (const Member& member : windows) {
    auto same = std::find_if(alike.begin(), alike.end(), [&](const std::vector<Member>& members) {
      return members.front().group == member.group;
    });
    if (same == alike.end()) {
      same = alike.insert(alike.end(), std::vector<Member>{});
    }
    same->push_back(member);
  }
  Packed packed;
  for (const Member& member : full) {
    packed.sizes.push_back(member.page);
  }
  std::sort(packed.sizes.begin(), packed.sizes.end());
  packed.sizes.erase(std::unique(packed.sizes.begin(), packed.sizes.end()), packed.sizes.end());
  std::vector<std::int64_t> counts = {tuples_of(full)};
  for (const std::vector<Member>& members : alike) {
    for (const Member& member : members) {
      if (member.page > packed.sizes.back()) {
        throw ConfigError(Problem{deployment.model->name, "KV cache groups",
                                  fmt::format("pages of {} bytes", member.page.count()),
                                  fmt::format("at most {}, a block of compressed entries: a larger "
                                              "--block-size",
                                              packed.sizes.back().count()),
                                  ""});
      }
    }
    counts.push_back(tuples_of(members));
  }
  packed.tuples = least_padding(counts, counts.front());
  packed.add(full, stage);
  for (std::size_t i = 0; i < alike.size(); ++i) {
    const std::int64_t groups = div_ceil(counts[i + 1], packed.tuples);
    // Tuple j goes to group j mod groups; members of a tuple follow each other.
    const auto each = static_cast<std::int64_t>(alike[i].size()) / counts[i + 1];
    for (std::int64_t group = 0; group < groups; ++group) {
      std::vector<Member> members;
      for (std::size_t j = 0; j < alike[i].size(); ++j) {
        if (static_cast<std::int64_t>(j) / each % groups == group) {
          members.push_back(alike[i][j]);
        }
      }
      packed.add(members, stage);
    }
  }
  Bytes tuple;
  for (const Bytes page : packed.sizes) {
    tuple += page;
  }
  KvLayout layout = std::move(packed.layout);
  layout.group_size = 1;
  layout.packed = PackedKv{packed.tuples, tuple};
  if (deployment.rules.packs_by_tuples) {
    layout.page = tuple * packed.tuples;
  } else {
    for (const auto& [page, count] : packed.slots) {
      layout.page += page * count;
    }
  }
  return layout;
}

}  // namespace oomcast::vllm
