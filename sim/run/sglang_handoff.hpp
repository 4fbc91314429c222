// What a prefill or decode server of SGLang tells and hears of transfers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "sim/engines/sglang/scheduler.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast {

class SglangHandoff final : public KvHandoff {
 public:
  // `scheduler` must outlive it.
  SglangHandoff(sglang::Scheduler& scheduler, const sglang::SchedulerConfig& config)
      : scheduler_(scheduler), role_(config.role), page_(config.page_size) {}

  [[nodiscard]] bool prefill_first() const override { return false; }
  // The failed transfer ends it at once.
  [[nodiscard]] Nanos lease() const override { return Nanos{}; }

  void agreed(RequestId id) override {
    quiet_rounds_ = 0;
    scheduler_.handshake_done(id);
  }
  void transferred(RequestId id) override {
    quiet_rounds_ = 0;
    scheduler_.transfer_done(id);
  }
  // KVTransferError: the request ends.
  bool lost(RequestId /*id*/) override { return false; }
  void give_up(RequestId id) override {
    quiet_rounds_ = 0;
    release(id);
    scheduler_.abort(id);
  }

  [[nodiscard]] std::span<const Piece> pieces() const override { return pieces_; }
  [[nodiscard]] std::span<const Want> wants() const override { return wants_; }
  void clear_news() override {
    pieces_.clear();
    wants_.clear();
  }
  [[nodiscard]] TransferHold held() const override {
    return {std::ssize(held_), held_tokens_.count()};
  }

  // The server takes a request in.
  void add(const sglang::RequestSpec& spec) {
    quiet_rounds_ = 0;
    prompts_[spec.id] = spec.prompt_len;
  }
  void note(const sglang::StepPlan& plan);
  void note(const sglang::StepOutput& output);

  // Rounds without a batch or news so far: after two, under overlap the engine notices a round
  // late, nothing happens before somebody else does something.
  [[nodiscard]] bool quiet() const { return quiet_rounds_ >= 2; }

 private:
  // A chunk of a prompt in flight.
  struct Chunk {
    std::int64_t step = 0;
    RequestId id = 0;
    Tokens upto;
  };

  void hold(RequestId id);
  void release(RequestId id);

  sglang::Scheduler& scheduler_;
  sglang::Role role_;
  Tokens page_;
  std::map<RequestId, Tokens> prompts_;  // of requests before their KV is over
  std::map<RequestId, Tokens> held_;     // whole pages
  Tokens held_tokens_;
  std::deque<Chunk> chunks_;
  std::vector<Piece> pieces_;
  std::vector<Want> wants_;
  std::int64_t quiet_rounds_ = 0;
};

}  // namespace oomcast
