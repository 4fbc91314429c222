#include "sim/run/vllm_offload.hpp"

namespace oomcast {

HostCopies::Copy VllmOffload::copy_of(vllm::JobId job, const vllm::BlockIds& blocks,
                                      std::int64_t cards) const {
  const Bytes link = pool_.block * std::ssize(blocks);
  return {job, link, link * cards};
}

// Every rank loads; where all have the same KV one of them stores.
void VllmOffload::note(const vllm::StepPlan& plan) {
  const vllm::StepTransfers& transfers = plan.transfers;
  for (const vllm::LoadJob& load : transfers.loads) {
    copies_.load(copy_of(load.job, load.blocks, pool_.ranks), load.tokens, load.synchronous);
  }
  for (const vllm::StoreJob& store : transfers.stores) {
    copies_.store(copy_of(store.job, store.blocks, pool_.copies));
    storing_[store.job] = store.id;
    ++stores_[store.id];
  }
  for (const RequestId id : transfers.sends) {
    told_.push_back({plan.step, id});
  }
  steps_.push_back(plan.step);
  for (const vllm::JobId job : transfers.flushes) {
    copies_.flush(job);
  }
  const Bytes used = pool_.chunk * scheduler_.host_chunks();
  copies_.hold(used, Bytes{used.count() / pool_.ranks});
  const bool news = plan.tokens > Tokens{0} || !transfers.loads.empty() ||
                    !transfers.stores.empty() || !transfers.flushes.empty() ||
                    !transfers.sends.empty();
  quiet_rounds_ = news ? 0 : quiet_rounds_ + 1;
}

const vllm::TransferReport& VllmOffload::report() {
  report_.jobs = copies_.over();
  for (const vllm::JobId job : report_.jobs) {
    if (const auto found = storing_.find(job); found != storing_.end()) {
      const RequestId id = found->second;
      storing_.erase(found);
      if (--stores_[id] == 0) {
        stores_.erase(id);
      }
    }
  }
  report_sent();
  return report_;
}

// Those that the step now completed was told of, or one before.
void VllmOffload::report_sent() {
  while (std::ssize(steps_) > scheduler_.batches_in_flight()) {
    steps_.pop_front();  // empty batches that were dropped
  }
  const std::int64_t step = steps_.front();
  steps_.pop_front();
  std::erase_if(told_, [&](const Told& told) {
    const bool sent = told.step <= step && !stores_.contains(told.id);
    if (sent) {
      report_.sent.push_back(told.id);
    }
    return sent;
  });
}

void VllmOffload::note(const vllm::StepOutput& output) {
  if (!report_.jobs.empty() || !report_.sent.empty() || !output.finished.empty() ||
      !output.failed.empty()) {
    quiet_rounds_ = 0;
  }
  report_.clear();
  copies_.clear_over();
}

// Under asynchronous scheduling the engine takes results a round late.
bool VllmOffload::quiet() const {
  return quiet_rounds_ >= 2 && copies_.over().empty() && told_.empty() &&
         !scheduler_.work_in_flight();
}

}  // namespace oomcast
