#include "sim/engines/vllm/step_memory.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "sim/core/error.hpp"

namespace oomcast::vllm {
namespace {

using models::DType;
using models::FfnKind;
using models::FfnSpec;

std::int64_t element_bytes(const Deployment& deployment) {
  return models::bits_of(deployment.dtype) / 8;
}

// T x width x b, the size of every activation.
Bytes activation(const Deployment& deployment, Tokens tokens, std::int64_t width) {
  return Bytes{element_bytes(deployment)} * detail::checked_mul(tokens.count(), width);
}

// Widest dense MLP over all layers, per rank.
std::int64_t dense_width(const Deployment& deployment) {
  std::int64_t widest = 0;
  for (const auto& layer : deployment.model->layer_kinds) {
    const FfnSpec& ffn = layer.ffn;
    widest = std::max({widest, ffn.width, ffn.kind == FfnKind::kMoe ? ffn.shared_width : 0});
  }
  return div_ceil(widest, deployment.tp);
}

// M x k x (max(A, K) + max(N, K)) x b with N = 2I local, A = N/2, K = H: the Triton experts' two
// workspaces, shared by all layers and kept (facts: vLLM 3.4).
Bytes moe_workspace(const Deployment& deployment, Tokens tokens) {
  Bytes largest;
  for (const auto& layer : deployment.model->layer_kinds) {
    const FfnSpec& ffn = layer.ffn;
    if (ffn.kind != FfnKind::kMoe || ffn.experts == 0) {
      continue;
    }
    const std::int64_t width =
        deployment.ep > 1 ? ffn.expert_width : div_ceil(ffn.expert_width, deployment.tp);
    const std::int64_t hidden = deployment.model->hidden;
    const std::int64_t columns = std::max(width, hidden) + std::max(2 * width, hidden);
    largest = std::max(largest, activation(deployment, tokens * ffn.experts_per_token, columns));
  }
  return largest;
}

// Whether q and k are normalised head by head (a norm of head_dim weights), not over their width.
bool normalises_heads(const models::LayerSpec& layer) {
  return layer.attention.qk_norm &&
         std::any_of(layer.tensors.begin(), layer.tensors.end(), [&](const auto& tensor) {
           return tensor.name.find("q_norm") != std::string_view::npos &&
                  std::all_of(tensor.rows.begin(), tensor.rows.end(), [&](const auto& extent) {
                    return extent.units * extent.size == layer.attention.head_dim;
                  });
         });
}

// Activations that eager norms leave alive beyond the three of every layer, in units of T x H x b:
// one for norms per head; two for Gemma's norms, which work on a 32-bit copy.
std::int64_t eager_norm_copies(const Deployment& deployment) {
  if (!deployment.enforce_eager) {
    return 0;
  }
  if (deployment.model->family.rfind("gemma", 0) == 0) {
    return 2;
  }
  const auto& kinds = deployment.model->layer_kinds;
  return std::any_of(kinds.begin(), kinds.end(), normalises_heads) ? 1 : 0;
}

Bytes logits_unit(const Deployment& deployment, std::int64_t rows) {
  return Bytes{4} * detail::checked_mul(rows, deployment.model->vocabulary);
}

Bytes scaled(Bytes bytes, double factor) {
  return Bytes{std::llround(static_cast<double>(bytes.count()) * factor)};
}

}  // namespace

Bytes LiveSet::bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), Bytes{},
                         [](Bytes sum, const LiveTensor& tensor) { return sum + tensor.bytes; });
}

