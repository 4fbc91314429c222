#include "sim/run/vllm_handoff.hpp"

#include <algorithm>

namespace oomcast {

// The prefill side is asked for one token, which the client does not get.
void VllmHandoff::enter(vllm::RequestSpec& spec) {
  using Remote = vllm::KvTransferParams::Remote;
  spec.transfer.remote = role_ == Role::kPrefill ? Remote::kDecode : Remote::kPrefill;
  if (role_ == Role::kPrefill) {
    spec.max_output = std::min(spec.max_output, Tokens{1});
  }
  quiet_rounds_ = 0;
}

void VllmHandoff::transferred(RequestId id) {
  if (role_ == Role::kPrefill) {
    report_.sent.push_back(id);
  } else if (receiving_.erase(id) > 0) {
    report_.received.push_back({id, false, {}});
  }
}

// NIXL reports all of the request as failed; by the policy it ends, or is computed here.
bool VllmHandoff::lost(RequestId id) {
  if (role_ == Role::kDecode && receiving_.erase(id) > 0) {
    report_.received.push_back({id, true, {}});
    return true;
  }
  return false;
}

// A read that was begun is reported all the same: until then its blocks stay.
void VllmHandoff::give_up(RequestId id) {
  scheduler_.abort(id);
  if (receiving_.erase(id) > 0) {
    report_.received.push_back({id, false, {}});
  }
  quiet_rounds_ = 0;
  held_.reset();
}

TransferHold VllmHandoff::held() const {
  if (!held_) {
    const vllm::TransferCounts counts = scheduler_.transfers();
    held_ = role_ == Role::kPrefill ? TransferHold{counts.held, counts.held_blocks.count()}
                                    : TransferHold{counts.remote, counts.remote_blocks.count()};
  }
  return *held_;
}

void VllmHandoff::note(const vllm::StepPlan& plan) {
  const vllm::StepTransfers& transfers = plan.transfers;
  const bool news = plan.tokens > Tokens{0} || !transfers.receives.empty() ||
                    !transfers.notifies.empty() || !transfers.sends.empty();
  quiet_rounds_ = news ? 0 : quiet_rounds_ + 1;
  if (!transfers.receives.empty() || !plan.admitted.empty() || !plan.preempted.empty()) {
    held_.reset();
  }
  for (const vllm::Receive& receive : transfers.receives) {
    receiving_.insert(receive.id);
    wants_.push_back({receive.id, receive.tokens});
  }
  for (const RequestId id : transfers.notifies) {
    wants_.push_back({id, Tokens{0}});
  }
}

void VllmHandoff::note(const vllm::StepOutput& output) {
  if (!report_.received.empty() || !report_.sent.empty()) {
    quiet_rounds_ = 0;
    report_.clear();
    held_.reset();
  }
  if (!output.handoffs.empty()) {
    held_.reset();
  }
  for (const vllm::Handoff& handoff : output.handoffs) {
    pieces_.push_back({handoff.id, handoff.tokens, true});
  }
  if (!output.finished.empty() || !output.failed.empty() || !output.handoffs.empty()) {
    quiet_rounds_ = 0;
  }
}

bool VllmHandoff::quiet() const {
  return quiet_rounds_ >= 2 && report_.received.empty() && report_.sent.empty();
}

}  // namespace oomcast
