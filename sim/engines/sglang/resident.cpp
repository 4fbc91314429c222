#include "sim/engines/sglang/resident.hpp"

#include <algorithm>
#include <cmath>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/compressed_pools.hpp"
#include "sim/kernels/attention.hpp"
#include "sim/kernels/preset.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;
using models::KvLayerSpec;

constexpr std::int64_t kInt32 = 4;
constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kFloat = 4;

std::int64_t element_bytes(const Deployment& deployment) {
  return models::bits_of(deployment.dtype) / 8;
}

class List {
 public:
  void add(const char* name, const char* formula, Leaf leaf, Bytes bytes) {
    if (bytes > Bytes{0}) {
      tensors_.push_back({name, formula, "", leaf, bytes});
    }
  }
  void add(const opgraph::LiveTensor& tensor) { tensors_.push_back(tensor); }
  Tensors take() { return std::move(tensors_); }

 private:
  Tensors tensors_;
};

bool caches_tokens(const KvLayerSpec& layer) { return !models::has_state(layer.kind); }

// Slots are counted from one page on: page 0 takes padded writes.
Bytes layer_pool(const Deployment& deployment, const CachePlan& plan, const KvLayerSpec& layer) {
  const Tokens slots =
      (in_window_pool(deployment, layer) ? plan.window_tokens : plan.tokens) + deployment.page_size;
  return Bytes{std::llround(token_bytes(deployment, layer) * static_cast<double>(slots.count()))};
}

Bytes indexer_keys(const Deployment& deployment, const CachePlan& plan, const KvLayerSpec& layer) {
  return Bytes{layer.indexer_bytes} * (plan.tokens + deployment.page_size).count();
}

void add_state(List& list, const Deployment& deployment, const CachePlan& plan,
               const std::vector<KvLayerSpec>& layers) {
  const std::int64_t slots = plan.state_slots + 1;  // one takes padded writes
  Bytes conv;
  Bytes recurrent;
  for (const KvLayerSpec& layer : layers) {
    if (!caches_tokens(layer)) {
      conv += models::bytes_of(deployment.dtype, layer.conv_elements) * slots;
      recurrent += models::bytes_of(layer.recurrent_dtype.value_or(deployment.dtype),
                                    layer.recurrent_elements) *
                   slots;
    }
  }
  list.add("convolution states", "L x (slots + 1) x conv", Leaf::kKvPool, conv);
  list.add("recurrent states", "L x (slots + 1) x state", Leaf::kKvPool, recurrent);
  if (deployment.speculation) {
    // One for each token that a verification may accept.
    const std::int64_t drafts = deployment.speculation->draft_tokens * (plan.max_running + 1);
    const Bytes one{(conv + recurrent).count() / slots};
    list.add("recurrent states of drafts", "L x (requests + 1) x drafts x state", Leaf::kKvPool,
             one * drafts);
  }
}

void add_layers(List& list, const Deployment& deployment, const CachePlan& plan,
                const std::vector<KvLayerSpec>& layers, bool of_window) {
  for (const KvLayerSpec& layer : layers) {
    if (!caches_tokens(layer) || in_window_pool(deployment, layer) != of_window) {
      continue;
    }
    const Bytes both = layer_pool(deployment, plan, layer);
    if (layer.kind == AttentionKind::kMla) {
      list.add("latents of a layer", "(T + P) x (latent + rope) x e", Leaf::kKvPool,
               both - indexer_keys(deployment, plan, layer));
    } else if (deployment.rules.shared_kv_storage) {
      list.add("KV of a layer", "(T + P) x heads x (dk + dv) x e", Leaf::kKvPool, both);
    } else {
      list.add("K of a layer", "(T + P) x heads x dk x e", Leaf::kKvPool, Bytes{both.count() / 2});
      list.add("V of a layer", "(T + P) x heads x dv x e", Leaf::kKvPool,
               Bytes{both.count() - both.count() / 2});
    }
  }
  for (const KvLayerSpec& layer : layers) {
    if (layer.kind == AttentionKind::kMla && in_window_pool(deployment, layer) == of_window) {
      list.add("keys of a layer's indexer", "(T + P) x (key + scales)", Leaf::kKvPool,
               indexer_keys(deployment, plan, layer));
    }
  }
}

bool uses(const Deployment& deployment, const char* backend) {
  return deployment.prefill_backend == backend || deployment.decode_backend == backend;
}

