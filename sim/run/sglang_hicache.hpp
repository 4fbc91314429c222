// A SGLang server with a host tier: what its prefix tree copies, as copies beside the steps.
#pragma once

#include "sim/engines/sglang/scheduler.hpp"
#include "sim/run/host_copies.hpp"

namespace oomcast {

class SglangHicache {
 public:
  struct Pool {
    Bytes bytes;  // of a rank
    Bytes token;  // of one rank's token
    std::int64_t ranks = 1;
    std::int64_t layers = 1;
  };

  // `scheduler` must outlive it. Bytes per second of a card's link in one direction.
  SglangHicache(sglang::Scheduler& scheduler, const Pool& pool, double link_speed)
      : scheduler_(scheduler), pool_(pool), copies_(pool.bytes * pool.ranks, link_speed) {}

  [[nodiscard]] HostCopies& copies() { return copies_; }

  // Before a round: the scheduler hears of copies that are over.
  void report();
  void note(const sglang::StepPlan& plan);
  void note(const sglang::StepOutput& output);
  // The next round would hear of a copy.
  [[nodiscard]] bool has_news() const { return !copies_.over().empty(); }

 private:
  void hold();
  [[nodiscard]] HostCopies::Copy copy_of(std::int64_t job, Tokens tokens) const;

  sglang::Scheduler& scheduler_;
  Pool pool_;
  HostCopies copies_;
  std::int64_t awaited_ = 0;
};

}  // namespace oomcast
