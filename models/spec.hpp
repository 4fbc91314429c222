// What a model is, independent of any engine: layers, tensors, rope tables, what KV each layer
// keeps.
//
// A family's builder (models/families/) fills a ModelSpec from config.json; everything else -
// parameter counts, bytes per rank, KV bytes - is computed from it (weights.hpp, kv.hpp).
// Layers that are alike share one LayerSpec, so a spec of 80 layers is a few kilobytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.hpp"
#include "sim/core/units.hpp"

namespace oomcast::models {

// ---- Tensors -----------------------------------------------------------------------------------

// How one extent of a tensor is divided over the ranks of a tensor-parallel group.
enum class Split : std::uint8_t {
  kWhole,           // every rank holds all of it
  kEven,            // units / tp; must divide
  kKvHeads,         // units / tp, or one unit a rank when tp > units (then tp must be a multiple)
  kVocabulary,      // padded to a multiple of 64, then / tp
  kExperts,         // units / ep; with ep = 1 every rank holds a slice of each expert
  kExpertWidth,     // units / tp unless experts are divided over ranks (ep > 1)
  kSharedWidth,     // units / tp unless every rank holds whole shared experts
  kWhereItDivides,  // units / tp if that divides, else whole: towers of vision and audio
  kStepTokens,      // units for every token that a step may have: buffers of the engine
  kChoiceRows,      // units for every row of a choice of tokens that an engine keeps (indexers)
};

// `units` pieces of `size` elements each; ranks receive whole pieces.
struct Extent {
  std::int64_t units = 1;
  std::int64_t size = 1;
  Split split = Split::kWhole;
  // False: engines hold these rows, checkpoints do not (values that are the keys, Gemma 4).
  bool stored = true;
  // Keys and values of a layer that uses another's: some engines do not make them.
  bool unused = false;
};

// Where in the pipeline a tensor of the whole model lives.
enum class Place : std::uint8_t {
  kFirstStage,
  kLastStage,
  kFirstAndLastStage,  // tied embedding: on the first and, if another, once more on the last
  kEveryStage,
};

// Leaf of the ledger's class `model`.
enum class WeightLeaf : std::uint8_t { kWeights, kScales, kBuffers };

enum class Element : std::uint8_t {
  kModel,    // the dtype the model is loaded with
  kFloat32,  // whatever the model's dtype
  kInt64,
  kInt32,
  kInt8,
};

// Part of the model a tensor belongs to.
enum class Component : std::uint8_t { kText, kVision, kAudio, kMtp };

// One tensor as engines allocate it, q/k/v and gate/up fused. Elements on a rank are
// experts x (sum of rows) x columns, each extent divided by its own rule.
struct TensorSpec {
  std::string_view name;  // static text: "self_attn.qkv_proj.weight", without the layer prefix
  std::vector<Extent> rows;
  Extent columns;  // 1 for vectors
  Extent experts;
  Element element = Element::kModel;
  WeightLeaf leaf = WeightLeaf::kWeights;
  Component component = Component::kText;
  Place place = Place::kFirstStage;  // only for tensors outside the layers
  // A matrix that quantisation schemes replace, unless they list it as ignored.
  bool quantisable = false;
  // Counts as a parameter of the model (buffers that engines add do not).
  bool parameter = true;
  // Engines load it; a draft's copies of embedding and head are shared with the target instead.
  bool loaded = true;
  // Engines keep a 16-bit copy beside the quantised matrix (MLA's absorbed kv_b_proj).
  bool copied_in_16_bits = false;
  // >= 0: rope table number; each rank makes it once, at the first layer that uses it.
  int rope = -1;
};

// ---- Layers ------------------------------------------------------------------------------------

enum class AttentionKind : std::uint8_t {
  kNone,
  kFull,
  kSlidingWindow,   // sees the last `window` tokens
  kChunked,         // sees its own chunk of `window` tokens
  kMla,             // one latent of kv_lora_rank + rope per token
  kCrossAttention,  // sees an image's or encoder's tokens, keeps nothing of the text
  // From here on: something of fixed size per sequence is kept.
  kMamba1,
  kMamba2,
  kGatedDeltaNet,
  kKimiDelta,
  kLightning,   // linear attention with a heads x d x d state
  kCompressed,  // DeepSeek V4: a window of latents, one latent for every `ratio` tokens before it
};
std::string_view name_of(AttentionKind kind);
constexpr bool has_state(AttentionKind kind) { return kind >= AttentionKind::kMamba1; }

struct MlaSpec {
  std::int64_t q_lora_rank = 0;  // 0: q is projected directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t nope_dim = 0;
  std::int64_t rope_dim = 0;
  std::int64_t v_dim = 0;
  std::int64_t indexer_heads = 0;  // sparse attention's indexer; 0: none
  std::int64_t indexer_dim = 0;
};

// Fixed-size state of a recurrent layer, per sequence:
//   conv: (inner + groups * group_size) x (kernel - 1), inner and groups divided over ranks
//   recurrent: heads x head_rows x head_columns, heads divided over ranks
struct StateSpec {
  std::int64_t inner = 0;
  std::int64_t groups = 0;
  std::int64_t group_size = 0;
  std::int64_t kernel = 0;
  std::int64_t heads = 0;
  std::int64_t head_rows = 0;
  std::int64_t head_columns = 0;
  std::optional<DType> recurrent_dtype = std::nullopt;  // as the config asks; else as the conv
};

// DeepSeek V4 (facts "models" 5). The latent is key and value at once.
struct CompressedSpec {
  std::int64_t latent = 0;
  std::int64_t ratio = 0;          // tokens a compressed latent stands for; 0: only the window
  std::int64_t indexer_heads = 0;  // chooses compressed latents; 0: all are seen
  std::int64_t indexer_dim = 0;
  // Neighbouring compressed entries overlap, so two are in the making.
  [[nodiscard]] std::int64_t open_entries() const { return indexer_heads > 0 ? 2 : 1; }
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kNone;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;    // of q and k
  std::int64_t v_head_dim = 0;  // usually head_dim
  Tokens window;                // sliding window or chunk length; 0 for other kinds
  int rope = -1;                // index into ModelSpec::ropes; -1: no rotary embedding
  bool qk_norm = false;         // q and k are normalised (costs an activation)
  bool sinks = false;
  bool query_gate = false;    // q's projection has a second half that gates the output
  MlaSpec mla;                // kind kMla
  CompressedSpec compressed;  // kind kCompressed
  StateSpec state;            // has_state(kind)
  std::int64_t index_key =
      0;  // width of a key kept beside k and v that selects blocks (MiniMax M3)
  // Reuses the KV of an earlier layer and keeps none itself.
  std::optional<int> kv_from_layer;
};

enum class FfnKind : std::uint8_t { kNone, kGated, kPlain, kMoe };

struct FfnSpec {
  FfnKind kind = FfnKind::kNone;
  std::int64_t width = 0;  // of the dense part: gate and up are each hidden x width; 0: none
  // kMoe only. Shared experts are counted in shared_width (all of them together).
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t expert_width = 0;
  std::int64_t shared_width = 0;
  std::int64_t latent = 0;  // what routed experts see, where it is not the hidden size; 0: is
  bool gated = true;