// Widest heads of one rank among layers of the window pool, or among the others.
struct HeadShape {
  std::int64_t heads = 0;
  std::int64_t value_dim = 0;
};
HeadShape widest_heads(const Deployment& deployment, bool of_window) {
  HeadShape shape;
  for (const models::LayerSpec& layer : deployment.model->layer_kinds) {
    const models::AttentionSpec& attention = layer.attention;
    const bool window = models::has_window(attention.kind);
    if (attention.heads == 0 || models::has_state(attention.kind) ||
        (of_window && !(window && deployment.window_pool))) {
      continue;
    }
    const std::int64_t width =
        attention.kind == AttentionKind::kMla ? attention.mla.kv_lora_rank : attention.v_head_dim;
    if (width > shape.value_dim || of_window) {
      shape = {div_ceil(attention.heads, deployment.attention_tp()), width};
    }
  }
  return shape;
}

Bytes workspace(const Deployment& deployment, const char* name) {
  return kernels::preset_bytes({.file = "kernels/attention.json",
                                .name = name,
                                .version = deployment.launch.version,
                                .gpu = &deployment.gpu})
      .value_or(Bytes{0});
}

// FlashInfer plans full and windowed layers apart: of wrappers for paged prefill, verification and
// decode there is one for each; ragged prefill has one (layers/attention/flashinfer_backend.py).
std::int64_t flashinfer_windows(const Deployment& deployment) {
  const bool windows = deployment.window_pool &&
                       models::has_attention(*deployment.model, AttentionKind::kSlidingWindow);
  return windows ? 2 : 1;
}

// FlashInferAttnBackend sets its size by architecture, and for batch-invariant kernels.
const char* flashinfer_workspace(const Deployment& deployment) {
  if (deployment.launch.on("enable-deterministic-inference")) {
    return "sglang.flashinfer_deterministic";
  }
  return models::named(deployment.rules.flashinfer_large, *deployment.model)
             ? "sglang.flashinfer_large"
             : "sglang.flashinfer";
}

constexpr Bytes kFlashInferPlan{std::int64_t{8} << 20};

std::int64_t pages_of_context(const Deployment& deployment) {
  return div_ceil(deployment.max_model_len.count(), deployment.page_size.count());
}

Bytes page_table(const Deployment& deployment, std::int64_t batch) {
  return Bytes{kInt32} * detail::checked_mul(batch, pages_of_context(deployment));
}

}  // namespace

Tensors pools(const Deployment& deployment, const CachePlan& plan, int stage) {
  List list;
  const std::vector<KvLayerSpec> layers = deployment.kv_layers(stage);
  list.add("request to token", "R x (C + extra) x 4", Leaf::kKvMetadata,
           Bytes{kInt32} * detail::checked_mul(plan.rows, deployment.max_model_len.count() +
                                                              deployment.extra_columns()));
  if (plan.state_slots > 0) {
    add_state(list, deployment, plan, layers);
  }
  if (has_compressed(*deployment.model)) {
    for (const opgraph::LiveTensor& tensor : compressed_pools(deployment, plan, stage)) {
      list.add(tensor);
    }
  } else {
    add_layers(list, deployment, plan, layers, false);
    add_layers(list, deployment, plan, layers, true);
  }
  const std::int64_t page = deployment.page_size.count();
  if (plan.window_tokens > Tokens{0}) {
    list.add("full to window slots", "(T + P + 1) x 8", Leaf::kKvMetadata,
             Bytes{kInt64} * (plan.tokens.count() + page + 1));
  }
  list.add("free slots", "T / P x 8", Leaf::kKvMetadata,
           Bytes{kInt64} * (plan.tokens.count() / page));
  list.add("free window slots", "T / P x 8", Leaf::kKvMetadata,
           Bytes{kInt64} * (plan.window_tokens.count() / page));
  return list.take();
}

Tensors draft_pools(const Deployment& deployment, const CachePlan& plan, int stage) {
  List list;
  if (deployment.loads_draft(stage) && !has_compressed(*deployment.model)) {
    for (const KvLayerSpec& layer :
         models::draft_kv_layers(*deployment.model, deployment.shard(stage))) {
      if (caches_tokens(layer)) {
        list.add("KV of a draft layer", "(T + P) x heads x (dk + dv) x e", Leaf::kKvPool,
                 layer_pool(deployment, plan, layer));
      }
    }
  }
  return list.take();
}

Bytes kv_pool_bytes(const Deployment& deployment, const CachePlan& plan, int stage) {
  Bytes sum;
  if (has_compressed(*deployment.model)) {
    for (const opgraph::LiveTensor& tensor : compressed_pools(deployment, plan, stage)) {
      sum += tensor.bytes;
    }
    return sum;
  }
  for (const KvLayerSpec& layer : deployment.kv_layers(stage)) {
    if (caches_tokens(layer)) {
      sum += layer_pool(deployment, plan, layer);
    }
  }
  return sum;
}

