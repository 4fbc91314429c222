#include "sim/engines/vllm/host_pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/core/units_text.hpp"
#include "sim/engines/vllm/kv_transfer.hpp"

namespace oomcast::vllm {
namespace {

constexpr std::int64_t kHostPage = 4096;
// Memory of the tier's index: some 100 B a chunk in use.
constexpr std::int64_t kMostChunks = std::int64_t{1} << 26;

std::optional<KvTransfer> offloading(const Deployment& deployment) {
  auto transfer = kv_transfer(deployment.launch);
  return transfer && transfer->connector.kind == ConnectorConfig::Kind::kOffloading ? transfer
                                                                                    : std::nullopt;
}

// Every rank has the same latents; with index keys beside them the engine keeps all.
bool keeps_one_copy(const Deployment& deployment) {
  const auto layers = deployment.kv_layers(0);
  return deployment.launch.at_least(0, 27) && deployment.pp == 1 &&
         std::all_of(layers.begin(), layers.end(), [](const models::KvLayerSpec& layer) {
           return layer.kind == models::AttentionKind::kMla && layer.head_dim > 0;
         });
}

}  // namespace

void HostPool::settle(ConnectorConfig& connector) const {
  connector.host_chunks = chunks;
  connector.blocks_per_chunk = blocks_per_chunk;
  connector.bytes_per_token = Bytes{div_ceil(block.count(), block_tokens.count())};
}

std::optional<HostPool> host_pool(const Deployment& deployment) {
  const auto transfer = offloading(deployment);
  if (!transfer) {
    return std::nullopt;
  }
  HostPool pool;
  for (int stage = 0; stage < deployment.pp; ++stage) {
    pool.block = std::max(pool.block, deployment.kv_layout(stage).block_bytes());
  }
  pool.block_tokens = deployment.kv_layout(0).groups.front().group.block_size;
  pool.ranks = deployment.ranks();
  pool.copies = keeps_one_copy(deployment) ? 1 : pool.ranks;
  pool.blocks_per_chunk =
      std::max<std::int64_t>(transfer->host_chunk.count() / pool.block_tokens.count(), 1);
  pool.chunk =
      Bytes{align_up((pool.block * pool.blocks_per_chunk * pool.copies).count(), kHostPage)};
  pool.chunks = transfer->host_size / pool.chunk;
  return pool;
}

void check_host_pool(const Deployment& deployment, Problems& problems) {
  const auto transfer = offloading(deployment);
  if (!transfer) {
    return;
  }
  const auto refuse = [&](std::string value, std::string expected, std::string hint) {
    problems.add({"launch line", "OffloadingConnector", std::move(value), std::move(expected),
                  std::move(hint)});
  };
  if (deployment.gpu.host_link_bandwidth <= 0) {
    refuse(deployment.gpu.name, "a card with host_link_gb_s in the catalog",
           deployment.gpu.unified_memory ? "card and host share their memory" : "");
  }
  const std::vector<KvGroupLayout> groups = deployment.kv_layout(0).groups;
  if (groups.size() > 1 && !deployment.launch.at_least(0, 21)) {
    refuse(fmt::format("{} KV cache groups", groups.size()), "one group, or vLLM 0.21.0",
           "give --disable-hybrid-kv-cache-manager");
  }
  for (const KvGroupLayout& member : groups) {
    const std::int64_t block = member.group.block_size.count();
    if (member.group.type == KvGroup::Type::kMamba) {
      refuse("recurrent layers", "attention layers alone", "its states are not modelled there");
      return;
    }
    if (transfer->host_chunk.count() % block != 0) {
      refuse(fmt::format("chunks of {} tokens", transfer->host_chunk.count()),
             fmt::format("block_size a multiple of {}, the KV cache's", block), "");
      return;
    }
  }
  const HostPool pool = *host_pool(deployment);
  if (pool.chunks < 1) {
    refuse(format_bytes(transfer->host_size),
           fmt::format("at least one chunk, {} B", pool.chunk.count()), "");
  } else if (pool.chunks > kMostChunks) {
    refuse(
        format_bytes(transfer->host_size),
        fmt::format("at most {}, {} chunks", format_bytes(pool.chunk * kMostChunks), kMostChunks),
        "");
  }
}

}  // namespace oomcast::vllm
