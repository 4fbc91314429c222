#include "sim/run/rank_books.hpp"

#include <fmt/core.h>

#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/ledger/torch_pool.hpp"

namespace oomcast {

RankBooks::RankBooks(const vllm::Deployment& deployment, vllm::StageState stage)
    : deployment_(&deployment),
      stage_(std::move(stage)),
      step_peaks_(deployment, stage_.stage),
      block_bytes_(stage_.kv.block_bytes()) {}

Bytes RankBooks::pool_bytes() const {
  return stage_.memory.ledger().device_by_leaf()[index_of(Leaf::kKvPool)];
}

std::optional<Outcome> RankBooks::run_step(SimTime at, Tokens tokens, std::int64_t rows) {
  step_tokens_ = tokens;
  const vllm::StepPeaks::Sizes wanted =
      step_peaks_.at(tokens, rows);
  if (wanted == live_) {
    return std::nullopt;
  }
  TorchPool torch(stage_.memory.ledger(), Backing::kSegment);
  const auto& leaves = vllm::StepPeaks::kLeaves;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    torch.free(leaves[i], live_[i]);
  }
  live_ = {};
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (torch.allocate(leaves[i], wanted[i])) {
      live_[i] = wanted[i];
      continue;
    }
    const MemoryViews views = stage_.memory.ledger().views();
    Outcome outcome;
    outcome.kind = OutcomeKind::kRuntimeOom;
    outcome.phase = "runtime";
    outcome.rank = stage_.stage * deployment_->tp;
    outcome.leaf = leaves[i];
    outcome.short_by = torch.shortage(wanted[i]);
    outcome.message = fmt::format(
        "CUDA out of memory at {:.3f} s in a step of {} tokens and {} logit rows. Tried to "
        "allocate "
        "{}. GPU {} has a total capacity of {:.2f} GiB of which {} is free; {} is allocated by "
        "PyTorch.",
        at.seconds(), tokens.count(), rows, format_bytes(wanted[i]), *outcome.rank,
        to_gib(stage_.memory.ledger().device_total()), format_bytes(stage_.memory.ledger().device_free()),
        format_bytes(views.torch_allocated));
    return outcome;
  }
  stage_.peaks.observe(stage_.memory.ledger(), at, "serving");
  return std::nullopt;
}

void RankBooks::sample(SimTime at, const ServingCounts& counts) {
  TimelineRow row;
  row.at = at;
  row.device = stage_.memory.ledger().device_by_leaf();
  row.views = stage_.memory.ledger().views();
  row.kv_used = block_bytes_ * counts.kv_used.count();
  row.kv_cached = block_bytes_ * counts.kv_cached.count();
  row.kv_free = pool_bytes() - row.kv_used - row.kv_cached;
  row.running = counts.running;
  row.waiting = counts.waiting;
  row.step_tokens = step_tokens_.count();
  row.preemptions = counts.preemptions;
  timeline_.offer(row);
}

RankRecord RankBooks::finish(int first_rank, int alike) const {
  stage_.memory.ledger().audit();
  RankRecord record;
  record.rank = first_rank;
  record.alike = alike;
  record.startup = stage_.phases;
  record.timeline = timeline_.rows();
  record.device_peak = stage_.peaks.device();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    record.leaf_peaks.push_back(stage_.peaks.of(static_cast<Leaf>(leaf)));
  }
  record.device_total = stage_.memory.ledger().device_total();
  return record;
}

}  // namespace oomcast