Bytes state_pool_bytes(const Deployment& deployment, const CachePlan& plan, int stage) {
  return plan.state_slots == 0 ? Bytes{0}
                               : cache_sizes(deployment, stage).state * (plan.state_slots + 1);
}

Tensors attention_workspaces(const Deployment& deployment) {
  List list;
  // TensorRT-LLM's backends derive from FlashInfer's and make all that those make before their own
  // (layers/attention/trtllm_mha_backend.py, trtllm_mla_backend.py). The workspace is shared.
  const std::int64_t wrappers = 1 + 3 * flashinfer_windows(deployment);
  std::int64_t plans = 0;
  for (const char* const backend : {"flashinfer", "trtllm_mha", "trtllm_mla"}) {
    plans += uses(deployment, backend) ? wrappers : 0;
  }
  if (plans > 0) {
    list.add("FlashInfer workspace", "measured", Leaf::kWorkspaceAttention,
             workspace(deployment, flashinfer_workspace(deployment)));
  }
  for (std::int64_t i = 0; i < plans; ++i) {
    list.add("FlashInfer plan", "8 MiB", Leaf::kWorkspaceAttention, kFlashInferPlan);
  }
  if (uses(deployment, "trtllm_mha")) {
    list.add("TRT-LLM attention workspace", "measured", Leaf::kWorkspaceAttention,
             workspace(deployment, "sglang.trtllm_mha"));
  }
  if (uses(deployment, "trtllm_mla")) {
    list.add("TRT-LLM MLA workspace", "measured", Leaf::kWorkspaceAttention,
             workspace(deployment, "sglang.trtllm_mla"));
  }
  list.add("cuBLAS workspace", "by GPU generation", Leaf::kWorkspaceGemm,
           deployment.cublas_workspace);
  return list.take();
}

Tensors input_registry(const Deployment& deployment, const CachePlan& plan) {
  List list;
  if (deployment.rules.input_registry) {
    const Bytes one = Bytes{kInt64} * plan.tokens.count();
    list.add("input ids", "T x 8", Leaf::kModelBuffers, one);
    list.add("positions", "T x 8", Leaf::kModelBuffers, one);
    list.add("output slots", "T x 8", Leaf::kModelBuffers, one);
    list.add("multimodal positions", "3 x T x 8", Leaf::kModelBuffers, one * 3);
  }
  return list.take();
}

Tensors logits_buffer(const Deployment& deployment, std::int64_t largest_batch) {
  List list;
  list.add("logits, fp32", "B x V x 4", Leaf::kGraphStaticIo,
           Bytes{kFloat} * detail::checked_mul(largest_batch, deployment.model->vocabulary));
  return list.take();
}

Tensors prefill_inputs(const Deployment& deployment, const CachePlan& plan) {
  List list;
  const std::int64_t tokens = deployment.prefill_sizes.back();
  constexpr std::int64_t kTokenInputs = 3;    // ids, slots, positions
  constexpr std::int64_t kRequestInputs = 6;  // lengths, prefixes, starts, rows
  for (std::int64_t i = 0; i < kTokenInputs; ++i) {
    list.add("prefill input", "S x 8", Leaf::kGraphStaticIo, Bytes{kInt64} * tokens);
  }
  for (std::int64_t i = 0; i < kRequestInputs; ++i) {
    list.add("prefill request input", "requests x 8", Leaf::kGraphStaticIo,
             Bytes{kInt64} * plan.max_running);
  }
  if (!deployment.model->towers.empty()) {
    list.add(
        "embeddings of prompts", "S x H x b", Leaf::kGraphStaticIo,
        Bytes{element_bytes(deployment)} * detail::checked_mul(tokens, deployment.model->hidden));
    list.add("multimodal positions", "3 x S x 8", Leaf::kGraphStaticIo, Bytes{kInt64} * tokens * 3);
  }
  return list.take();
}

