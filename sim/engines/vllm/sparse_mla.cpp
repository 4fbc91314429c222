#include "sim/engines/vllm/sparse_mla.hpp"

#include <algorithm>
#include <initializer_list>

#include "models/dtype.hpp"

namespace oomcast::vllm {
namespace {

using models::DType;

constexpr std::int64_t kLatentBytes = 2;
constexpr std::int64_t kScaleBytes = 4;

const models::AttentionSpec* indexed(const models::ModelSpec& model) {
  for (const models::LayerSpec& layer : model.layer_kinds) {
    if (layer.attention.mla.indexer_heads > 0) {
      return &layer.attention;
    }
  }
  return nullptr;
}

std::int64_t heads_of(const Deployment& deployment, const models::AttentionSpec& attention) {
  return std::max<std::int64_t>(1, attention.heads / deployment.tp);
}

// On Blackwell's data centre cards.
bool flashinfer_comes_first(const Deployment& deployment, const models::AttentionSpec& attention) {
  constexpr std::int64_t kFewHeads = 16;
  constexpr std::int64_t kFirstWidth = 128;
  constexpr std::int64_t kSecondWidth = 192;
  const bool few = heads_of(deployment, attention) <= kFewHeads;
  const bool narrow = attention.mla.nope_dim == kFirstWidth;
  const bool fp8 = deployment.kv_dtype == DType::kFloat8;
  if (deployment.launch.text("kv-cache-dtype") == std::optional<std::string>("fp8_ds_mla")) {
    return false;
  }
  switch (deployment.rules.sparse_flashinfer) {
    case SparseFlashInfer::kNever:
      return false;
    case SparseFlashInfer::kFewHeadsIn16Bits:
      return few && narrow && !fp8;
    case SparseFlashInfer::kFewHeads:
      return few && narrow;
    case SparseFlashInfer::kFewHeadsOrFp8:
      return (few || fp8) && (narrow || attention.mla.nope_dim == kSecondWidth);
  }
  return false;
}

std::int64_t context_factor(const Deployment& deployment) {
  constexpr std::int64_t kUsual = 5;
  constexpr std::int64_t kLong = 256 * 1024;
  return deployment.max_model_len.count() > kLong ? deployment.rules.sparse_context_factor_long
                                                  : kUsual;
}

Bytes granules(std::initializer_list<Bytes> buffers) {
  constexpr std::int64_t kGranule = 256;  // of each in the one workspace (v1/worker/workspace.py)
  Bytes sum;
  for (const Bytes buffer : buffers) {
    sum += Bytes{align_up(buffer.count(), kGranule)};
  }
  return sum;
}

}  // namespace

bool has_indexer(const models::ModelSpec& model) { return indexed(model) != nullptr; }

std::string sparse_mla_backend(const Deployment& deployment) {
  const models::AttentionSpec* attention = indexed(*deployment.model);
  switch (deployment.gpu.compute_major) {
    case 9:
      return deployment.rules.sparse_flash_attention && deployment.kv_dtype != DType::kFloat8
                 ? "FLASH_ATTN_MLA_SPARSE"
                 : "FLASHMLA_SPARSE";
    case 10:
      return attention != nullptr && flashinfer_comes_first(deployment, *attention)
                 ? "FLASHINFER_MLA_SPARSE"
                 : "FLASHMLA_SPARSE";
    case 12:
      return deployment.rules.sparse_sm120 ? "FLASHINFER_MLA_SPARSE_SM120" : "FLASHMLA_SPARSE";
    default:
      return "FLASHMLA_SPARSE";
  }
}

bool packs_sparse_latents(const Deployment& deployment) {
  return deployment.attention_backend == "FLASHINFER_MLA_SPARSE_SM120" ||
         (deployment.attention_backend == "FLASHMLA_SPARSE" &&
          deployment.kv_dtype == DType::kFloat8);
}

Bytes sparse_mla_buffers(const Deployment& deployment) {
  const models::AttentionSpec* attention = indexed(*deployment.model);
  if (attention == nullptr || deployment.attention_backend != "FLASHMLA_SPARSE") {
    return Bytes{0};
  }
  const SparseBuffers rule = deployment.rules.sparse_buffers;
  const std::int64_t tokens = deployment.max_num_batched_tokens.count();
  const std::int64_t heads = heads_of(deployment, *attention);
  const std::int64_t latent = attention->mla.kv_lora_rank;
  const std::int64_t width = latent + attention->mla.rope_dim;
  const auto of = [&](std::int64_t rows, std::int64_t columns) {
    return Bytes{detail::checked_mul(detail::checked_mul(rows, columns), kLatentBytes)};
  };
  const bool queries = rule == SparseBuffers::kQueries || rule == SparseBuffers::kPadded;
  Bytes sum = queries ? granules({of(tokens * heads, width)}) : Bytes{0};
  if (!packs_sparse_latents(deployment) || rule == SparseBuffers::kNone) {
    return sum;
  }
  sum += granules({of(deployment.max_model_len.count() * context_factor(deployment), width)});
  if (rule == SparseBuffers::kPadded) {
    constexpr std::int64_t kPadding = 64;
    const std::int64_t padded = tokens * align_up(heads, kPadding);
    sum += granules({of(padded, width), of(padded, latent), of(tokens * heads, latent)});
  }
  return sum;
}

std::int64_t indexed_tokens(const Deployment& deployment) {
  constexpr std::int64_t kKeysPerLatent = 8;  // 576 x 2 // 132, whatever the widths
  return detail::checked_mul(deployment.max_model_len.count(),
                             kKeysPerLatent * context_factor(deployment));
}

Bytes gathered_keys(const Deployment& deployment) {
  const models::AttentionSpec* attention = indexed(*deployment.model);
  if (attention == nullptr) {
    return Bytes{0};
  }
  const std::int64_t keys = indexed_tokens(deployment);
  return granules({Bytes{detail::checked_mul(keys, attention->mla.indexer_dim)},
                   Bytes{detail::checked_mul(keys, kScaleBytes)},
                   deployment.rules.radix_selection ? kMiB : Bytes{0}});
}

}  // namespace oomcast::vllm
