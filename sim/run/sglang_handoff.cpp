#include "sim/run/sglang_handoff.hpp"

#include <algorithm>

namespace oomcast {

void SglangHandoff::note(const sglang::StepPlan& plan) {
  const sglang::TransferPlan& transfers = plan.transfers;
  const bool news = plan.kind != sglang::Kind::kIdle || !transfers.bootstrapped.empty() ||
                    !transfers.resumed.empty() || !transfers.preallocated.empty() ||
                    !transfers.arrived.empty() || !transfers.joined.empty();
  quiet_rounds_ = news ? 0 : quiet_rounds_ + 1;
  for (const RequestId id : transfers.preallocated) {
    hold(id);
    wants_.push_back({id, prompts_[id]});
  }
  for (const RequestId id : transfers.arrived) {
    release(id);
  }
  for (const RequestId id : plan.aborted) {
    release(id);
  }
  if (role_ == sglang::Role::kPrefill && plan.chunked) {
    const auto row =
        std::find_if(plan.extended.begin(), plan.extended.end(),
                     [&](const sglang::ExtendedRequest& it) { return it.id == *plan.chunked; });
    if (row != plan.extended.end()) {
      const Tokens end = row->prefix + row->tokens;
      chunks_.push_back({plan.step, row->id, Tokens{end.count() - end.count() % page_.count()}});
    }
  }
}

void SglangHandoff::note(const sglang::StepOutput& output) {
  if (!output.finished.empty() || !output.sending.empty()) {
    quiet_rounds_ = 0;
  }
  // Each finished chunk is sent at once, in whole pages.
  while (!chunks_.empty() && chunks_.front().step <= output.step) {
    if (prompts_.contains(chunks_.front().id)) {
      pieces_.push_back({chunks_.front().id, chunks_.front().upto, false});
    }
    chunks_.pop_front();
  }
  for (const RequestId id : output.sending) {
    // Who was given up while the prompt was computed sends nothing.
    if (const auto prompt = prompts_.find(id); prompt != prompts_.end()) {
      pieces_.push_back({id, prompt->second, true});
      hold(id);
    }
  }
  if (role_ == sglang::Role::kPrefill) {
    for (const sglang::FinishedRequest& request : output.finished) {
      release(request.id);
    }
  }
}

void SglangHandoff::hold(RequestId id) {
  const Tokens tokens = align_up(prompts_[id], page_);
  held_[id] = tokens;
  held_tokens_ += tokens;
}

void SglangHandoff::release(RequestId id) {
  prompts_.erase(id);
  const auto place = held_.find(id);
  if (place != held_.end()) {
    held_tokens_ -= place->second;
    held_.erase(place);
  }
}

}  // namespace oomcast