namespace {

// What the kernels of a captured step read of their batch. Speculation adds tables for drafts, for
// their verification and for extending them by what was accepted (init_cuda_graph_state of each
// backend).
void add_attention_inputs(List& list, const Deployment& deployment, std::int64_t batch) {
  const Bytes table = page_table(deployment, batch);
  const Bytes whole_table =
      Bytes{kInt32} * detail::checked_mul(batch, deployment.max_model_len.count());
  if (deployment.decode_backend == "fa3" || deployment.decode_backend == "fa4" ||
      deployment.decode_backend == "trtllm_mha" || deployment.decode_backend == "flashmla" ||
      deployment.decode_backend == "trtllm_mla" || deployment.decode_backend == "dsa") {
    const bool speculates = deployment.speculation && deployment.decode_backend == "fa3";
    if (deployment.decode_backend == "dsa") {
      list.add("slot table", "B x C x 4", Leaf::kGraphStaticIo, whole_table);
    }
    list.add("page table", "B x ceil(C / P) x 4", Leaf::kGraphStaticIo, table);
    if (deployment.rules.draft_page_table || speculates) {
      list.add("page table of drafts", "B x ceil(C / P) x 4", Leaf::kGraphStaticIo, table);
    }
    if (deployment.decode_backend == "fa3" && deployment.rules.encoder_page_table) {
      list.add("page table of an encoder", "B x C x 4", Leaf::kGraphStaticIo, whole_table);
    }
    constexpr std::int64_t kOfDrafts = 2;  // verified, extended
    for (std::int64_t i = 0; i < 1 + (speculates ? kOfDrafts : 0); ++i) {
      if (i > 0) {
        list.add("page table of drafts", "B x ceil(C / P) x 4", Leaf::kGraphStaticIo, table);
      }
      if (deployment.window_pool) {
        list.add("window page table", "B x ceil(C / P) x 4", Leaf::kGraphStaticIo, table);
      }
      list.add("page indices", "ceil(C / P) x 8", Leaf::kGraphStaticIo,
               Bytes{kInt64} * pages_of_context(deployment));
    }
  } else if (deployment.decode_backend == "triton") {
    const std::int64_t splits =
        deployment.launch.integer("triton-attention-num-kv-splits").value_or(8);
    for (const bool of_window : {false, true}) {
      const HeadShape shape = widest_heads(deployment, of_window);
      list.add("partial attention", "B x heads x splits x dv x 4", Leaf::kGraphStaticIo,
               Bytes{kFloat} * detail::checked_mul(detail::checked_mul(batch, splits),
                                                   shape.heads * shape.value_dim));
    }
    list.add("KV indices", "B x C x 8", Leaf::kGraphStaticIo, whole_table * 2);
  } else if (deployment.decode_backend == "flashinfer") {
    for (std::int64_t i = 0; i < flashinfer_windows(deployment); ++i) {
      list.add("KV indices", "B x C x 4", Leaf::kGraphStaticIo, whole_table);
    }
  }
}

Bytes hidden_rows(const Deployment& deployment, std::int64_t rows) {
  return Bytes{element_bytes(deployment)} * detail::checked_mul(rows, deployment.model->hidden);
}

}  // namespace

Tensors decode_inputs(const Deployment& deployment, std::int64_t largest_batch) {
  List list;
  list.add("input embeddings", "B x H x b", Leaf::kGraphStaticIo,
           hidden_rows(deployment, largest_batch * deployment.tokens_per_decode()));
  add_attention_inputs(list, deployment, largest_batch);
  return list.take();
}

Tensors draft_inputs(const Deployment& deployment, std::int64_t largest_batch) {
  List list;
  for (std::int64_t step = 1; step < deployment.speculation->steps; ++step) {
    add_attention_inputs(list, deployment, largest_batch);
  }
  list.add("hidden states of drafts", "B x H x b", Leaf::kGraphStaticIo,
           hidden_rows(deployment, largest_batch));
  return list.take();
}

Tensors draft_extend_inputs(const Deployment& deployment, std::int64_t largest_batch) {
  List list;
  add_attention_inputs(list, deployment, largest_batch);
  list.add("hidden states of drafts", "B x drafts x H x b", Leaf::kGraphStaticIo,
           hidden_rows(deployment, largest_batch * deployment.tokens_per_decode()));
  return list.take();
}

Tensors decode_metadata(const Deployment& deployment, std::int64_t batch) {
  List list;
  if (deployment.decode_backend == "fa3" && deployment.rules.copied_page_tables) {
    list.add("page table of a graph", "B x ceil(C / P) x 4", Leaf::kGraphStaticIo,
             page_table(deployment, batch));
  }
  if (deployment.decode_backend == "flashinfer" && !has_mla(*deployment.model)) {
    for (std::int64_t i = 0; i < flashinfer_windows(deployment); ++i) {
      list.add("FlashInfer plan of a graph", "8 MiB", Leaf::kWorkspaceAttention, kFlashInferPlan);
    }
  }
  return list.take();
}

}  // namespace oomcast::sglang
