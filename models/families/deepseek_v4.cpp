// DeepSeek V4: one latent a token serves as key and value of all heads; each layer sees a window of
// them and, but in the first layers, one compressed latent for every 4 or 128 tokens before. Four
// residual streams are mixed before and after every sublayer (hyper-connections). Shapes: vLLM
// deepseek_v4.py, deepseek_compressor.py; counts: facts "models" 2.
#include "models/families/builders.hpp"
#include "models/families/mla.hpp"

namespace oomcast::models {
namespace {

constexpr std::int64_t kOverlappingRatio = 4;  // at this ratio entries overlap and are indexed

struct V4Sizes {
  std::int64_t heads = 1;
  std::int64_t latent = 1;
  std::int64_t q_rank = 1;
  std::int64_t output_groups = 1;
  std::int64_t output_rank = 1;
  std::int64_t indexer_heads = 1;
  std::int64_t indexer_dim = 1;
  std::int64_t streams = 4;
  Tokens window;
  int window_rope = -1;
  int compressed_rope = -1;
  std::vector<std::int64_t> ratios;
  MoeStyle moe;
  std::int64_t hash_layers = 0;
};

std::vector<std::int64_t> read_ratios(const Config& config, int layers) {
  const auto list = config.integers("compress_ratios", {0, 128});
  std::vector<std::int64_t> ratios =
      list.value_or(std::vector<std::int64_t>(static_cast<std::size_t>(layers), 0));
  const bool known = std::all_of(ratios.begin(), ratios.end(), [](std::int64_t ratio) {
    return ratio <= 1 || ratio == kOverlappingRatio || ratio == 128;
  });
  // The last entry may be the draft's.
  if (!list || !known || ratios.size() < static_cast<std::size_t>(layers) ||
      ratios.size() > static_cast<std::size_t>(layers) + 64) {
    config.complain("compress_ratios", fmt::format("0, 4 or 128 for each of {} layers", layers));
    ratios.assign(static_cast<std::size_t>(layers), 0);
  }
  ratios.resize(static_cast<std::size_t>(layers));
  return ratios;
}

V4Sizes read_v4(const Config& config, ModelSpec& spec, int layers) {
  V4Sizes out;
  const Range rank{1, kMostWidth};
  out.heads = config.required({"num_attention_heads"}, {1, kMostHeads});
  out.latent = config.required({"head_dim"}, {1, kMostHeadDim});
  out.q_rank = config.required({"q_lora_rank"}, rank);
  out.output_groups = config.required({"o_groups"}, {1, kMostHeads});
  out.output_rank = config.required({"o_lora_rank"}, rank);
  if (out.heads % out.output_groups != 0) {
    config.complain("o_groups", fmt::format("a divisor of num_attention_heads {}", out.heads));
  }
  out.indexer_heads = config.required({"index_n_heads"}, {1, kMostHeads});
  out.indexer_dim = config.class_default({"index_head_dim"}, 128, {1, kMostHeadDim});
  out.streams = config.class_default({"hc_mult"}, 4, {1, 64});
  out.window = Tokens{config.required({"sliding_window"}, {1, kMostPosition})};
  out.ratios = read_ratios(config, layers);
  out.hash_layers = config.plain({"num_hash_layers"}, 0, {0, kMostLayers});
  RopeRules rope;
  rope.head_dim = config.required({"qk_rope_head_dim"}, {1, kMostHeadDim});
  rope.rotary_dim = rope.head_dim;
  rope.fp32_table = true;
  rope.deepseek_yarn = true;
  out.window_rope = add_rope(config, spec, rope);
  rope.theta_key = "compress_rope_theta";
  rope.theta_default = 160000.0;
  rope.theta_from_key = true;
  out.compressed_rope = add_rope(config, spec, rope);
  out.moe.experts = read_experts(config);
  out.moe.experts_per_token = read_experts_per_token(config, out.moe.experts);
  out.moe.expert_width = config.required({"moe_intermediate_size"}, rank);
  out.moe.shared_width = out.moe.expert_width * config.plain({"n_shared_experts"}, 0, {0, 1024});
  return out;
}

// Keys and gates of `width`, each twice as wide where neighbouring entries overlap.
struct CompressorNames {
  std::string_view position;
  std::string_view projection;
  std::string_view norm;
};
void add_compressor(const ModelSpec& spec, std::vector<TensorSpec>& tensors,
                    const CompressorNames& names, std::int64_t ratio, std::int64_t width) {
  const std::int64_t wide = (ratio == kOverlappingRatio ? 2 : 1) * width;
  TensorSpec position;
  position.name = names.position;
  position.rows = {{.size = ratio}};
  position.columns = {.size = wide};
  position.element = Element::kFloat32;
  tensors.push_back(std::move(position));
  add_linear(tensors, {.weight = names.projection,
                       .bias = {},
                       .rows = {{.size = wide}, {.size = wide}},
                       .columns = {.size = spec.hidden},
                       .quantisable = false});
  add_norm(tensors, names.norm, width);
}

void add_v4_indexer(const ModelSpec& spec, std::vector<TensorSpec>& tensors, const V4Sizes& sizes) {
  add_linear(tensors, {.weight = "attn.indexer.wq_b.weight",
                       .bias = {},
                       .rows = {{.size = sizes.indexer_heads * sizes.indexer_dim}},
                       .columns = {.size = sizes.q_rank}});
  add_linear(tensors, {.weight = "attn.indexer.weights_proj.weight",
                       .bias = {},
                       .rows = {{.size = sizes.indexer_heads}},
                       .columns = {.size = spec.hidden},
                       .quantisable = false});
  add_compressor(spec, tensors,
                 {"attn.indexer.compressor.ape", "attn.indexer.compressor.fused_wkv_wgate.weight",
                  "attn.indexer.compressor.norm.weight"},
                 kOverlappingRatio, sizes.indexer_dim);
}

void add_v4_attention(const ModelSpec& spec, LayerSpec& layer, const V4Sizes& sizes,
                      std::int64_t ratio) {
  AttentionSpec& attention = layer.attention;
  attention.kind = AttentionKind::kCompressed;
  attention.heads = sizes.heads;
  attention.kv_heads = 1;
  attention.head_dim = sizes.latent;
  attention.window = sizes.window;
  attention.rope = ratio > 1 ? sizes.compressed_rope : sizes.window_rope;
  attention.sinks = true;
  attention.compressed.latent = sizes.latent;
  attention.compressed.ratio = ratio > 1 ? ratio : 0;
  const bool indexed = ratio == kOverlappingRatio;
  attention.compressed.indexer_heads = indexed ? sizes.indexer_heads : 0;
  attention.compressed.indexer_dim = indexed ? sizes.indexer_dim : 0;
  std::vector<TensorSpec>& tensors = layer.tensors;
  const Extent groups{sizes.output_groups, sizes.output_rank, Split::kEven};
  TensorSpec sinks;
  sinks.name = "attn.attn_sink";
  sinks.rows = {{sizes.heads, 1, Split::kEven}};
  sinks.element = Element::kFloat32;
  tensors.push_back(std::move(sinks));
  add_linear(tensors, {.weight = "attn.fused_wqa_wkv.weight",
                       .bias = {},
                       .rows = {{.size = sizes.q_rank}, {.size = sizes.latent}},
                       .columns = {.size = spec.hidden}});
  add_norm(tensors, "attn.q_norm.weight", sizes.q_rank);
  add_linear(tensors, {.weight = "attn.wq_b.weight",
                       .bias = {},
                       .rows = {{sizes.heads, sizes.latent, Split::kEven}},
                       .columns = {.size = sizes.q_rank}});
  add_norm(tensors, "attn.kv_norm.weight", sizes.latent);
  add_linear(tensors, {.weight = "attn.wo_a.weight",
                       .bias = {},
                       .rows = {groups},
                       .columns = {.size = sizes.heads * sizes.latent / sizes.output_groups}});
  add_linear(tensors, {.weight = "attn.wo_b.weight",
                       .bias = {},
                       .rows = {{.size = spec.hidden}},
                       .columns = groups});
  add_rope_table(tensors, spec, attention.rope);
  if (indexed) {
    add_v4_indexer(spec, tensors, sizes);
  }
  if (ratio > 1) {
    add_compressor(spec, tensors,
                   {"attn.compressor.ape", "attn.compressor.fused_wkv_wgate.weight",
                    "attn.compressor.norm.weight"},
                   ratio, sizes.latent);
  }
}

// The first layers choose experts by a table over the vocabulary.
void add_v4_experts(const ModelSpec& spec, LayerSpec& layer, const V4Sizes& sizes, bool hashed) {
  MoeStyle moe = sizes.moe;
  moe.correction_bias = !hashed;
  add_moe(spec, layer, moe);
  if (hashed) {
    TensorSpec table;
    table.name = "mlp.gate.tid2eid";
    table.rows = {{.size = spec.vocabulary}};
    table.columns = {.size = moe.experts_per_token};
    table.element = Element::kInt32;
    layer.tensors.push_back(std::move(table));
  }
}

// Weights that mix `streams` residual streams: into one, back, and among themselves.
struct MixNames {
  std::string_view weight;
  std::string_view base;
  std::string_view scale;
};
void add_mix(const ModelSpec& spec, std::vector<TensorSpec>& tensors, const MixNames& names,
             std::int64_t mixes, std::int64_t scales, std::int64_t streams) {
  TensorSpec weight;
  weight.name = names.weight;
  weight.rows = {{.size = mixes}};
  weight.columns = {.size = streams * spec.hidden};
  weight.element = Element::kFloat32;
  tensors.push_back(std::move(weight));
  add_vector(tensors, names.base, mixes, Element::kFloat32);
  add_vector(tensors, names.scale, scales, Element::kFloat32);
}

void add_v4_layer(const ModelSpec& spec, LayerSpec& layer, const V4Sizes& sizes, std::int64_t ratio,
                  bool hashed) {
  add_v4_attention(spec, layer, sizes, ratio);
  add_v4_experts(spec, layer, sizes, hashed);
  add_norm(layer.tensors, "attn_norm.weight", spec.hidden);
  add_norm(layer.tensors, "ffn_norm.weight", spec.hidden);
  const std::int64_t mixes = (2 + sizes.streams) * sizes.streams;
  add_mix(spec, layer.tensors, {"hc_attn_fn", "hc_attn_base", "hc_attn_scale"}, mixes, 3,
          sizes.streams);
  add_mix(spec, layer.tensors, {"hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale"}, mixes, 3,
          sizes.streams);
}

void add_v4_draft(const Config& config, ModelSpec& spec, const V4Sizes& sizes) {
  const std::int64_t drafts = read_drafts(config);
  if (drafts == 0) {
    return;
  }
  LayerSpec draft;
  for (const std::string_view name : {"e_proj.weight", "h_proj.weight"}) {
    add_linear(draft.tensors, {.weight = name,
                               .bias = {},
                               .rows = {{.size = spec.hidden}},
                               .columns = {.size = spec.hidden}});
  }
  add_norm(draft.tensors, "enorm.weight", spec.hidden);
  add_norm(draft.tensors, "hnorm.weight", spec.hidden);
  add_v4_layer(spec, draft, sizes, 0, false);
  add_mix(spec, draft.tensors, {"hc_head_fn", "hc_head_base", "hc_head_scale"}, sizes.streams, 1,
          sizes.streams);
  finish_drafts(spec, std::move(draft), drafts, {.embedding = true, .head = true});
}

}  // namespace

void build_deepseek_v4(const Config& config, ModelSpec& spec) {
  spec.attention_module = "attn";
  spec.ffn_module = "ffn";
  spec.hidden = config.required({"hidden_size"}, {1, kMostHidden});
  spec.vocabulary = config.required({"vocab_size"}, {1, kMostVocabulary});
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", false);
  const int layers = static_cast<int>(config.required({"num_hidden_layers"}, {1, kMostLayers}));
  const V4Sizes sizes = read_v4(config, spec, layers);
  add_layers(
      spec, layers,
      [&](int i) {
        return static_cast<int>(sizes.ratios[static_cast<std::size_t>(i)]) * 2 +
               (i < sizes.hash_layers ? 1 : 0);
      },
      [&](int variant) {
        LayerSpec layer;
        add_v4_layer(spec, layer, sizes, variant / 2, variant % 2 != 0);
        return layer;
      });
  add_choice_buffer(spec, config.plain({"index_topk"}, 512, {1, kMostPosition}));
  add_embedding_and_head(spec);
  const std::size_t first = spec.after.size();
  add_mix(spec, spec.after, {"hc_head_fn", "hc_head_base", "hc_head_scale"}, sizes.streams, 1,
          sizes.streams);
  // The streams before they are joined, for a draft: there with or without one.
  TensorSpec kept_streams;
  kept_streams.name = "mtp_hidden_buffer";
  kept_streams.rows = {{1, sizes.streams * spec.hidden, Split::kStepTokens}};
  kept_streams.leaf = WeightLeaf::kBuffers;
  kept_streams.parameter = false;
  spec.after.push_back(std::move(kept_streams));
  for (std::size_t i = first; i < spec.after.size(); ++i) {
    spec.after[i].place = Place::kLastStage;
  }
  add_v4_draft(config, spec, sizes);
}

}  // namespace oomcast::models
