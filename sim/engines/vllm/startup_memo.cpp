#include "sim/engines/vllm/startup_memo.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "sim/core/digest.hpp"

namespace oomcast::vllm {
namespace {

constexpr std::array<std::string_view, 3> kBudgetFlags = {
    "gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override"};

void add_text(Digest& digest, std::string_view text) {
  digest.add_word(std::hash<std::string_view>{}(text));
}

// Of all that a startup reads before its KV budget.
std::uint64_t key_of(const Deployment& deployment, int stage) {
  const launch::Launch& launch = deployment.launch;
  Digest digest;
  digest.add_word(static_cast<std::uint64_t>(stage));
  add_text(digest, launch.version_text);
  add_text(digest, deployment.gpu.name);
  digest.add_word(reinterpret_cast<std::uintptr_t>(deployment.model.get()));
  for (const auto& [flag, value] : launch.flags) {
    if (!is_budget_flag(flag)) {
      add_text(digest, flag);
      digest.add_word(std::hash<Json>{}(value.value));
      digest.add_word(static_cast<std::uint64_t>(value.origin));
    }
  }
  for (const auto& [name, value] : launch.environment) {
    add_text(digest, name);
    add_text(digest, value);
  }
  return digest.value();
}

}  // namespace

bool is_budget_flag(std::string_view flag) {
  return std::find(kBudgetFlags.begin(), kBudgetFlags.end(), flag) != kBudgetFlags.end();
}

const MeasuredStage* StartupMemo::measured(const Deployment& deployment, int stage) const {
  const std::uint64_t key = key_of(deployment, stage);
  const auto at = std::find_if(stages_.begin(), stages_.end(),
                               [key](const Kept& kept) { return kept.key == key; });
  return at == stages_.end() ? nullptr : &at->stage;
}

void StartupMemo::keep(const Deployment& deployment, MeasuredStage stage) {
  if (stages_.size() == kMostStages) {
    stages_.erase(stages_.begin());
  }
  const int number = stage.state.stage;
  stages_.push_back({key_of(deployment, number), std::move(stage)});
}

const CaptureEffects* StartupMemo::effects(const Deployment& deployment,
                                           const CapturePrograms& programs) {
  const allocator::AllocatorSettings& settings = deployment.allocator_settings;
  if (settings.garbage_collection_threshold > 0 || settings.per_process_memory_fraction < 1) {
    return nullptr;
  }
  const auto [at, is_new] = effects_.try_emplace(programs.digest());
  if (is_new) {
    at->second = simulate_captures(deployment, programs);
  }
  return &at->second;
}

}  // namespace oomcast::vllm
