#include "sim/engines/vllm/resident.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/sparse_mla.hpp"

namespace oomcast::vllm {
namespace {

using models::DType;
using models::FfnSpec;

std::int64_t element_bytes(const Deployment& deployment) {
  return models::bits_of(deployment.dtype) / 8;
}

}  // namespace

double profile_sampler_units(const Deployment& deployment) {
  const double half_units =
      deployment.runner_v2 ? deployment.rules.sampler_units_v2 : deployment.rules.sampler_units_v1;
  if (deployment.dtype != DType::kFloat32) {
    return half_units;
  }
  // fp32 logits need no 16-bit original; V1 then copies nothing, V2 copies all the same.
  return deployment.runner_v2 ? half_units + 0.5 : half_units - 0.5;
}

Bytes sampler_buffer(const Deployment& deployment, std::int64_t rows) {
  if (deployment.runner_v2 || !deployment.rules.sampler_buffer_v1) {
    return Bytes{0};
  }
  const auto multiprocessors = static_cast<std::uint64_t>(deployment.gpu.sm_count);
  const auto smaller = std::min(multiprocessors, static_cast<std::uint64_t>(rows));
  const auto programs = std::min(std::bit_ceil(smaller), multiprocessors);
  return Bytes{4} *
         detail::checked_mul(static_cast<std::int64_t>(programs), deployment.model->vocabulary);
}

// MXFP4 experts with FlashInfer's CUTLASS kernels, on GeForce and RTX PRO Blackwell.
bool runs_cutlass_fp4(const Deployment& deployment) {
  return deployment.gpu.compute_major == 12 && deployment.rules.fp4_cutlass_sm120 &&
         deployment.rules.fp4_triton_compute < 12 &&
         deployment.launch.variable("VLLM_MXFP4_USE_MARLIN") != std::optional<std::string>("1");
}

models::Fp4Experts fp4_experts(const Deployment& deployment) {
  const auto& quantization = deployment.model->quantization;
  const int compute = deployment.gpu.compute_major;
  const StartupRules& rules = deployment.rules;
  const auto asks_for = [&](const char* variable) {
    return deployment.launch.variable(variable) == std::optional<std::string>("1");
  };
  if (!quantization || quantization->method != "mxfp4" || compute < 9) {
    return {};  // Marlin
  }
  if (compute == 10) {
    return {.width_multiple = rules.fp4_trtllm_width, .hidden_multiple = 256, .fp32_bias = true};
  }
  if (compute == 9 && asks_for("VLLM_USE_FLASHINFER_MOE_MXFP4_BF16")) {
    return {.width_multiple = 128, .hidden_multiple = 128};
  }
  if (compute > rules.fp4_triton_compute || asks_for("VLLM_MXFP4_USE_MARLIN")) {
    return runs_cutlass_fp4(deployment)
               ? models::Fp4Experts{.width_multiple = 128, .hidden_multiple = 128}
               : models::Fp4Experts{};
  }
  models::Fp4Experts out{.width_multiple = 64, .hidden_multiple = 1, .fp32_bias = true};
  models::Fp4Experts::Swizzle swizzle;
  swizzle.keeps_scales = rules.fp4_triton_keeps_scales;
  if (compute == 9) {
    swizzle.pads_first = rules.fp4_triton_pads;
    swizzle.value_rows = swizzle.pads_first ? 64 : 16;
    swizzle.value_columns = swizzle.pads_first ? 128 : 64;
    swizzle.scale_rows = 256;  // 32 rows a warp, of 8
    swizzle.scale_columns = rules.fp4_triton_scale_columns;
    swizzle.pads_scales = swizzle.scale_columns > 2;  // beyond what the layout does itself
  } else {  // Blackwell's: lines of 128 bytes, scales in tiles
    swizzle.value_columns = 256;
    swizzle.scale_rows = 128;
    swizzle.scale_columns = 8;
  }
  out.swizzle = swizzle;
  return out;
}

bool repacks_fp4(const Deployment& deployment) {
  constexpr Version kFactorSearched{0, 19, 0};  // as the order of the calls is known from there
  constexpr Version kOtherKernels{0, 25, 0};    // for experts (oracle/nvfp4.py)
  const auto& quantization = deployment.model->quantization;
  const Version& version = deployment.launch.version;
  return quantization && quantization->method != "mxfp4" && quantization->weight_float &&
         quantization->weight_bits == 4 && deployment.gpu.compute_major < 10 &&
         version >= kFactorSearched && version < kOtherKernels;
}

kernels::ExpertKernel expert_kernel(const Deployment& deployment) {
  using kernels::ExpertKernel;
  const auto& quantization = deployment.model->quantization;
  const int compute = deployment.gpu.compute_major;
  const TrtllmExperts trtllm =
      compute == 10 ? deployment.rules.trtllm_experts : TrtllmExperts::kNone;
  if (!quantization) {
    return trtllm == TrtllmExperts::kAll ? ExpertKernel::kTrtllmGen : ExpertKernel::kTriton;
  }
  if (quantization->method == "mxfp4") {
    return fp4_experts(deployment).swizzle ? ExpertKernel::kGptOssTriton
           : compute == 10                 ? ExpertKernel::kTrtllmGen
           : runs_cutlass_fp4(deployment)  ? ExpertKernel::kFlashInferCutlass
                                           : ExpertKernel::kMarlin;
  }
  if (quantization->weight_float && trtllm != TrtllmExperts::kNone) {
    return ExpertKernel::kTrtllmGen;
  }
  if (quantization->weight_float && quantization->weight_bits == 4) {
    return compute >= 10 ? ExpertKernel::kFlashInferCutlass : ExpertKernel::kMarlin;
  }
  if (!quantization->weight_float && quantization->weight_bits < 8) {
    return ExpertKernel::kMarlin;
  }
  return ExpertKernel::kTriton;
}

bool runs_trtllm_experts(const Deployment& deployment) {
  return deployment.exchange.kind == Exchange::kNone &&
         expert_kernel(deployment) == kernels::ExpertKernel::kTrtllmGen;
}

Bytes expert_workspace(const Deployment& deployment, const FfnSpec& ffn, Tokens tokens) {
  kernels::ExpertShape shape;
  const ExpertExchange& exchange = deployment.exchange;
  if (exchange.backend == "deep_gemm_mega_moe" || runs_trtllm_experts(deployment)) {
    return Bytes{0};  // all within its symmetric buffer, or the kernel's call
  }
  const auto chunk = kernels::vllm_expert_chunk(deployment.launch.version);
  const auto arriving = static_cast<std::int64_t>(
      std::ceil(exchange.arriving() * static_cast<double>(tokens.count())));
  // Where routing decides what arrives, the profile run makes room for a whole pass.
  const bool any_number = exchange.kind == Exchange::kSparse && chunk.has_value();
  shape.tokens = any_number
                     ? *chunk
                     : std::max<std::int64_t>(1, chunk ? std::min(*chunk, arriving) : arriving);
  shape.experts_per_token = ffn.experts_per_token;
  shape.experts = ffn.experts + deployment.redundant_experts;
  shape.local_experts = div_ceil(shape.experts, deployment.ep);
  shape.hidden = ffn.expert_input(deployment.model->hidden);
  shape.width = local_expert_width(deployment, ffn);
  shape.gated = ffn.gated;
  shape.element_bytes = element_bytes(deployment);
  if (exchange.kind == Exchange::kBatched) {
    return device_bytes(kernels::vllm_batched_expert_workspace(shape, exchange.shape.tokens,
                                                               exchange.shape.ranks)) *
           deployment.micro_batches;
  }
  // One for each part of a batch.
  return device_bytes(kernels::vllm_expert_workspace(shape, expert_kernel(deployment))) *
         deployment.micro_batches;
}

Bytes sparse_workspace(const Deployment& deployment) {
  constexpr std::int64_t kPrompts = 4;
  constexpr std::int64_t kScaleBytes = 4;
  constexpr std::int64_t kLatentBytes = 2;
  const std::int64_t length = deployment.max_model_len.count();
  Bytes largest;
  for (const models::LayerSpec& layer : deployment.model->layer_kinds) {
    const models::AttentionSpec& attention = layer.attention;
    const models::CompressedSpec& sizes = attention.compressed;
    if (attention.kind != models::AttentionKind::kCompressed) {
      continue;
    }
    if (deployment.attention_backend.rfind("FLASHINFER", 0) != 0) {
      const std::int64_t entries = sizes.ratio > 0 ? div_ceil(length, sizes.ratio) : 0;
      const std::int64_t gathered =
          entries + attention.window.count() + deployment.max_num_batched_tokens.count();
      largest = std::max(
          largest, Bytes{detail::checked_mul(kPrompts * gathered, sizes.latent * kLatentBytes)});
    }
    if (sizes.indexer_heads > 0) {
      const std::int64_t keys = indexed_tokens(deployment) / sizes.ratio;
      largest =
          std::max(largest, Bytes{detail::checked_mul(keys, sizes.indexer_dim + kScaleBytes)});
    }
  }
  return largest;
}

bool keeps_expert_workspace(const Deployment& deployment) {
  const ExpertWorkspaces rule = deployment.rules.keeps_expert_workspace;
  const Exchange exchange = deployment.exchange.kind;
  const bool dispatched = exchange == Exchange::kSparse || exchange == Exchange::kBatched;
  return rule == ExpertWorkspaces::kAlways || (rule == ExpertWorkspaces::kDispatched && dispatched);
}

Bytes shared_workspace(const Deployment& deployment) {
  Bytes largest = sparse_workspace(deployment);
  if (deployment.rules.keeps_gathered_keys) {
    largest = std::max(largest, gathered_keys(deployment));
  }
  if (keeps_expert_workspace(deployment)) {
    for (const models::LayerSpec& layer : deployment.model->layer_kinds) {
      if (layer.ffn.kind == models::FfnKind::kMoe) {
        largest = std::max(
            largest, expert_workspace(deployment, layer.ffn, deployment.max_num_batched_tokens));
      }
    }
  }
  return largest;
}

std::vector<opgraph::TensorInfo> delta_net_buffers(const Deployment& deployment,
                                                   const models::StateSpec& state) {
  const std::int64_t heads = div_ceil(state.heads, deployment.tp);
  const Bytes states = models::bytes_of(
      DType::kFloat32, detail::checked_mul(heads, state.head_rows * state.head_columns));
  std::vector<opgraph::TensorInfo> buffers;
  const auto add = [&](const char* name, const char* formula, Bytes bytes) {
    opgraph::TensorInfo buffer{name, formula, Leaf::kWorkspaceAttention,
                               opgraph::Affine::fixed(bytes)};
    buffer.kept = true;
    buffers.push_back(std::move(buffer));
  };
  // A larger workspace of the experts serves as well.
  const Bytes checkpoints = deployment.checkpoints_prefills()
                                ? states * div_ceil(deployment.max_num_batched_tokens.count(),
                                                    deployment.block_size.count())
                                : Bytes{0};
  Bytes experts;
  for (int i = 0; i < deployment.model->layer_count(); ++i) {
    const FfnSpec& ffn = deployment.model->layer(i).ffn;
    if (ffn.kind == models::FfnKind::kMoe) {
      experts = expert_workspace(deployment, ffn, deployment.max_num_batched_tokens);
      break;
    }
  }
  if (checkpoints > experts) {
    add("states at checkpoints", "ceil(T/block) x heads x rows x columns x 4", checkpoints);
  }
  // FlashInfer's own, for a first run of one chunk (gdn_kernels/delta_rule_dsl).
  constexpr std::int64_t kChunk = 64;
  constexpr std::int64_t kPerProcessor = 128;
  add("delta net's chunk", "heads x 64 x 64 x b",
      Bytes{heads * kChunk * kChunk * element_bytes(deployment)});
  for (const char* name : {"delta net's keys", "delta net's values", "delta net's states"}) {
    add(name, "heads x rows x columns x 4", states);
  }
  for (const char* name : {"delta net's descriptors", "delta net's descriptors, whole"}) {
    add(name, "SMs x 128", Bytes{deployment.gpu.sm_count * kPerProcessor});
  }
  return buffers;
}

bool uses_cublas(const Deployment& deployment) {
  const auto& quantization = deployment.model->quantization;
  return !quantization || quantization->weight_float || quantization->weight_bits > 8;
}

bool quantises_activations(const Deployment& deployment) {
  if (deployment.launch.text("quantization") == std::optional<std::string>("fp8")) {
    return true;
  }
  const auto& quantization = deployment.model->quantization;
  if (!quantization) {
    return false;
  }
  return quantization->method == "fp8" || quantization->method == "fbgemm_fp8" ||
         (quantization->method == "modelopt" && quantization->format == "FP8") ||
         (quantization->method == "compressed-tensors" && quantization->weight_bits == 8 &&
          quantization->format != "pack-quantized");
}

std::int64_t local_expert_width(const Deployment& deployment, const models::FfnSpec& ffn) {
  return deployment.ep > 1 ? ffn.expert_width : div_ceil(ffn.expert_width, deployment.tp);
}

bool splits_keys(const Deployment& deployment) {
  return deployment.gpu.compute_major == 9 && has_full(deployment.cudagraph_mode) &&
         deployment.attention_backend.rfind("FLASH_ATTN", 0) == 0;
}

std::int64_t mla_workspace_tokens(const Deployment& deployment) {
  constexpr std::int64_t kMost = 65'536;
  const std::int64_t least =
      detail::checked_mul(deployment.max_num_seqs, deployment.block_size.count());
  const std::int64_t wanted =
      std::max(8 * deployment.max_model_len.count(), detail::checked_mul(4, least));
  return std::max(std::min(wanted, kMost), least);
}

namespace {

class Buffers {
 public:
  void add(const char* name, const char* formula, std::int64_t bytes) {
    tensors_.push_back({name, formula, "", Leaf::kModelBuffers, Bytes{bytes}});
  }
  std::vector<opgraph::LiveTensor> take() { return std::move(tensors_); }

