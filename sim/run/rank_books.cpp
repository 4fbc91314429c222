#include "sim/run/rank_books.hpp"

#include <utility>

namespace oomcast {

RankBooks::RankBooks(const vllm::Deployment& deployment, vllm::StageState stage, Blocks blocks,
                     Detail detail, bool remembers)
    : stage_(std::make_unique<vllm::StageState>(std::move(stage))),
      steps_(make_step_memory(deployment, *stage_, blocks, detail, remembers)),
      block_bytes_(stage_->kv.block_bytes()) {}

Bytes RankBooks::pool_bytes() const {
  return stage_->memory.ledger().device_by_leaf()[index_of(Leaf::kKvPool)];
}

std::optional<Outcome> RankBooks::run(const StepRun& steps) {
  step_tokens_ = steps.tokens;
  return steps_->run(steps);
}

void RankBooks::sample(SimTime at, const ServingCounts& counts) {
  TimelineRow row;
  row.at = at;
  row.kv_used = block_bytes_ * counts.kv_used.count();
  row.kv_cached = block_bytes_ * counts.kv_cached.count();
  row.kv_free = pool_bytes() - row.kv_used - row.kv_cached;
  row.running = counts.running;
  row.waiting = counts.waiting;
  row.step_tokens = step_tokens_.count();
  row.preemptions = counts.preemptions;
  for (std::size_t moment = 0; moment < steps_->moments(); ++moment) {
    steps_->show(moment, row);
    timeline_.offer(row);
  }
}

RankRecord RankBooks::finish(int first_rank, int alike) {
  stage_->memory.ledger().audit();
  RankRecord record;
  record.rank = first_rank;
  record.alike = alike;
  record.startup = stage_->phases;
  record.timeline = timeline_.rows();
  record.device_peak = stage_->peaks.device();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    record.leaf_peaks.push_back(stage_->peaks.of(static_cast<Leaf>(leaf)));
  }
  record.device_total = stage_->memory.ledger().device_total();
  steps_->finish(record);
  return record;
}

}  // namespace oomcast
