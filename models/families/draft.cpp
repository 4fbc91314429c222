// Draft layers that checkpoints carry for speculative decoding (multi-token prediction).
#include "models/families/family.hpp"

namespace oomcast::models {

std::int64_t read_drafts(const Config& config) {
  return config.plain({"num_nextn_predict_layers", "mtp_num_hidden_layers"}, 0, {0, 64});
}

void start_draft(const ModelSpec& spec, LayerSpec& draft) {
  add_norm(draft.tensors, "enorm.weight", spec.hidden);
  add_norm(draft.tensors, "hnorm.weight", spec.hidden);
  add_linear(draft.tensors, {.weight = "eh_proj.weight",
                             .bias = {},
                             .rows = {{.size = spec.hidden}},
                             .columns = {.size = 2 * spec.hidden},
                             .quantisable = false});
}

void finish_drafts(ModelSpec& spec, LayerSpec draft, std::int64_t count,
                   const DraftCopies& copies) {
  add_norm(draft.tensors, "shared_head.norm.weight", spec.hidden);
  const auto add_copy = [&](std::string_view name) {
    TensorSpec copy;
    copy.name = name;
    copy.rows = {{spec.vocabulary, 1, Split::kVocabulary}};
    copy.columns = {.size = spec.hidden};
    copy.loaded = false;
    draft.tensors.push_back(std::move(copy));
  };
  if (copies.embedding) {
    add_copy("embed_tokens.weight");
  }
  if (copies.head) {
    add_copy("shared_head.head.weight");
  }
  for (TensorSpec& tensor : draft.tensors) {
    tensor.component = Component::kMtp;
  }
  spec.draft_layers.assign(static_cast<std::size_t>(count), draft);
}

}  // namespace oomcast::models