  [[nodiscard]] std::int64_t expert_input(std::int64_t hidden) const {
    return latent > 0 ? latent : hidden;
  }
};

struct LayerSpec {
  AttentionSpec attention;
  std::vector<AttentionSpec> beside;  // further attentions of the layer (Falcon H1, LongCat)
  FfnSpec ffn;
  std::vector<TensorSpec> tensors;  // in the order in which engines create them
};

// An encoder of images or sound with its projector: groups of tensors in creation order, each as
// often as there are layers like it. Every pipeline stage makes it.
// What a pass of an image encoder depends on, where it is known.
struct EncoderRun {
  std::int64_t width = 0;
  std::int64_t ffn = 0;
  bool gated = false;
  bool rotary = false;  // rotary positions, computed for every image
  std::int64_t patch_values = 0;
  std::int64_t image_patches = 0;       // of the largest image that its processor makes by default
  std::int64_t image_tokens = 0;        // that the language model sees of it
  std::int64_t embeddings_a_token = 1;  // several where inner layers are tapped
};

struct Tower {
  struct Group {
    std::int64_t count = 1;
    std::vector<TensorSpec> tensors;
  };
  Component component = Component::kVision;
  std::vector<Group> groups;
  std::optional<EncoderRun> run = std::nullopt;
};

// ---- The whole model ---------------------------------------------------------------------------

inline constexpr std::int64_t kMultimodalRopeFactor = 4;

struct RopeSpec {
  std::string type = "default";  // default, linear, dynamic, yarn, llama3, longrope, mrope …
  std::int64_t rotary_dim = 0;
  double theta = 10000.0;
  std::int64_t max_position = 0;
  double factor = 1.0;
  std::int64_t original_max_position = 0;  // 0: not given
  bool multimodal = false;                 // the table covers 4 times the positions
  bool interleaved = false;                // multimodal sections interleaved (Qwen3-VL, Qwen3.5)
  bool fp32_table = false;                 // the table is kept in fp32 whatever the model's dtype
  bool deepseek_yarn = false;  // FlashInfer's kernel for it, where an engine uses it, reads fp32
  bool of_indexer = false;     // an indexer's, which pairs other elements than the attention's
  // Rows of the cos/sin table engines keep, rotary_dim wide.
  std::int64_t table_rows = 0;

  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// Keys from which engines derive max_model_len (facts: vLLM 1.2).
struct LengthRule {
  // Smallest of max_position_embeddings, n_positions, max_seq_len, seq_length … in the text config;
  // `key` names it. model_max_length wins if present. Without any key: 2048.
  Tokens declared{2048};
  std::string key;
  // Factor applied by rope scaling (1 for su, longrope, llama3, gemma3; yarn multiplies
  // original_max_position).
  Tokens derived{2048};
};

// quantization_config or hf_quant_config.json as far as bytes depend on it.
struct Quantization {
  std::string method;  // fp8, awq, gptq, compressed-tensors, modelopt, bitsandbytes, mxfp4 …
  std::string format;  // compressed-tensors format or modelopt algorithm
  std::int64_t weight_bits = 0;
  bool weight_float = false;
  std::int64_t group_size = 0;  // 0: not grouped
  bool symmetric = true;        // no zero points
  bool per_channel = false;
  std::int64_t block_rows = 0;  // 128 x 128 FP8 blocks; 0: none
  std::int64_t block_columns = 0;
  bool static_activations = false;  // an input scale per linear
  std::vector<std::string> ignore;  // names or "re:" patterns kept in 16 bits
  // Of each layer: bit t is set where the t-th tensor of its kind stays in 16 bits.
  std::vector<std::uint64_t> kept;
  std::string kv_cache;  // e.g. "fp8"; empty: none
  std::string source;    // file or key it was read from

