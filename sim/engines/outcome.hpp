// What becomes of a deployment, whatever the engine: data in the record, never an exception.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/ledger/ledger.hpp"

namespace oomcast {

enum class OutcomeKind { kServed, kStartupOom, kKvTooSmall, kRuntimeOom, kConfigRejected };

constexpr std::string_view name_of(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::kServed:
      return "served";
    case OutcomeKind::kStartupOom:
      return "startup_oom";
    case OutcomeKind::kKvTooSmall:
      return "kv_too_small";
    case OutcomeKind::kRuntimeOom:
      return "runtime_oom";
    case OutcomeKind::kConfigRejected:
      return "config_rejected";
  }
  return "";
}

// A change that was simulated and found to work.
struct Fix {
  std::string change;  // "--max-num-seqs 256"
  Bytes frees;         // what the failing rank gains by it
};

struct Outcome {
  OutcomeKind kind = OutcomeKind::kServed;
  std::string phase;  // empty when served
  std::optional<int> rank;
  std::optional<Leaf> leaf;  // whose allocation did not fit
  Bytes short_by;
  std::string message;  // in the engine's own words
  std::vector<Fix> fixes;

  [[nodiscard]] bool fits() const { return kind == OutcomeKind::kServed; }
};

// One startup phase as it ends, and the highest point within it.
struct PhaseRecord {
  std::string_view name;
  MemoryViews views;
  LeafBytes device{};  // by leaf; sums to views.device_used
  Bytes device_peak;
};

// What the engine's own log would print, in its units and meaning; empty where it prints nothing.
struct EngineReport {
  std::optional<Bytes> total;
  std::optional<Bytes> weights;
  std::optional<Bytes> activation_peak;
  std::optional<Bytes> non_torch;
  std::optional<Bytes> consumed;
  std::optional<Bytes> cudagraph;
  std::optional<Bytes> cudagraph_estimate;
  std::optional<Bytes> available_kv;
  std::optional<std::int64_t> kv_tokens;
  std::optional<std::int64_t> kv_blocks;
  std::optional<std::int64_t> block_size;
  std::optional<double> max_concurrency;
  std::optional<std::int64_t> max_running_requests;
  // SGLang: free memory as it logs it after loading, after the pools and at the end.
  std::optional<Bytes> available_after_load;
  std::optional<Bytes> available_after_pool;
  std::optional<Bytes> available_at_end;
  std::optional<std::int64_t> window_tokens;  // SGLang: the sliding-window pool
  std::optional<Bytes> draft_weights;
  // Recurrent state: SGLang's pool and its slots; vLLM's blocks in the error that names them.
  std::optional<Bytes> state_pool;
  std::optional<std::int64_t> state_slots;
  std::optional<std::int64_t> state_blocks;
  // vLLM's text on a KV cache too small.
  std::optional<Bytes> kv_needed;
  std::optional<std::int64_t> longest_that_fits;
};

}  // namespace oomcast
