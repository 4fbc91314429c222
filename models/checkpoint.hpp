// What lies beside a config.json: the size of the checkpoint itself, from the index of its shards
// (model.safetensors.index.json) or from the headers of its files. It wins over arithmetic.
#pragma once

#include <optional>
#include <string>

#include "models/spec.hpp"

namespace oomcast::models {

struct CheckpointFiles {
  Bytes tensors;       // of all files, without their headers
  std::string source;  // the file or files read
};

// Looks in the folder of a config.json; NAME.json has NAME.safetensors.index.json. nullopt: nothing
// there. Throws ConfigError for an index or a header that is damaged or claims the impossible.
std::optional<CheckpointFiles> find_checkpoint(const std::string& config_path);

// Bytes of the checkpoint's tensors as arithmetic has them: towers and drafts, scales, no buffers.
Bytes computed_checkpoint(const ModelSpec& spec);

// Compares the two. Where they differ by more than what padding and small vectors explain,
// spec.checkpoint is set, which weights_on_rank() follows, and a note says by how much. Throws
// ConfigError where the files cannot be of this model (a quarter or four times the size).
void follow_checkpoint(const CheckpointFiles& files, ModelSpec& spec);

}  // namespace oomcast::models
