// Bytes of a model's tensors on one rank.
//
// Rules (vLLM's; sources in the facts pages "models" and "vllm"): column- and row-parallel linears
// divide evenly; KV heads are replicated when tp exceeds them; the vocabulary is padded to a
// multiple of 64 before it is divided; norms and routers are whole on every rank; pipeline stages
// get layers / pp layers each, the remainder going one by one to the stages before the last; a tied
// embedding lies on the first and on the last stage; rope tables are made once per rank and
// distinct rope, at the first layer using it, and count as weights in the engine's log.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec.hpp"
#include "sim/core/units.hpp"
#include "sim/core/version.hpp"

namespace oomcast::models {

// How the kernel of MXFP4 experts (gpt-oss, DeepSeek V4) keeps them. Sizes are those of one rank.
struct Fp4Experts {
  // Created with these multiples of the experts' width and of the hidden size (Marlin: its tiles).
  std::int64_t width_multiple = 128;
  std::int64_t hidden_multiple = 256;
  bool fp32_bias = false;
  // Rearranged after loading [rows, columns], columns along the summed dimension (Triton's
  // layouts).
  struct Swizzle {
    std::int64_t value_rows = 1;
    std::int64_t value_columns = 1;  // elements
    std::int64_t scale_rows = 1;
    std::int64_t scale_columns = 1;  // scales, one per 32 elements
    bool pads_first = false;         // one more copy: both dimensions are padded before
    bool pads_scales = false;        // the same of the scales
    bool canonical = false;          // copied into a canonical order first (triton_kernels 3.8)
    bool keeps_scales = false;       // the scales as loaded stay beside their rearranged copy
  };
  std::optional<Swizzle> swizzle = std::nullopt;
};

// Room for adapters beside every linear of the layers (facts "vllm" 3.8): down [slots, rank, in]
// for each fused part, up [slots, out, rank]. For models that name them, beside embedding and head
// too, of the whole vocabulary on every rank (vLLM lora/layers/vocal_parallel_embedding.py,
// logits_processor.py).
struct LoraSlots {
  std::int64_t slots = 1;
  std::int64_t rank = 16;
  DType dtype = DType::kBFloat16;
  bool fully_sharded = false;  // the side that tensor parallelism leaves whole is divided by rank
  bool embeddings = false;
  bool tied_embedding_twice = false;  // where the head is the same module under another name
};

// How an engine keeps the indexer of sparse attention (DeepSeek V3.2, GLM-5).
struct IndexerStyle {
  bool key_in_16_bits = false;  // projected together with the heads' weights, so not quantised
  bool own_rope = false;        // a rope table of its own where it pairs other elements
  // Rows of a choice that are kept as places in the cache too, by each indexer; 0: none are.
  std::int64_t choice_rows = 0;
};

struct ShardPlan {
  int tp = 1;
  // Parts that fewer ranks divide, each group of them holding all of it (DP attention); default:
  // tp.
  std::optional<int> attention_tp = std::nullopt;  // attention, its caches and the embedding
  std::optional<int> dense_tp = std::nullopt;      // MLPs of layers without experts
  std::optional<int> head_tp = std::nullopt;       // the output head
  int pp = 1;
  int pp_rank = 0;
  int ep = 1;  // ranks over which whole experts are divided; 1: each expert is split over expert_tp
  int redundant_experts = 0;                    // copies over all of them (EPLB)
  std::optional<int> expert_tp = std::nullopt;  // default: tp; vLLM: over all ranks of all replicas
  // Shared experts are not divided: tokens travel to the routed ones and only the own ones pass.
  bool whole_shared_experts = false;
  // Dtype the engine loads 16/32-bit tensors with; default: the checkpoint's (fp32 as bf16 is the
  // engine's decision and must be given).
  std::optional<DType> dtype = std::nullopt;
  // Tables of ropes with interleaved multimodal sections: factor on the positions. vLLM up to 0.19:
  // 4 as for others; 0.33: 1.
  std::int64_t interleaved_rope_factor = kMultimodalRopeFactor;
  // `--quantization METHOD` over a checkpoint that is not quantised ("fp8"); empty: none.
  std::string online_quantization = {};
  // Kernels of quantised linears differ by architecture (Hopper's keep zero points unpacked).
  int compute_major = 9;
  // AWQ's packing is converted on the card before Hopper's kernel lays values out anew (vLLM from
  // 0.19, awq_marlin.py _convert_awq_to_standard_format).
  bool converts_awq = false;
  bool converts_awq_in_place = false;  // what it packs anew takes the kernel's layout (vLLM 0.33)
  // NVFP4 weights are laid out for Marlin on the card (vLLM, marlin_utils_fp4.py).
  bool repacks_fp4 = false;
  // A tied head is made like another and dropped for the embedding (vLLM from 0.28, model files).
  bool makes_tied_head = false;
  Fp4Experts fp4_experts = {};
  std::optional<LoraSlots> lora = std::nullopt;
  // Parameters of the first layers go to pinned host memory until these bytes are reached (vLLM
  // --cpu-offload-gb); the one that reaches them goes whole.
  Bytes host_weights = {};
  // Layers of each stage when the user gives them (VLLM_PP_LAYER_PARTITION); else the even rule.
  std::vector<int> layers_per_stage = {};
  // Load the vision/audio towers too (vLLM skips them when every modality's limit is 0).
  bool towers = false;
  // Every rank holds whole encoders (vLLM --mm-encoder-tp-mode data, and those that it takes from
  // other libraries: Gemma 4).
  bool whole_vision = false;
  bool whole_audio = false;
  // Load the model's own draft layers (MTP) too, on the last stage.
  bool draft = false;
  // Drafts that a step checks: convolution states keep as many inputs more.
  std::int64_t draft_tokens = 0;
  // Make projections to keys and values in layers that use another layer's (Gemma 4, 3n): SGLang
  // 0.5.23 and vLLM as of its first release of Gemma 4 do, vLLM 0.33 does not.
  bool unused_kv = true;
  // Tokens that a step may have, where the engine keeps buffers of them beside the weights (vLLM:
  // per-layer embeddings of Gemma 4 and 3n); 0: it does not.
  std::int64_t step_tokens = 0;
  IndexerStyle indexer = {};
  // FlashInfer's kernel rotates with DeepSeek's YaRN tables, kept in fp32.
  bool flashinfer_ropes = false;
  // The engine runs the model through the Transformers library (vLLM's "Transformers modeling
  // backend"): no cos/sin tables, two small frequency vectors a rope instead.
  bool transformers_backend = false;
};

struct LayerRange {
  int begin = 0;
  int end = 0;
};
// Layers of one pipeline stage. Throws ConfigError if pp exceeds the layers or the given partition
// does not add up.
LayerRange stage_layers(const ModelSpec& spec, const ShardPlan& plan);

// How the table of a rope is computed (vLLM rotary_embedding/*).
enum class RopeTable : std::uint8_t {
  kNone,
  kPlain,
  kScaled,  // cosines and sines are multiplied afterwards (YaRN)
  kTwo,     // likewise, a short table and a long one, then joined (LongRoPE)
};

struct TensorBytes {
  std::string_view name;         // as TensorSpec::name
  std::string_view suffix = {};  // of what belongs to a quantised tensor: "_scale" …
  int layer = -1;                // -1: outside the layers
  WeightLeaf leaf = WeightLeaf::kWeights;
  DType dtype = DType::kBFloat16;
  Bytes bytes;  // requested size; the allocator rounds it up to 512 B and more
  RopeTable rope_table = RopeTable::kNone;
  Bytes short_table = {};  // of two: the first
  // Kept in fp32 until it is used first, then in this dtype.
  std::optional<DType> used_as = std::nullopt;
  // A kernel's own layout replaces the tensor after loading (MXFP4 experts, converted AWQ): its
  // size until then; 0: made only then.
  std::optional<Bytes> created = std::nullopt;
  bool on_host = false;      // moved there once its layer is made
  std::int64_t experts = 1;  // of a quantised tensor: as many alike, one behind the other
  // Scales of MXFP4 experts, rearranged: with whole tiles along the summed dimension, before the
  // rows are padded too.
  Bytes whole_tiles = {};
};
// "model.layers.3.self_attn.qkv_proj.weight"
std::string full_name(const TensorBytes& tensor);

struct RankWeights {
  std::vector<TensorBytes> tensors;  // in the order in which the engine creates them
  Bytes weights;                     // sums by leaf, on the device
  Bytes scales;
  Bytes buffers;
  Bytes on_host;
  std::optional<Fp4Experts::Swizzle> swizzle;  // how `created` experts become what they are
  bool converts_awq_in_place = false;
  bool repacks_fp4 = false;
  Bytes dropped_head;  // made after the rest, replaced by the embedding

  [[nodiscard]] Bytes total() const { return weights + scales + buffers; }
  // Sum with every tensor rounded up to `granule` (PyTorch's allocator: 512 B).
  [[nodiscard]] Bytes rounded(Bytes granule = Bytes{512}) const;
};

// Throws ConfigError naming what does not divide (heads, KV heads, FFN width, vocabulary by tp;
// experts by ep), all of it at once, or a quantisation that has no byte rules yet.
RankWeights weights_on_rank(const ModelSpec& spec, const ShardPlan& plan);

// Whether vLLM of that version runs the architecture through its Transformers modeling backend
// (models/transformers_backend.json).
bool uses_transformers_backend(std::string_view architecture, const Version& vllm_version);

// Only the check.
void check_sharding(const ModelSpec& spec, const ShardPlan& plan);

}  // namespace oomcast::models
