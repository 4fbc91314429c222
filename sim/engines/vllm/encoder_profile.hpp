// The vision encoder's part of the profile run (facts "vllm" 3.6): a batch of the largest images,
// or videos where these may have more tokens, that the encoder's budget takes, before the language
// model's own dummy batch; their embeddings stay until that is done.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/engines/vllm/deployment.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::vllm {

struct EncoderBatch {
  std::int64_t images = 0;   // or videos
  std::int64_t patches = 0;  // of those that one rank takes
  Bytes embeddings;          // what the language model gets, kept meanwhile
  Bytes pixels;              // the images themselves, as long as the runner's frame holds them
};

// Where inner layers of the encoder are tapped (Qwen3-VL), what they add to a batch's first layers:
// T x H x b each, made with the model (models/qwen3_vl.py deepstack_input_embeds).
Bytes tapped_embeddings(const Deployment& deployment);

// Nothing where no encoder is loaded or profiled, or its shapes are not known.
std::optional<EncoderBatch> encoder_batch(const Deployment& deployment);

// One layer of the encoder in eager mode, with what its caller holds; StepShape::tokens counts
// patches. Read from Qwen3_VisionBlock and Qwen2_5_VisionAttention (vLLM 0.26), SiglipEncoderLayer.
opgraph::OpGraph encoder_graph(const Deployment& deployment);

}  // namespace oomcast::vllm
