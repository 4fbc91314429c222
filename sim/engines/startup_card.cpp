#include "sim/engines/startup_card.hpp"

#include <algorithm>
#include <utility>

#include "sim/engines/startup_tag.hpp"

namespace oomcast {

Leaf ledger_leaf(models::WeightLeaf leaf) {
  switch (leaf) {
    case models::WeightLeaf::kScales:
      return Leaf::kModelScales;
    case models::WeightLeaf::kBuffers:
      return Leaf::kModelBuffers;
    case models::WeightLeaf::kWeights:
      break;
  }
  return Leaf::kModelWeights;
}

bool StartupCard::end() {
  const Ledger& ledger = state_.memory.ledger();
  const MemoryViews views = ledger.views();
  state_.phases.push_back(
      {phase_, views, ledger.device_by_leaf(), std::max(phase_peak_, views.device_used)});
  phase_peak_ = Bytes{0};
  return true;
}

std::optional<CardMemory::Tensor> StartupCard::make(Leaf leaf, Bytes bytes) {
  const auto made = state_.memory.allocate(leaf, bytes, startup_tag(phase_, leaf));
  if (made) {
    seen();
  } else {
    fail(OutcomeKind::kStartupOom, leaf, state_.memory.shortage(), state_.memory.message());
  }
  return made;
}

bool StartupCard::allocate_all(const std::vector<opgraph::LiveTensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [this](const opgraph::LiveTensor& tensor) {
    return allocate(tensor.leaf, tensor.bytes);
  });
}

bool StartupCard::outside(Leaf leaf, Backing backing, Bytes bytes) {
  return posted(leaf, state_.memory.take_outside(leaf, backing, bytes));
}

bool StartupCard::correct(Leaf leaf, Backing backing, Bytes more) {
  return posted(leaf, state_.memory.correct_outside(leaf, backing, more));
}

bool StartupCard::posted(Leaf leaf, bool fits) {
  if (!fits) {
    fail(OutcomeKind::kStartupOom, leaf, state_.memory.shortage(), state_.memory.message());
    return false;
  }
  seen();
  return true;
}

bool StartupCard::outside_all(Leaf leaf, const std::vector<Buffer>& buffers) {
  const auto on = [&buffers](Backing backing) {
    Bytes sum;
    for (const Buffer& buffer : buffers) {
      sum += buffer.backing == backing ? buffer.bytes : Bytes{0};
    }
    return sum;
  };
  state_.memory.ledger().transfer(Account::free_of(Backing::kPinnedHost),
                                  Account::cell(leaf, Backing::kPinnedHost),
                                  on(Backing::kPinnedHost));
  return outside(leaf, Backing::kDriver, on(Backing::kDriver)) &&
         outside(leaf, Backing::kSymmetric, on(Backing::kSymmetric)) &&
         outside(leaf, Backing::kContext, on(Backing::kContext));
}

void StartupCard::seen() {
  const Ledger& ledger = state_.memory.ledger();
  state_.peaks.observe(ledger, SimTime{}, phase_);
  phase_peak_ = std::max(phase_peak_, ledger.views().device_used);
}

void StartupCard::fail(OutcomeKind kind, Leaf leaf, Bytes missing, std::string message) {
  seen();
  outcome_.kind = kind;
  outcome_.phase = phase_;
  outcome_.rank = state_.first_rank;
  outcome_.leaf = leaf;
  outcome_.short_by = missing;
  outcome_.message = std::move(message);
}

}  // namespace oomcast
