// A vLLM server with a host tier: its connector's jobs as copies beside the steps, and what of them
// is over as the report the scheduler takes.
#pragma once

#include <tsl/robin_map.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "sim/engines/vllm/host_pool.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "sim/run/host_copies.hpp"

namespace oomcast {

class VllmOffload {
 public:
  // `scheduler` must outlive it.
  VllmOffload(const vllm::Scheduler& scheduler, const vllm::HostPool& pool, double link_speed)
      : scheduler_(scheduler), pool_(pool), copies_(pool.bytes(), link_speed) {}

  [[nodiscard]] HostCopies& copies() { return copies_; }

  void note(const vllm::StepPlan& plan);
  // What was over by now; to be completed with, and then noted().
  const vllm::TransferReport& report();
  void note(const vllm::StepOutput& output);

  // Nothing happens before a copy ends or a request arrives.
  [[nodiscard]] bool quiet() const;

 private:
  [[nodiscard]] HostCopies::Copy copy_of(vllm::JobId job, const vllm::BlockIds& blocks,
                                         std::int64_t cards) const;

  // An ended request that keeps its blocks until its stores are over.
  struct Told {
    std::int64_t step = 0;  // whose workers were told of its end
    RequestId id = 0;
  };
  void report_sent();

  const vllm::Scheduler& scheduler_;
  vllm::HostPool pool_;
  HostCopies copies_;
  vllm::TransferReport report_;
  std::deque<std::int64_t> steps_;  // planned and not completed
  std::vector<Told> told_;
  tsl::robin_map<vllm::JobId, RequestId> storing_;  // never iterated
  tsl::robin_map<RequestId, std::int64_t> stores_;  // under way; never iterated
  std::int64_t quiet_rounds_ = 0;
};

}  // namespace oomcast
