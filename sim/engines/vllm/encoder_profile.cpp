#include "sim/engines/vllm/encoder_profile.hpp"

#include <algorithm>

namespace oomcast::vllm {
namespace {

using opgraph::Affine;
using opgraph::OpGraph;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

const models::EncoderRun* encoder_run(const Deployment& deployment) {
  for (const models::Tower& tower : deployment.model->towers) {
    if (tower.component == models::Component::kVision && tower.run) {
      return &*tower.run;
    }
  }
  return nullptr;
}

// Images of one prompt.
std::int64_t image_limit(const Deployment& deployment) {
  constexpr std::int64_t kUnlimited = 999;  // vllm/config/multimodal.py
  const Json* limit = deployment.launch.json("limit-mm-per-prompt", "image");
  return limit != nullptr && limit->is_number_integer() ? limit->get<std::int64_t>() : kUnlimited;
}

class Builder {
 public:
  explicit Builder(const Deployment& deployment)
      : run_(*encoder_run(deployment)),
        element_(models::bits_of(deployment.dtype) / 8),
        tp_(run_.width % deployment.tp == 0 && run_.ffn % deployment.tp == 0 &&
                    !deployment.whole_tower(models::Component::kVision)
                ? deployment.tp
                : 1) {}

  OpGraph build() {
    add_layer();
    return std::move(graph_);
  }

 private:
  void add_layer() {
    Variable pixels(graph_, make("images", "pixels", run_.patch_values));
    const TensorId hidden = make("patch embedding", "patches", run_.width);
    Variable positions(graph_);
    if (run_.rotary) {
      positions = make("positions", "position embeddings", run_.width);
    }
    Variable state(graph_, hidden);
    {
      Variable normed(graph_, make("norm1", "normed", run_.width));
      attend();
      state = make("add attention", "hidden states", run_.width);
    }
    {
      Variable normed(graph_, make("norm2", "normed", run_.width));
      Variable up(graph_, make("fc1", run_.gated ? "gate and up" : "inner",
                               (run_.gated ? 2 : 1) * run_.ffn / tp_));
      Variable activated(graph_, make("activation", "activated", run_.ffn / tp_));
      make("fc2", "output", run_.width);
    }
    make("add output", "hidden states", run_.width);
  }

  void attend() {
    Variable qkv(graph_, make("qkv", "queries, keys and values", 3 * run_.width / tp_));
    Variable copied(graph_);
    Variable rotated(graph_);
    if (run_.rotary) {
      copied = make("rearrange", "queries and keys", 2 * run_.width / tp_);
      rotated = make("rotary", "rotated queries and keys", 2 * run_.width / tp_);
    }
    Variable context(graph_, make("attention", "context", run_.width / tp_));
    make("proj", "attention output", run_.width);
  }

  TensorId make(const char* op, const char* name, std::int64_t values) {
    return graph_.make(
        graph_.op(op, "vision encoder"),
        {name, "patches x width x b", Leaf::kRuntimeIntermediates, per_patch(values)});
  }
  [[nodiscard]] Affine per_patch(std::int64_t values) const {
    return Affine::per(opgraph::ShapeVar::kTokens, Bytes{values} * element_);
  }

  models::EncoderRun run_;
  std::int64_t element_;
  std::int64_t tp_;
  OpGraph graph_;
};

}  // namespace

Bytes tapped_embeddings(const Deployment& deployment) {
  const models::EncoderRun* run = encoder_run(deployment);
  if (run == nullptr || !deployment.loads_towers()) {
    return Bytes{0};
  }
  const std::int64_t tokens = deployment.max_num_batched_tokens.count();
  return Bytes{detail::checked_mul(tokens, deployment.model->hidden)} *
         (run->embeddings_a_token - 1) * (models::bits_of(deployment.dtype) / 8);
}

std::optional<EncoderBatch> encoder_batch(const Deployment& deployment) {
  const models::EncoderRun* run = encoder_run(deployment);
  const bool profiled = !deployment.runner_v2 || deployment.rules.profiles_encoder_v2;
  if (run == nullptr || !profiled || !deployment.loads_towers() ||
      deployment.launch.on("skip-mm-profiling")) {
    return std::nullopt;
  }
  const std::int64_t tokens = run->image_tokens;
  const std::int64_t budget = std::max(deployment.max_num_batched_tokens.count(), tokens);
  const std::int64_t of_a_prompt = std::max<std::int64_t>(
      1, std::min(image_limit(deployment), deployment.max_model_len.count() / tokens));
  EncoderBatch batch;
  batch.images = std::max<std::int64_t>(
      1, std::min(budget / tokens, detail::checked_mul(deployment.max_num_seqs, of_a_prompt)));
  const std::int64_t own =
      deployment.shares_images() ? div_ceil(batch.images, deployment.tp) : batch.images;
  batch.patches = detail::checked_mul(own, run->image_patches);
  batch.embeddings = Bytes{detail::checked_mul(batch.images, tokens)} *
                     detail::checked_mul(deployment.model->hidden, run->embeddings_a_token) *
                     (models::bits_of(deployment.dtype) / 8);
  return batch;
}

opgraph::OpGraph encoder_graph(const Deployment& deployment) { return Builder(deployment).build(); }

}  // namespace oomcast::vllm
