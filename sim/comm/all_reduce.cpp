#include "sim/comm/all_reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "sim/comm/persistent.hpp"
#include "sim/kernels/preset.hpp"

namespace oomcast::comm {
namespace {

constexpr std::string_view kFile = "kernels/all_reduce.json";
constexpr std::int64_t kFlagBytes = 256 * 4;  // of one rank

std::string name_of(Engine engine, std::string_view what) {
  return fmt::format("{}.{}", engine == Engine::kVllm ? "vllm" : "sglang", what);
}

std::optional<Bytes> size_of(const RankGroup& group, std::string_view name,
                             const Version& version) {
  return kernels::preset_bytes({kFile, name, version, group.gpu, static_cast<int>(group.ranks)});
}

void check_fused(const char* name, const FusedAllReduce& shape) {
  constexpr std::int64_t kMostHidden = std::int64_t{1} << 31;
  ShapeCheck{name}
      .positive("tokens", shape.tokens)
      .between("hidden size", shape.hidden, 1, kMostHidden)
      .between("element bytes", shape.element_bytes, 1, 8)
      .raise_if_any();
}

}  // namespace

std::optional<Bytes> custom_all_reduce_limit(const RankGroup& group, const EngineVersion& engine,
                                             bool beside_symmetric) {
  check_group(group);
  const bool over_pcie = group.link == Link::kPcie && group.ranks > 2;
  if (group.ranks < 2 || group.nodes > 1 || over_pcie) {
    return std::nullopt;
  }
  const auto most = size_of(group, name_of(engine.engine, "custom"), engine.version);
  if (!most || !beside_symmetric || engine.engine != Engine::kVllm) {
    return most;
  }
  const auto lowered = size_of(group, "vllm.custom_beside_symmetric", engine.version);
  return lowered ? lowered : most;
}

std::vector<Buffer> custom_all_reduce(const RankGroup& group, const EngineVersion& engine,
                                      bool beside_symmetric) {
  const auto limit = custom_all_reduce_limit(group, engine, beside_symmetric);
  if (!limit) {
    return {};
  }
  // sizeof(Signal): start and end flags of 36 blocks for 8 ranks and a counter a block, each table
  // aligned to 128 B.
  constexpr std::int64_t kSignalBytes = 2560;
  return {from_driver("custom all-reduce, signals and scratch", "sizeof(Signal) + limit",
                      limit->count() + kSignalBytes),
          from_driver("custom all-reduce, input", "limit", limit->count()),
          kept("custom all-reduce, addresses", "8 MiB", 8 * kMiB, Backing::kSegment)};
}

std::vector<Buffer> symmetric_all_reduce(const RankGroup& group, const EngineVersion& engine) {
  check_group(group);
  const auto size = group.ranks < 2 || group.nodes > 1
                        ? std::nullopt
                        : size_of(group, name_of(engine.engine, "symmetric"), engine.version);
  if (!size) {
    return {};
  }
  return {kept("symmetric memory all-reduce", "size by generation and ranks",
               align_up(*size, kGranule), Backing::kSymmetric),
          kept("symmetric memory signals", "one granule", kGranule, Backing::kSymmetric)};
}

std::vector<Buffer> nccl_symmetric_pool(const EngineVersion& engine) {
  const auto size =
      kernels::preset_bytes({kFile, name_of(engine.engine, "nccl_pool"), engine.version});
  if (!size || *size == Bytes{0}) {
    return {};
  }
  return {kept("NCCL symmetric pool", "constant", *size, Backing::kSymmetric)};
}

std::optional<std::int64_t> vllm_fused_tokens(const RankGroup& group, const Version& version,
                                              std::int64_t hidden, std::int64_t element_bytes) {
  check_group(group);
  check_fused("FlashInfer fused all-reduce", {1, hidden, element_bytes});
  const auto limit = size_of(group, "vllm.fused", version);
  return limit ? std::optional(limit->count() / product(hidden, element_bytes)) : std::nullopt;
}

std::vector<Buffer> flashinfer_fused(const RankGroup& group, const FusedAllReduce& shape) {
  check_group(group);
  check_fused("FlashInfer fused all-reduce", shape);
  constexpr std::int64_t kAlignment = 16;
  constexpr std::int64_t kMostLamport = 2'145'386'496;
  constexpr std::int64_t kLamportCopies = 3;
  const std::int64_t elements = product(group.ranks, shape.tokens, shape.hidden);
  const std::int64_t data = product(elements, 2);
  const std::int64_t lamport =
      std::min(product(elements, shape.element_bytes > 2 ? 4 : 2), kMostLamport);
  return {from_driver("fused all-reduce, data", "n x tokens x H x 2", align_up(data, kAlignment)),
          from_driver("fused all-reduce, flags", "n x 256 x 4", product(group.ranks, kFlagBytes)),
          from_driver("fused all-reduce, Lamport", "3 x min(n x tokens x H x b, 2,145,386,496)",
                      align_up(product(kLamportCopies, lamport), kAlignment))};
}

std::vector<Buffer> flashinfer_mnnvl(const RankGroup& group, const FusedAllReduce& shape,
                                     std::int64_t one_shot_tokens) {
  check_group(group);
  check_fused("FlashInfer multi-node all-reduce", shape);
  ShapeCheck{"FlashInfer multi-node all-reduce"}
      .countable("one-shot tokens", one_shot_tokens)
      .raise_if_any();
  constexpr std::int64_t kCopies = 3;
  const std::int64_t one_shot = product(one_shot_tokens, shape.hidden, group.ranks, 2);
  const std::int64_t two_shot =
      product(2, div_ceil(shape.tokens, group.ranks), group.ranks, shape.hidden, 2);
  return {kept("multi-node NVLink all-reduce",
               "3 x max(one-shot tokens x H x n x 2, 2 x up(tokens, n) x H x 2)",
               align_up(Bytes{product(kCopies, std::max(one_shot, two_shot))}, kGranule),
               Backing::kSymmetric)};
}

std::vector<Buffer> flashinfer_legacy(const RankGroup& group, const FusedAllReduce& shape) {
  check_group(group);
  check_fused("FlashInfer custom all-reduce", shape);
  const std::int64_t data = product(group.ranks, shape.tokens, shape.hidden, 4);
  const std::int64_t lamport = product(group.ranks, 16, group.ranks, shape.hidden, 2);
  std::vector<Buffer> buffers;
  for (int copy = 0; copy < 2; ++copy) {
    buffers.push_back(from_driver("custom all-reduce, data", "n x tokens x H x 4", data));
    buffers.push_back(
        from_driver("custom all-reduce, flags", "n x 256 x 4", product(group.ranks, kFlagBytes)));
  }
  for (int copy = 0; copy < 3; ++copy) {
    buffers.push_back(from_driver("custom all-reduce, Lamport", "n x 16 x n x H x 2", lamport));
  }
  return buffers;
}

std::vector<Buffer> trtllm_all_reduce(const RankGroup& group, const Version& version,
                                      bool deterministic) {
  check_group(group);
  if (group.ranks < 2) {
    return {};
  }
  const std::string_view name = group.ranks == 2 ? "trtllm.workspace_of_two" : "trtllm.workspace";
  const Bytes s{deterministic ? 1'000'000'000
                              : kernels::preset_count({kFile, name, version}).value_or(0)};
  return {kept("all-reduce workspace", fmt::format("4 x s={} x n", s.count()),
               s * product(4, group.ranks), Backing::kDriver),
          kept("all-reduce barriers", "n x 256 x 4", Bytes{product(group.ranks, kFlagBytes)},
               Backing::kDriver)};
}

std::vector<Buffer> tensor_group_buffers(const RankGroup& group, const GroupSetup& setup) {
  check_group(group);
  std::vector<Buffer> buffers;
  if (group.ranks < 2) {
    return buffers;
  }
  if (setup.custom) {
    append(buffers, custom_all_reduce(group, setup.engine, setup.symmetric));
  }
  if (setup.symmetric) {
    append(buffers, symmetric_all_reduce(group, setup.engine));
  }
  if (setup.nccl_pool) {
    append(buffers, nccl_symmetric_pool(setup.engine));
  }
  if (setup.fused) {
    FusedAllReduce shape = *setup.fused;
    if (shape.tokens == 0) {
      shape.tokens =
          setup.engine.engine == Engine::kSglang
              ? kSglangFusedTokens
              : vllm_fused_tokens(group, setup.engine.version, shape.hidden, shape.element_bytes)
                    .value_or(0);
    }
    if (shape.tokens > 0) {
      append(buffers, flashinfer_fused(group, shape));
    }
  }
  return buffers;
}

}  // namespace oomcast::comm
