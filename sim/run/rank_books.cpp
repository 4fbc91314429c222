#include "sim/run/rank_books.hpp"

#include <algorithm>
#include <utility>

namespace oomcast {

RankBooks::RankBooks(RankState& rank, std::unique_ptr<StepMemory> steps, const UnitBytes& units)
    : rank_(rank), steps_(std::move(steps)), units_(units) {}

Bytes RankBooks::used_bytes(const KvUse& kv) const {
  Bytes sum;
  for (std::size_t pool = 0; pool < kMostPools; ++pool) {
    sum += units_[pool] * kv[pool].used;
  }
  return sum;
}

Bytes RankBooks::pool_bytes() const {
  return rank_.memory.ledger().device_by_leaf()[index_of(Leaf::kKvPool)];
}

std::optional<Outcome> RankBooks::run(const StepRun& steps) {
  step_tokens_ = steps.tokens;
  return steps_->run(steps);
}

void RankBooks::sample(SimTime at, const ServingCounts& counts) {
  TimelineRow& row = row_;
  row.at = at;
  row.kv_used = row.kv_cached = Bytes{};
  for (std::size_t pool = 0; pool < kMostPools; ++pool) {
    row.kv_used += units_[pool] * counts.kv[pool].used;
    row.kv_cached += units_[pool] * counts.kv[pool].cached;
  }
  row.kv_free = pool_bytes() - row.kv_used - row.kv_cached;
  row.running = counts.running;
  row.waiting = counts.waiting;
  row.step_tokens = step_tokens_.count();
  row.preemptions = counts.preemptions;
  row.transfer.reset();
  if (counts.transfer) {
    row.transfer =
        TransferCounts{units_.front() * counts.transfer->units, counts.transfer->requests};
  }
  row.host_used = counts.host_used;
  const std::uint64_t postings = steps_->postings();
  if (postings != 0 && postings == shown_) {
    timeline_.offer(row, true);
  } else {
    for (std::size_t moment = 0; moment < steps_->moments(); ++moment) {
      steps_->show(moment, row);
      timeline_.offer(row);
    }
    shown_ = postings;
  }
  if (at >= lowest_until_) {
    lowest_until_ = timeline_.bucket_end(at);
    lowest_ = row.kv_used;
  }
  lowest_ = std::min(lowest_, row.kv_used);
}

RankRecord RankBooks::finish() {
  rank_.memory.ledger().audit();
  RankRecord record;
  record.rank = rank_.first_rank;
  record.alike = rank_.ranks;
  record.startup = rank_.phases;
  record.timeline = timeline_.rows();
  record.device_peak = rank_.peaks.device();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    record.leaf_peaks.push_back(rank_.peaks.of(static_cast<Leaf>(leaf)));
  }
  record.device_total = rank_.memory.ledger().device_total();
  steps_->finish(record);
  return record;
}

}  // namespace oomcast