 private:
  std::vector<opgraph::LiveTensor> tensors_;
};

}  // namespace

std::vector<opgraph::LiveTensor> runner_buffers(const Deployment& deployment, StageRole role) {
  const std::int64_t tokens = deployment.max_num_batched_tokens.count();
  const std::int64_t seqs = deployment.max_num_seqs;
  const std::int64_t hidden = deployment.model->hidden;
  const std::int64_t b = element_bytes(deployment);
  Buffers buffers;
  if (deployment.runner_v2) {
    buffers.add("input_ids, positions", "T x (4 + 8)", tokens * 12);
    if (deployment.speculation && deployment.speculation->name.rfind("ngram", 0) == 0) {
      // Else pinned in host memory (gpu/states.py).
      buffers.add("all tokens, which drafts are looked for in", "N x L x 4",
                  detail::checked_mul(seqs * 4, deployment.max_model_len.count()));
    }
    buffers.add("last tokens, query starts, lengths", "N x (8 + 4 + 7 x 4)", seqs * 40);
  } else {
    buffers.add("input_ids, positions, request indices, places, which are tokens",
                "T x (4 + 3 x 8 + 1)", tokens * 29);
    buffers.add("sampling parameters, query starts, lengths", "N x (5 x 8 + 6 x 4)", seqs * 64);
  }
  if (deployment.speculation && deployment.speculation->method != SpecDecode::Method::kNgram &&
      role.last) {
    // The first runner's drafter has a buffer of embeddings too, whatever it is fed with
    // (spec_decode/eagle.py).
    constexpr Version kEmbeddings{0, 10, 2};
    const bool embeddings = !deployment.runner_v2 && deployment.launch.version >= kEmbeddings;
    buffers.add("drafter's inputs and hidden states", "T x (4 + 8 + H x b)",
                detail::checked_mul(tokens, 12 + hidden * b));
    if (embeddings) {
      buffers.add("drafter's inputs_embeds", "T x H x b", detail::checked_mul(tokens, hidden) * b);
    }
  }
  if (!deployment.runner_v2) {
    buffers.add("inputs_embeds", "T x H x b", detail::checked_mul(tokens, hidden) * b);
  } else if (!role.last) {
    buffers.add("hidden states for the next stage", "T x H x b",
                detail::checked_mul(tokens, hidden) * b);
  }
  return buffers.take();
}

std::vector<opgraph::LiveTensor> sampling_states(const Deployment& deployment, StageRole role) {
  Buffers states;
  if (!deployment.runner_v2) {
    return states.take();
  }
  const std::int64_t seqs = deployment.max_num_seqs;
  const std::int64_t vocabulary = deployment.model->vocabulary;
  const std::int64_t words = div_ceil(vocabulary, 32);
  const auto& ropes = deployment.model->ropes;
  if (std::any_of(ropes.begin(), ropes.end(),
                  [](const models::RopeSpec& rope) { return rope.multimodal; })) {
    states.add("multimodal positions", "3 x (T + 1) x 8",
               24 * (deployment.max_num_batched_tokens.count() + 1));
  }
  if (deployment.takes_embeddings() && role.first) {
    states.add(
        "inputs_embeds", "T x H x b",
        detail::checked_mul(deployment.max_num_batched_tokens.count(), deployment.model->hidden) *
            element_bytes(deployment));
  }
  if (!role.last) {
    return states.take();
  }
  // What a request may ask for at most (logit_bias.py, bad_words.py, logprob.py).
  constexpr std::int64_t kTokens = 1024;
  constexpr std::int64_t kFewTokens = 128;
  states.add("prompt's tokens", "N x ceil(V/32) x 4", detail::checked_mul(seqs * 4, words));
  states.add("penalty counts", "N x V x 4", detail::checked_mul(seqs * 4, vocabulary));
  for (const char* name : {"allowed tokens", "tokens with a bias", "biases"}) {
    states.add(name, "N x 1024 x 4", seqs * 4 * kTokens);
  }
  states.add("stop tokens", "N x 128 x 4", seqs * 4 * kFewTokens);
  states.add("bad words", "N x 1024 x 4", seqs * 4 * kTokens);
  states.add("ends of bad words", "N x 129 x 4", seqs * 4 * (kFewTokens + 1));
  states.add("tokens with log-probabilities", "N x 128 x 4", seqs * 4 * kFewTokens);
  // A row for each token that a step checks.
  const std::int64_t checked = detail::checked_mul(seqs, deployment.decode_tokens());
  states.add("rows with a grammar", "N (1 + drafts) x 4", checked * 4);
  states.add("grammar bitmask", "N (1 + drafts) x ceil(V/32) x 4",
             detail::checked_mul(checked * 4, words));
  return states.take();
}

std::vector<opgraph::LiveTensor> block_tables(const Deployment& deployment,
                                              const KvLayout& layout) {
  const std::int64_t seqs = deployment.max_num_seqs;
  std::vector<opgraph::LiveTensor> tables;
  for (const KvGroupLayout& member : layout.groups) {
    // Rows are padded so that a row's slots align to 128 tokens.
    constexpr std::int64_t kAlignment = 128;
    const std::int64_t block = member.group.block_size.count();
    const std::int64_t width = align_up(div_ceil(deployment.max_model_len.count(), block),
                                        kAlignment / std::gcd(kAlignment, block));
    const std::int64_t copies = (deployment.runner_v2 ? 2 : 1) * deployment.micro_batches;
    tables.push_back(
        {"block table",
         copies > 1 ? fmt::format("{} x N x ceil(L/block) x 4", copies) : "N x ceil(L/block) x 4",
         "", Leaf::kKvMetadata, Bytes{4} * detail::checked_mul(seqs * copies, width)});
    tables.push_back({"slot mapping", "T x 8", "", Leaf::kKvMetadata,
                      Bytes{8} * deployment.max_num_batched_tokens.count()});
  }
  return tables;
}

}  // namespace oomcast::vllm
