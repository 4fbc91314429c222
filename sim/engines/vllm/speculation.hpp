// Speculative decoding as a launch line asks for it: `--speculative-config`, or its parts in
// `--spec-*` (facts "vllm" 3.9; vllm/config/speculative.py).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/spec.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/engines/vllm/scheduler_config.hpp"

namespace oomcast::vllm {

struct Speculation {
  SpecDecode::Method method = SpecDecode::Method::kNone;
  std::string name;         // as the engine calls it: mtp, eagle, eagle3, draft_model, ngram …
  std::int64_t tokens = 0;  // drafts a step
  bool own_layers = false;  // the model's own MTP layers draft
  // A draft of its own; embedding (and head, where `shares_head`) are the target's.
  std::shared_ptr<const models::ModelSpec> draft;
  bool shares_embedding = false;
  bool shares_head = false;
  std::int64_t joined_hidden = 0;  // hidden states of the target that its first layer is fed with

  // What the engine's default of asynchronous scheduling rests on.
  [[nodiscard]] bool works_ahead() const { return method == SpecDecode::Method::kEagle; }
};

// Nothing where the line does not ask for it. Adds what is wrong to `problems`, and what is taken
// for granted (the shape of a draft whose config is not known) to `assumptions`.
std::optional<Speculation> read_speculation(const launch::Launch& launch,
                                            const models::ModelSpec& target,
                                            std::vector<std::string>& assumptions,
                                            Problems& problems);

// The draft's tensors on a rank of the last stage, in the order in which they are made.
models::RankWeights draft_weights(const Speculation& speculation, const models::ShardPlan& plan);

// What the scheduler is told. `acceptance`: probability that a draft is right if those before it
// were; drafts accepted follow its distribution over a fixed sequence.
SpecDecode scheduler_speculation(const Speculation& speculation, double acceptance);

}  // namespace oomcast::vllm