LiveSet forward_live_set(const Deployment& deployment, StageRole role, Tokens tokens) {
  const std::int64_t hidden = deployment.model->hidden;
  LiveSet set{"forward", {}};
  const auto add = [&](const char* name, const char* formula, std::int64_t width,
                       Leaf leaf = Leaf::kRuntimeActivations) {
    set.tensors.push_back({name, formula, leaf, activation(deployment, tokens, width)});
  };
  add("hidden_states", "T x H x b", hidden);
  add("residual, from the caller", "T x H x b", hidden);
  add("residual, of this layer", "T x H x b", hidden);
  if (const std::int64_t copies = eager_norm_copies(deployment); copies > 0) {
    add("copies of eager norms", copies == 1 ? "T x H x b" : "2 x T x H x b", copies * hidden);
  }
  if (const std::int64_t width = dense_width(deployment); width > 0) {
    add("gate_up", "T x 2I/tp x b", 2 * width, Leaf::kRuntimeIntermediates);
    add("activation output", "T x I/tp x b", width, Leaf::kRuntimeIntermediates);
  }
  if (const Bytes workspace = moe_workspace(deployment, tokens); workspace > Bytes{0}) {
    set.tensors.push_back({"expert workspaces", "T x k x (max(I, H) + max(2I, H)) x b",
                           Leaf::kWorkspaceMoe, workspace});
  }
  if (!role.first) {
    add("intermediate tensors of the stage before", "2 x T x H x b", 2 * hidden);
  }
  return set;
}

LiveSet sampler_live_set(const Deployment& deployment, StageRole role, Tokens tokens,
                         std::int64_t rows, double units) {
  LiveSet set{"sampler", {}};
  if (!role.last || rows == 0) {
    return set;
  }
  const std::int64_t hidden = deployment.model->hidden;
  set.tensors.push_back({"hidden_states", "T x H x b", Leaf::kRuntimeActivations,
                         activation(deployment, tokens, hidden)});
  if (!role.first) {
    set.tensors.push_back({"intermediate tensors of the stage before", "2 x T x H x b",
                           Leaf::kRuntimeActivations, activation(deployment, tokens, 2 * hidden)});
  }
  // Runner V1 keeps the gathered last hidden states and a copy of the same shape; V2 one of them.
  const std::int64_t copies = deployment.runner_v2 ? 1 : 2;
  set.tensors.push_back({"last hidden states", deployment.runner_v2 ? "R x H x b" : "2 x R x H x b",
                         Leaf::kRuntimeActivations,
                         activation(deployment, Tokens{rows}, copies * hidden)});
  const Bytes unit = logits_unit(deployment, rows);
  const bool half = deployment.dtype != DType::kFloat32;
  double rest = units;
  const auto add = [&](const char* name, const char* formula, double share) {
    if (rest >= share) {
      set.tensors.push_back({name, formula, Leaf::kRuntimeLogits, scaled(unit, share)});
      rest -= share;
    }
  };
  if (half) {
    add("logits, 16 bit", "R x V x 2", 0.5);
  }
  add("logits, fp32", "R x V x 4", 1.0);
  if (units > 6) {
    // Radix sort of all rows (up to 0.16).
    add("sorted logits", "R x V x 4", 1.0);
    add("sort indices, int64", "R x V x 8", 2.0);
    add("segmented sort: reverse index", "R x V x 8", 2.0);
    add("segmented sort: scratch", "R x V x 12", 3.0);
  } else {
    add("top-k/top-p mask or probabilities", "R x V x 4", 1.0);
    add("exponential noise or softmax", "R x V x 4", 1.0);
    add("second fp32 copy", "R x V x 4", 1.0);
  }
  return set;
}

LiveSet compile_live_set(const Deployment& deployment, StageRole role, Tokens tokens) {
  LiveSet set{"embedding autotune", {}};
  if (deployment.enforce_eager || deployment.assumed.warm_compile_cache || !role.first) {
    return set;
  }
  constexpr std::int64_t kVocabularyPadding = 64;
  const std::int64_t hidden = deployment.model->hidden;
  const std::int64_t rows =
      align_up(deployment.model->vocabulary, kVocabularyPadding) / deployment.tp;
  set.tensors.push_back({"made-up embedding weights", "V/tp x H x b", Leaf::kRuntimeIntermediates,
                         activation(deployment, Tokens{rows}, hidden)});
  set.tensors.push_back({"made-up activations", "2 x T x H x b", Leaf::kRuntimeActivations,
                         activation(deployment, tokens, 2 * hidden)});
  return set;
}

double profile_sampler_units(const Deployment& deployment) {
  const double half_units =
      deployment.runner_v2 ? deployment.rules.sampler_units_v2 : deployment.rules.sampler_units_v1;
  if (deployment.dtype != DType::kFloat32) {
    return half_units;
  }
  // fp32 logits need no 16-bit original; V1 then copies nothing, V2 copies all the same.
  return deployment.runner_v2 ? half_units + 0.5 : half_units - 0.5;
}

