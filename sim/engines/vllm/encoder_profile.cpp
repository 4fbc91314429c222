#include "sim/engines/vllm/encoder_profile.hpp"

#include <algorithm>

#include "models/data.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::vllm {
namespace {

using opgraph::Affine;
using opgraph::OpGraph;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

// Rows kept of an encoder's outputs: all of the budget's for every item, or as many as the largest
// item may have with the text inside it.
enum class EncoderOutputs { kAsMade, kAsLargestItem, kAsBudget };

struct EncoderRules {
  EncoderOutputs outputs = EncoderOutputs::kAsMade;
  std::int64_t video_frames = 14;        // at most, of Qwen2-VL's profiled video
  bool video_beside_image = false;       // in the prompt of the longest length
  bool video_counts_timestamps = false;  // of Qwen3-VL's
};

EncoderRules read_encoder_rules(const Version& version) {
  constexpr const char* kFile = "engines/vllm/presets.json";
  Problems problems;
  const VersionRows read(models::embedded_json(kFile), kFile, version, problems);
  EncoderRules rules;
  rules.outputs = read.choice<EncoderOutputs>("encoder_outputs",
                                              {{"as_made", EncoderOutputs::kAsMade},
                                               {"as_largest_item", EncoderOutputs::kAsLargestItem},
                                               {"as_budget", EncoderOutputs::kAsBudget}});
  rules.video_frames = read.integer("video_frames");
  rules.video_beside_image = read.boolean("video_beside_image");
  rules.video_counts_timestamps = read.boolean("video_counts_timestamps");
  problems.raise_if_any();
  return rules;
}

EncoderRules encoder_rules(const Deployment& deployment) {
  return known_rules(deployment.launch.version, read_encoder_rules);
}

const models::EncoderRun* encoder_run(const Deployment& deployment) {
  for (const models::Tower& tower : deployment.model->towers) {
    if (tower.component == models::Component::kVision && tower.run) {
      return &*tower.run;
    }
  }
  return nullptr;
}

// Images or videos of one prompt.
std::int64_t limit_of(const Deployment& deployment, const char* modality) {
  constexpr std::int64_t kUnlimited = 999;  // vllm/config/multimodal.py
  const Json* limit = deployment.launch.json("limit-mm-per-prompt", modality);
  return limit != nullptr && limit->is_number_integer() ? limit->get<std::int64_t>() : kUnlimited;
}

// What the profile's batch is made of.
struct Item {
  std::int64_t limit = 0;     // of one prompt
  std::int64_t tokens = 0;    // that the budget counts
  std::int64_t patches = 0;   // that the encoder sees
  std::int64_t embedded = 0;  // rows that come out
};

// As many pairs of frames of the largest image's size as a prompt has room for
// (qwen2_vl.py get_num_frames_with_most_features).
std::int64_t frame_pairs(const Deployment& deployment, std::int64_t tokens) {
  std::int64_t room = deployment.max_model_len.count();
  const EncoderRules rules = encoder_rules(deployment);
  if (rules.video_beside_image && limit_of(deployment, "image") > 0) {
    room -= tokens;
  }
  return std::clamp<std::int64_t>(room / tokens, 1, rules.video_frames / 2);
}

std::optional<Item> largest_video(const Deployment& deployment, const models::EncoderRun& run) {
  const std::int64_t limit = limit_of(deployment, "video");
  const std::string& family = deployment.model->family;
  if (limit < 1) {
    return std::nullopt;
  }
  if (family == "qwen2_vl" || family == "qwen2_5_vl") {
    const std::int64_t pairs = frame_pairs(deployment, run.image_tokens);
    return Item{limit, pairs * run.image_tokens, pairs * run.image_patches,
                pairs * run.image_tokens};
  }
  if (family == "qwen2_5_omni") {
    // Its processor shrinks frames to 768 x 28 x 28 pixels (processing_qwen2_5_omni.py).
    constexpr std::int64_t kFrameTokens = 768;
    const std::int64_t pairs = frame_pairs(deployment, run.image_tokens);
    const std::int64_t embedded = pairs * std::min(kFrameTokens, run.image_tokens);
    return Item{limit, pairs * run.image_tokens, embedded * run.image_patches / run.image_tokens,
                embedded};
  }
  if (family.starts_with("qwen3_vl")) {
    // 25,165,824 pixels of both frames of a pair at 32 x 32 a token
    // (video_preprocessor_config.json); timestamps once counted as eleven and a half tokens beside
    // every one (qwen3_vl.py).
    constexpr std::int64_t kTokens = 12'288;
    const std::int64_t counted =
        encoder_rules(deployment).video_counts_timestamps ? kTokens * 25 / 2 : kTokens;
    return Item{limit, counted, kTokens * run.image_patches / run.image_tokens, kTokens};
  }
  return std::nullopt;
}

// The kind with most tokens; videos where both have as many.
Item largest_item(const Deployment& deployment, const models::EncoderRun& run) {
  const Item image{limit_of(deployment, "image"), run.image_tokens, run.image_patches,
                   run.image_tokens};
  const std::optional<Item> video = largest_video(deployment, run);
  return video && (image.limit < 1 || video->tokens >= image.tokens) ? *video : image;
}

// Rows that are kept of what comes out for one item.
std::int64_t kept_rows(const Deployment& deployment, const Item& item, std::int64_t budget) {
  switch (encoder_rules(deployment).outputs) {
    case EncoderOutputs::kAsMade:
      return item.embedded;
    case EncoderOutputs::kAsLargestItem:
      return std::max(item.embedded, item.tokens);
    case EncoderOutputs::kAsBudget:
      return std::max(item.embedded, budget);
  }
  return item.embedded;
}

class Builder {
 public:
  explicit Builder(const Deployment& deployment)
      : run_(*encoder_run(deployment)),
        element_(models::bits_of(deployment.dtype) / 8),
        tp_(run_.width % deployment.tp == 0 && run_.ffn % deployment.tp == 0 &&
                    !deployment.whole_tower(models::Component::kVision)
                ? deployment.tp
                : 1),
        learns_positions_(deployment.model->family.starts_with("qwen3")),
        fuses_norm_(deployment.model->family.starts_with("qwen2_5")) {}

