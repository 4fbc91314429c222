// Draft models of their own file: EAGLE and EAGLE-3 heads over a Llama-like layer (vLLM
// llama_eagle.py, llama_eagle3.py). They use the target's embedding, EAGLE its head too.
#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"

namespace oomcast::models {
namespace {

LayerSpec eagle_layer(const Config& config, const ModelSpec& spec, const Sizes& sizes, int rope) {
  LayerSpec layer;
  const bool bias = config.flag("attention_bias");
  add_attention(spec, layer, full_attention(sizes, rope), {.qkv_bias = bias, .output_bias = bias});
  add_ffn(spec, layer, FfnKind::kGated, sizes.width);
  return layer;
}

void add_fusion(ModelSpec& spec, std::int64_t inputs, bool bias) {
  add_linear(spec.before, {.weight = "fc.weight",
                           .bias = "fc.bias",
                           .rows = {{.size = spec.hidden}},
                           .columns = {.size = inputs},
                           .has_bias = bias,
                           .quantisable = false});
  for (TensorSpec& tensor : spec.before) {
    tensor.place = Place::kEveryStage;
  }
}

}  // namespace

void build_eagle(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim});
  add_fusion(spec, 2 * spec.hidden, config.flag("bias", true));
  // The first layer's input is not normalised.
  add_layers(
      spec, sizes.layers, [](int i) { return i == 0 ? 0 : 1; },
      [&](int later) {
        LayerSpec layer = eagle_layer(config, spec, sizes, rope);
        if (later != 0) {
          add_norm(layer.tensors, "input_layernorm.weight", spec.hidden);
        }
        add_norm(layer.tensors, "post_attention_layernorm.weight", spec.hidden);
        return layer;
      });
}

// The first layer sees token and hidden state side by side; the hidden states are those of three of
// the target's layers. The head covers the words that the draft may guess.
void build_eagle3(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim});
  const std::int64_t target = config.plain({"target_hidden_size"}, spec.hidden, {1, kMostHidden});
  const std::int64_t words =
      config.plain({"draft_vocab_size"}, spec.vocabulary, {1, kMostVocabulary});
  add_fusion(spec, 3 * target, false);
  add_layers(
      spec, sizes.layers, [](int i) { return i == 0 ? 0 : 1; },
      [&](int later) {
        LayerSpec layer = eagle_layer(config, spec, sizes, rope);
        if (later == 0) {
          layer.tensors.front().columns.size = 2 * spec.hidden;
          add_norm(layer.tensors, "hidden_norm.weight", spec.hidden);
        }
        add_two_norms(spec, layer);
        return layer;
      });
  add_norm(spec.after, "norm.weight", spec.hidden);
  TensorSpec head;
  head.name = "lm_head.weight";
  head.rows = {{words, 1, Split::kVocabulary}};
  head.columns = {.size = spec.hidden};
  spec.after.push_back(head);
  if (words != spec.vocabulary) {
    add_vector(spec.after, "draft_id_to_target_id", words, Element::kInt64);
    spec.after.back().parameter = false;
    spec.after.back().leaf = WeightLeaf::kBuffers;
  }
  for (TensorSpec& tensor : spec.after) {
    tensor.place = Place::kLastStage;
  }
}

}  // namespace oomcast::models