double serving_sampler_units(const Deployment& deployment) {
  // Logits, fp32 copy, probabilities and noise (or mask): what a random sample takes, also where
  // the profile run of that version covers less.
  constexpr double kRandomSample = 3.5;
  return std::max(profile_sampler_units(deployment), kRandomSample);
}

Bytes cublas_workspace(const models::GpuSpec& gpu) {
  constexpr Bytes kHopper{33'554'432};
  constexpr Bytes kOlder{8'519'680};
  return gpu.compute_major >= 9 ? kHopper : kOlder;
}

Bytes sampler_buffer(const Deployment& deployment, std::int64_t rows) {
  if (deployment.runner_v2 || !deployment.rules.sampler_buffer_v1) {
    return Bytes{0};
  }
  const auto multiprocessors = static_cast<std::uint64_t>(deployment.gpu.sm_count);
  const auto smaller = std::min(multiprocessors, static_cast<std::uint64_t>(rows));
  const auto programs = std::min(std::bit_ceil(smaller), multiprocessors);
  return Bytes{4} *
         detail::checked_mul(static_cast<std::int64_t>(programs), deployment.model->vocabulary);
}

std::vector<LiveTensor> runner_buffers(const Deployment& deployment, StageRole role) {
  const std::int64_t tokens = deployment.max_num_batched_tokens.count();
  const std::int64_t seqs = deployment.max_num_seqs;
  const std::int64_t hidden = deployment.model->hidden;
  const std::int64_t vocabulary = deployment.model->vocabulary;
  std::vector<LiveTensor> buffers;
  const auto add = [&](const char* name, const char* formula, Leaf leaf, std::int64_t bytes) {
    buffers.push_back({name, formula, leaf, Bytes{bytes}});
  };
  const std::int64_t b = element_bytes(deployment);
  add("input_ids, positions, request indices", "T x (4 + 8 + 8)", Leaf::kModelBuffers, tokens * 20);
  if (deployment.runner_v2 && !role.last) {
    add("hidden states for the next stage", "T x H x b", Leaf::kModelBuffers,
        detail::checked_mul(tokens, hidden) * b);
  }
  if (deployment.runner_v2 && role.last) {
    const std::int64_t words = div_ceil(vocabulary, 32);
    add("penalty tables", "N x V x 4 + N x ceil(V/32) x 4", Leaf::kModelBuffers,
        detail::checked_mul(seqs * 4, vocabulary + words));
    add("grammar bitmask", "N x ceil(V/32) x 4", Leaf::kModelBuffers, seqs * words * 4);
  }
  if (deployment.runner_v2) {
    add("other runner tensors", "measured", Leaf::kModelBuffers,
        deployment.rules.runner_v2_resident.count());
  } else {
    add("inputs_embeds", "T x H x b", Leaf::kModelBuffers, detail::checked_mul(tokens, hidden) * b);
    if (!role.first) {
      add("intermediate tensors", "2 x T x H x b", Leaf::kModelBuffers,
          detail::checked_mul(2 * tokens, hidden) * b);
    }
  }
  return buffers;
}

std::vector<LiveTensor> block_tables(const Deployment& deployment, const KvLayout& layout) {
  const std::int64_t seqs = deployment.max_num_seqs;
  std::vector<LiveTensor> tables;
  for (const KvGroupLayout& member : layout.groups) {
    // Rows are padded so that a row's slots align to 128 tokens.
    constexpr std::int64_t kAlignment = 128;
    const std::int64_t block = member.group.block_size.count();
    const std::int64_t width = align_up(div_ceil(deployment.max_model_len.count(), block),
                                        kAlignment / std::gcd(kAlignment, block));
    const std::int64_t copies = deployment.runner_v2 ? 2 : 1;
    tables.push_back({"block table",
                      copies == 2 ? "2 x N x ceil(L/block) x 4" : "N x ceil(L/block) x 4",
                      Leaf::kKvMetadata, Bytes{4} * detail::checked_mul(seqs * copies, width)});
    tables.push_back({"slot mapping", "T x 8", Leaf::kKvMetadata,
                      Bytes{8} * deployment.max_num_batched_tokens.count()});
  }
  return tables;
}

}  // namespace oomcast::vllm