  // Several schemes in one model (MIXED_PRECISION, several config_groups): each of `others` holds
  // for the modules it targets, this one for the rest, unless the rest stays in 16 bits.
  std::vector<Quantization> others;
  bool rest_in_16_bits = false;
  std::vector<std::string> targets;  // of an entry of `others`: its modules
  std::vector<std::uint64_t> uses;   // of an entry of `others`: its tensors, as in `kept`
  bool byte_scales = false;          // block scales are e8m0 bytes, not fp32
  int head = -1;                     // number of the entry of `others` that holds for the head
};

// Size of the checkpoint's tensors where it is known and is not what the shapes make.
struct CheckpointSize {
  Bytes stored;
  Bytes computed;
};

// A value that the file did not give.
struct Assumption {
  std::string key;
  std::string value;
  std::string reason;
};
std::string to_string(const Assumption& assumption);

struct ModelSpec {
  std::string name;          // HF id or path it was read from
  std::string architecture;  // the one that chose the builder
  std::string model_type;
  std::string family;  // "llama", "qwen3", "gemma3" …
  DType dtype = DType::kBFloat16;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  bool tie_word_embeddings = false;
  double final_logit_softcap = 0.0;  // 0: none

  std::vector<LayerSpec> layer_kinds;
  std::vector<std::uint16_t> layer_kind;  // of each layer, index into layer_kinds

  std::vector<TensorSpec> before;  // created before the layers (embedding)
  std::vector<TensorSpec> after;   // created after them (final norm, head)
  std::vector<Tower> towers;       // created before everything else
  // Layers that guess further tokens (MTP), loaded for speculative decoding only. Layer
  // `layer_count() + i` of the checkpoint.
  std::vector<LayerSpec> draft_layers;
  std::vector<RopeSpec> ropes;

  LengthRule length;
  std::optional<Quantization> quantization;
  std::optional<CheckpointSize> checkpoint;
  // What checkpoints call the parts of a layer, in lists of modules to quantise or to leave alone.
  std::string_view attention_module = "self_attn";
  std::string_view ffn_module = "mlp";
  std::vector<Assumption> assumptions;
  std::vector<std::string> notes;  // what the spec leaves out

  [[nodiscard]] int layer_count() const { return static_cast<int>(layer_kind.size()); }
  [[nodiscard]] const LayerSpec& layer(int index) const {
    return layer_kinds[layer_kind.at(static_cast<std::size_t>(index))];
  }
};

// Parameters of one component, tied embeddings once; as a checkpoint without padding holds them.
std::int64_t parameter_count(const ModelSpec& spec, Component component = Component::kText);

}  // namespace oomcast::models
