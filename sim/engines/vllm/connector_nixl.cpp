#include "sim/engines/vllm/connector_nixl.hpp"

#include <algorithm>
#include <utility>

namespace oomcast::vllm {

using Remote = KvTransferParams::Remote;

NixlConnector::NixlConnector(const SchedulerConfig& config)
    : config_(*config.connector), groups_(config.groups) {
  has_states_ = std::any_of(groups_.begin(), groups_.end(), [](const KvGroup& group) {
    return group.type == KvGroup::Type::kMamba;
  });
}

// The other side computes the last prompt token itself, so it needs the state before it.
void NixlConnector::added(Request& request) {
  if (has_states_ && request.transfer.remote == Remote::kDecode && request.prompt_len > 1) {
    --request.prompt_len;
    request.max_output = 1;
  }
}

KvConnector::Match NixlConnector::match(Request& request, std::int64_t local) {
  const KvTransferParams& params = request.transfer;
  if (params.remote == Remote::kPrefill && !request.transfer_asked) {
    const std::int64_t last = has_states_ && request.prompt_len > 1 ? 1 : 0;
    const std::int64_t count = request.prompt_len - last - local;
    return count > 0 ? Match{false, count, true} : Match{};
  }
  if (params.remote == Remote::kDecode && config_.bidirectional && params.remote_num_tokens) {
    const std::int64_t count =
        std::min(params.remote_num_tokens->count(), request.prompt_len) - local;
    return count > 0 && count >= config_.recompute_threshold.count() ? Match{false, count, true}
                                                                     : Match{};
  }
  return {};
}

void NixlConnector::allocated(Request& request, std::int64_t external) {
  const KvTransferParams& params = request.transfer;
  if (config_.host_buffer && params.remote == Remote::kDecode) {
    saving_.insert(request.id);
    return;
  }
  // One transfer a request: whoever comes back computes.
  const bool pulls = params.remote == Remote::kPrefill ||
                     (params.remote == Remote::kDecode && config_.bidirectional);
  if (!pulls || std::exchange(request.transfer_asked, true)) {
    return;
  }
  if (params.remote == Remote::kDecode && !params.remote_num_tokens) {
    return;
  }
  if (external == 0) {
    notifies_.push_back(request.id);
    return;
  }
  Receive receive{request.id, Tokens{external}, BlockLists(groups_.size())};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupTable& table = request.groups[g];
    std::copy_if(table.blocks.begin() + table.cached, table.blocks.end(),
                 std::back_inserter(receive.blocks[g]),
                 [](kv::BlockId block) { return block != kv::kNullBlock; });
    clip(g, receive.blocks[g], true);
  }
  receives_.push_back(std::move(receive));
}

void NixlConnector::clip(std::size_t group, BlockIds& blocks, bool states) const {
  const KvGroup& spec = groups_[group];
  const auto keep_last = [&](std::int64_t count) {
    const auto size = static_cast<std::int64_t>(blocks.size());
    blocks.erase(blocks.begin(), blocks.begin() + std::max<std::int64_t>(size - count, 0));
  };
  if (spec.type == KvGroup::Type::kSlidingWindow) {
    keep_last(div_ceil(spec.window.count(), spec.block_size.count()) + 1);
  } else if (spec.type == KvGroup::Type::kMamba && states && !blocks.empty()) {
    const auto size = static_cast<std::int64_t>(blocks.size());
    blocks.resize(static_cast<std::size_t>(size - std::min(spec.speculative_blocks, size - 1)));
    keep_last(1);
  }
}

bool NixlConnector::ended(Request& request, End end, std::vector<Handoff>& handoffs) {
  const KvTransferParams& params = request.transfer;
  const bool prefilled_elsewhere = params.remote == Remote::kPrefill;
  if (prefilled_elsewhere && !std::exchange(request.transfer_asked, true)) {
    notifies_.push_back(request.id);  // the other side need not keep them
    return false;
  }
  if (params.remote == Remote::kNone || (prefilled_elsewhere && !config_.bidirectional)) {
    return false;
  }
  if (end != End::kFinished) {
    saving_.erase(request.id);
    return false;
  }
  Handoff handoff{request.id, Tokens{request.computed}, BlockLists(groups_.size())};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<kv::BlockId>& table = request.groups[g].blocks;
    const std::int64_t filled = div_ceil(request.computed, groups_[g].block_size.count());
    handoff.blocks[g].assign(
        table.begin(), table.begin() + std::min(filled, static_cast<std::int64_t>(table.size())));
    clip(g, handoff.blocks[g], true);
  }
  sends_.push_back(request.id);
  handoffs.push_back(std::move(handoff));
  return true;
}

void NixlConnector::plan_step(std::span<const Scheduled> scheduled, StepTransfers& transfers) {
  std::swap(transfers.receives, receives_);
  std::swap(transfers.notifies, notifies_);
  std::swap(transfers.sends, sends_);
  receives_.clear();
  notifies_.clear();
  sends_.clear();
  using Kind = ScheduledRequest::Kind;
  for (const Kind kind : {Kind::kNew, Kind::kContinued, Kind::kResumed}) {
    for (const Scheduled& one : scheduled) {
      if (!saving_.empty() && one.kind == kind && saving_.contains(one.request->id)) {
        plan_save(one, transfers);
      }
    }
  }
}

// Each block is copied out once, with the step that takes it; a chunk that fills up a block taken
// before is not copied again.
void NixlConnector::plan_save(const Scheduled& scheduled, StepTransfers& transfers) {
  const Request& request = *scheduled.request;
  Save save{request.id, BlockLists(groups_.size())};
  bool any = scheduled.kind != ScheduledRequest::Kind::kContinued;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::span<const kv::BlockId> blocks = scheduled.new_blocks(g);
    save.blocks[g].assign(blocks.begin(), blocks.end());
    any |= !blocks.empty();
    clip(g, save.blocks[g], false);
  }
  if (!any) {
    return;
  }
  transfers.saves.push_back(std::move(save));
  if (request.computed + scheduled.tokens >= request.prompt_len) {
    saving_.erase(request.id);
  }
}

}  // namespace oomcast::vllm
