// One rank's card during an engine's startup: allocations by phase, phase ends, and what stopped
// it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec.hpp"
#include "sim/engines/outcome.hpp"
#include "sim/engines/rank_state.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast {

// Where the ledger keeps a tensor of the model.
Leaf ledger_leaf(models::WeightLeaf leaf);

// Every posting returns false, or nothing, after an out-of-memory, which is then the outcome.
class StartupCard {
 public:
  // `state` must outlive the card.
  explicit StartupCard(RankState& state) : state_(state) {}

  // Later postings belong to this phase, one of kStartupPhases.
  void begin(std::string_view phase) { phase_ = phase; }
  // Notes what stands at the phase's end. Always true.
  bool end();

  [[nodiscard]] std::optional<CardMemory::Tensor> make(Leaf leaf, Bytes bytes);
  [[nodiscard]] bool allocate(Leaf leaf, Bytes bytes) { return make(leaf, bytes).has_value(); }
  [[nodiscard]] bool allocate_all(const std::vector<opgraph::LiveTensor>& tensors);
  [[nodiscard]] bool outside(Leaf leaf, Backing backing, Bytes bytes);
  // What a calibration found beyond that, or less.
  [[nodiscard]] bool correct(Leaf leaf, Backing backing, Bytes more);
  // Buffers of a communicator, each on its own backing; pinned host memory has no limit here.
  [[nodiscard]] bool outside_all(Leaf leaf, const std::vector<Buffer>& buffers);

  // Looks at peaks, after what the card did by itself.
  void seen();
  [[nodiscard]] std::string_view phase() const { return phase_; }
  // The engine's words for what just failed.
  void say(std::string message) { outcome_.message = std::move(message); }
  // What stopped it, as a startup alike found before.
  void take(const Outcome& outcome) { outcome_ = outcome; }
  void fail(OutcomeKind kind, Leaf leaf, Bytes missing, std::string message);

  [[nodiscard]] const Outcome& outcome() const { return outcome_; }
  // By PyTorch, in whole blocks.
  [[nodiscard]] Bytes allocated() const { return state_.memory.ledger().views().torch_allocated; }
  [[nodiscard]] Bytes device_free() const { return state_.memory.ledger().device_free(); }

 private:
  // An out-of-memory is the outcome.
  bool posted(Leaf leaf, bool fits);

  RankState& state_;
  std::string_view phase_ = "context";
  Bytes phase_peak_;
  Outcome outcome_;
};

}  // namespace oomcast
