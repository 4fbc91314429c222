// What a vLLM server behind a NIXL connector tells and hears of transfers: the decode side pulls
// what the prefill side holds for it.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "sim/engines/vllm/kv_transfer.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast {

class VllmHandoff final : public KvHandoff {
 public:
  // `scheduler` must outlive it.
  VllmHandoff(vllm::Scheduler& scheduler, Role role, Nanos lease)
      : scheduler_(scheduler), role_(role), lease_(lease) {}

  [[nodiscard]] bool prefill_first() const override { return true; }
  [[nodiscard]] Nanos lease() const override { return lease_; }

  void agreed(RequestId /*id*/) override {}
  void transferred(RequestId id) override;
  bool lost(RequestId id) override;
  void give_up(RequestId id) override;

  [[nodiscard]] std::span<const Piece> pieces() const override { return pieces_; }
  [[nodiscard]] std::span<const Want> wants() const override { return wants_; }
  void clear_news() override {
    pieces_.clear();
    wants_.clear();
  }
  [[nodiscard]] TransferHold held() const override;

  // Makes of a request what comes to this side of it.
  void enter(vllm::RequestSpec& spec);
  void note(const vllm::StepPlan& plan);
  // Of a round that took the report: what was over since the one before.
  void note(const vllm::StepOutput& output);
  [[nodiscard]] const vllm::TransferReport& report() const { return report_; }

  // Rounds without work or news so far: after two, under asynchronous scheduling the engine takes
  // results a round late, nothing happens before somebody else does something.
  [[nodiscard]] bool quiet() const;

 private:
  vllm::Scheduler& scheduler_;
  Role role_;
  Nanos lease_;
  std::set<RequestId> receiving_;  // reads that were begun and are not reported
  vllm::TransferReport report_;
  std::vector<Piece> pieces_;
  std::vector<Want> wants_;
  std::int64_t quiet_rounds_ = 0;
  mutable std::optional<TransferHold> held_;  // counted again when something has changed
};

}  // namespace oomcast
