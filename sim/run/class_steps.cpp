#include "sim/run/class_steps.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "sim/core/units_text.hpp"
#include "sim/ledger/torch_pool.hpp"

namespace oomcast {
ClassSteps::ClassSteps(RankState& rank, std::unique_ptr<StepPeaks> peaks,
                       std::vector<FirstStepTensor> first)
    : rank_(rank), step_peaks_(std::move(peaks)), first_(std::move(first)) {
  // By sums, free parts of segments serve tensors as whole free segments do.
  Ledger& ledger = rank_.memory.ledger();
  const Bytes split = rank_.memory.torch().stats().inactive_split;
  const Bytes movable = std::min(split, ledger.at(Leaf::kSystemFragmentation, Backing::kSegment));
  ledger.transfer(Account::cell(Leaf::kSystemFragmentation, Backing::kSegment),
                  Account::cell(Leaf::kSystemCached, Backing::kSegment), movable);
  ledger.set_torch_idle(ledger.torch_idle() - movable);
}

bool ClassSteps::repeats(Tokens tokens, std::int64_t rows) const {
  const StepLoad load{tokens, rows, true};
  return load == before_ || step_peaks_->at(load, before_) == step_peaks_->at(load, load);
}

std::optional<Outcome> ClassSteps::run(const StepRun& steps) {
  const StepSizes wanted = step_peaks_->at(steps, before_);
  before_ = {steps.tokens, steps.rows, steps.decodes_only};
  if (wanted == live_) {
    return std::nullopt;
  }
  ++postings_;
  if (fits_into_cached(wanted, steps.start_of(0))) {
    live_ = wanted;
    return std::nullopt;
  }
  TorchPool torch(rank_.memory.ledger(), Backing::kSegment);
  for (const FirstStepTensor& tensor : std::exchange(first_, {})) {
    if (!torch.allocate(tensor.leaf, tensor.bytes)) {
      return out_of_memory(steps, tensor.leaf, tensor.bytes);
    }
  }
  for (std::size_t i = 0; i < kStepLeaves.size(); ++i) {
    if (live_[i] > Bytes{}) {
      torch.free(kStepLeaves[i], live_[i]);
    }
  }
  live_ = {};
  for (std::size_t i = 0; i < kStepLeaves.size(); ++i) {
    if (wanted[i] > Bytes{} && !torch.allocate(kStepLeaves[i], wanted[i])) {
      return out_of_memory(steps, kStepLeaves[i], wanted[i]);
    }
    live_[i] = wanted[i];
  }
  rank_.peaks.observe(rank_.memory.ledger(), steps.start_of(0), "serving");
  return std::nullopt;
}

// Posts the sum of freeing all and then allocating all where nothing is asked of the driver for it;
// else false, and nothing is posted.
bool ClassSteps::fits_into_cached(const StepSizes& wanted, SimTime at) {
  static_assert(std::has_single_bit(static_cast<std::uint64_t>(kTorchBlock.count())));
  const auto rounded = [](Bytes bytes) {
    return Bytes{(bytes.count() + kTorchBlock.count() - 1) & -kTorchBlock.count()};
  };
  Ledger& ledger = rank_.memory.ledger();
  Bytes room = ledger.at(Leaf::kSystemCached, Backing::kSegment);
  std::array<Leaf, kStepLeaves.size() + 1> leaves{};  // those that change
  StepSizes amounts{};
  std::size_t changes = 0;
  for (std::size_t i = 0; i < kStepLeaves.size(); ++i) {
    if (wanted[i] != live_[i]) {
      const Bytes more = rounded(wanted[i]) - rounded(live_[i]);
      leaves[changes] = kStepLeaves[i];
      amounts[changes++] = ledger.at(kStepLeaves[i], Backing::kSegment) + more;
      room -= more;
    }
  }
  if (!first_.empty() || room < Bytes{}) {
    return false;
  }
  ledger.settle(std::span(leaves).first(changes), std::span(amounts).first(changes),
                Leaf::kSystemCached, Backing::kSegment);
  leaves[changes++] = Leaf::kSystemCached;
  rank_.peaks.observe(ledger, at, "serving", std::span(leaves).first(changes));
  return true;
}

Outcome ClassSteps::out_of_memory(const StepRun& steps, Leaf leaf, Bytes wanted) const {
  Ledger& ledger = rank_.memory.ledger();
  Outcome outcome;
  outcome.kind = OutcomeKind::kRuntimeOom;
  outcome.phase = "runtime";
  outcome.rank = rank_.first_rank;
  outcome.leaf = leaf;
  outcome.short_by = TorchPool(ledger, Backing::kSegment).shortage(wanted);
  outcome.message = fmt::format(
      "CUDA out of memory at {:.3f} s in a step of {} tokens and {} logit rows. Tried to allocate "
      "{}. GPU {} has a total capacity of {:.2f} GiB of which {} is free; {} is allocated by "
      "PyTorch.",
      steps.start_of(0).seconds(), steps.tokens.count(), steps.rows, format_bytes(wanted),
      *outcome.rank, to_gib(ledger.device_total()), format_bytes(ledger.device_free()),
      format_bytes(ledger.views().torch_allocated));
  return outcome;
}

void ClassSteps::show(std::size_t /*moment*/, TimelineRow& row) const {
  row.device = rank_.memory.ledger().device_by_leaf();
  row.views = rank_.memory.ledger().views();
}

}  // namespace oomcast