  OpGraph build() {
    add_layer();
    return std::move(graph_);
  }

 private:
  // The caller holds what went into the layer until it returns.
  void add_layer() {
    Variable pixels(graph_, make("images", "pixels", run_.patch_values));
    Variable positions(graph_);
    if (learns_positions_) {
      positions = make("positions", "position embeddings", run_.width);
    }
    Variable before(graph_, make("patch embedding", "patches", run_.width));
    Variable attended(graph_);
    {
      Variable normed(graph_, make("norm1", "normed", run_.width));
      attended = attend();
    }
    Variable state(graph_, make("add attention", "hidden states", run_.width));
    if (!fuses_norm_) {
      attended.drop();
    }
    {
      Variable normed(graph_, make("norm2", "normed", run_.width));
      Variable up(graph_, make("fc1", run_.gated ? "gate and up" : "inner",
                               (run_.gated ? 2 : 1) * run_.ffn / tp_));
      Variable activated(graph_, make("activation", "activated", run_.ffn / tp_));
      if (!run_.gated) {
        up.drop();  // a gated one's has a name in the function
      }
      make("fc2", "output", run_.width);
    }
    make("add output", "hidden states", run_.width);
  }

  TensorId attend() {
    Variable qkv(graph_, make("qkv", "queries, keys and values", 3 * run_.width / tp_));
    Variable copied(graph_);
    Variable rotated(graph_);
    if (run_.rotary) {
      copied = make("rearrange", "queries and keys", 2 * run_.width / tp_);
      rotated = make("rotary", "rotated queries and keys", 2 * run_.width / tp_);
    }
    Variable context(graph_, make("attention", "context", run_.width / tp_));
    return make("proj", "attention output", run_.width);
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
  bool learns_positions_;  // a vector a patch, kept beside the patches (qwen3_vl.py)
  bool fuses_norm_;        // the second norm also adds, attention's output stays (qwen2_5_vl.py)
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
  const Item item = largest_item(deployment, *run);
  const std::int64_t budget = std::max(deployment.max_num_batched_tokens.count(), item.tokens);
  const std::int64_t of_a_prompt = std::max<std::int64_t>(
      1, std::min(item.limit, deployment.max_model_len.count() / item.tokens));
  EncoderBatch batch;
  batch.images = std::max<std::int64_t>(
      1, std::min(budget / item.tokens, detail::checked_mul(deployment.max_num_seqs, of_a_prompt)));
  const std::int64_t own =
      deployment.shares_images() ? div_ceil(batch.images, deployment.tp) : batch.images;
  batch.patches = detail::checked_mul(own, item.patches);
  batch.embeddings = Bytes{detail::checked_mul(batch.images, kept_rows(deployment, item, budget))} *
                     detail::checked_mul(deployment.model->hidden, run->embeddings_a_token) *
                     (models::bits_of(deployment.dtype) / 8);
  // The newer runner makes them in a call that has returned by then (v1/worker/gpu/mm).
  if (!deployment.runner_v2) {
    batch.pixels = Bytes{detail::checked_mul(batch.images, item.patches)} * run->patch_values *
                   (models::bits_of(deployment.dtype) / 8);
  }
  return batch;
}

opgraph::OpGraph encoder_graph(const Deployment& deployment) { return Builder(deployment).build(); }

}  // namespace oomcast::vllm
