// What only some releases of vLLM know (models/engines/vllm/known.json).
#pragma once

#include <string_view>

#include "models/spec.hpp"
#include "sim/core/error.hpp"
#include "sim/core/version.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::vllm {

// Complains of a model that the release does not have, and of keys of --speculative-config that it
// does not take.
void check_known(const launch::Launch& launch, const models::ModelSpec& model, Problems& problems);

// Whether adapters get slots beside the embedding and the head of such models.
bool adapts_embeddings(std::string_view family, const Version& version);
// Whether the embedding gets them once more where the head is tied to it.
bool adapts_tied_embedding_twice(std::string_view family, const Version& version);

}  // namespace oomcast::vllm
