#include "sim/run/replicas.hpp"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/run/engine_loop.hpp"
#include "sim/run/request_desk.hpp"

namespace oomcast {
namespace {

class Replica {
 public:
  // `first_rank` of the whole run's.
  Replica(RequestDesk& desk, const Plan& plan, const StepTimeModel& model, int first_rank)
      : first_rank_(first_rank),
        engine_(make_serving_engine(plan)),
        listener_(desk, engine_->deployment().max_model_len),
        loop_(*engine_, model, engine_->open_books(Detail::kClasses, true), listener_, digest_) {}

  [[nodiscard]] int first_rank() const { return first_rank_; }
  [[nodiscard]] ServingEngine& engine() { return *engine_; }
  [[nodiscard]] EngineLoop& loop() { return loop_; }
  [[nodiscard]] const Digest& digest() const { return digest_; }

  void sleep() {
    if (awake) {
      loop_.sleep();
      awake = false;
    }
  }
  void wake(FineSpan at) {
    loop_.wake(at);
    awake = true;
  }

  // An engine looks at what came in before it schedules, not while it waits for results.
  void hear(RequestDesk& desk) {
    for (const std::int64_t index : std::exchange(given_up, {})) {
      give_up(*engine_, desk, index, instant(loop_.now()));
    }
  }

  bool awake = false;
  std::vector<std::int64_t> given_up;  // not heard of yet; most are with other replicas

 private:
  int first_rank_;
  Digest digest_;
  std::unique_ptr<ServingEngine> engine_;
  DeskListener listener_;
  EngineLoop loop_;
};

class Replicas {
 public:
  Replicas(const Plan& plan, const StepTimeModel& model, workloads::RequestStream& stream,
           RequestSink& sink, const ReplayOptions& options, RunRecord& record)
      : options_(options),
        record_(record),
        desk_(stream, sink, options, record.totals, digest_),
        cards_(plan.deployment().tp * plan.deployment().pp * plan.deployment().dp /
               plan.deployment().replicas()) {
    record_.outcome = plan.outcome();
    for (int i = 0; i < plan.deployment().replicas(); ++i) {
      replicas_.push_back(std::make_unique<Replica>(desk_, plan, model, i * cards_));
    }
    together_ = replicas_.front()->engine().steps_with_replicas();
  }

  void run() {
    const bool started = record_.outcome.fits();
    while (started && (together_ ? step_together() : advance())) {
      if (options_.stop != nullptr && *options_.stop != 0) {
        throw Interrupted();
      }
    }
    finish();
  }

 private:
  // --- requests

  // The least loaded; where the engine has no say, the next in turn.
  Replica& choose() {
    std::size_t chosen = turn_ % replicas_.size();
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      const auto load = replicas_[i]->engine().load();
      if (load && (i == 0 || *load < *replicas_[chosen]->engine().load())) {
        chosen = i;
      }
    }
    ++turn_;
    return *replicas_[chosen];
  }

  void hear_client(FineSpan now) {
    if (desk_.gives_up_next()) {
      const std::int64_t index = desk_.take_hang_up();
      for (const auto& replica : replicas_) {
        if (!replica->engine().idle()) {
          replica->given_up.push_back(index);
          if (!replica->awake) {
            replica->wake(now);  // its queue may move again
          }
        }
      }
      return;
    }
    arrive(now);
  }

  void arrive(FineSpan now) {
    const workloads::TraceRequest& request = desk_.take();
    Replica& replica = choose();
    if (const auto refusal = replica.engine().add(request, static_cast<RequestId>(request.index))) {
      desk_.refuse(request.index, *refusal, instant(now));
    }
    if (!replica.awake) {
      replica.wake(now);
    }
  }

  // --- each at its own pace

  enum class Turn : std::uint8_t { kResults, kClient, kSchedule, kNothing };

  bool advance() {
    FineSpan at;
    Turn turn = Turn::kNothing;
    Replica* who = nullptr;
    const auto offer = [&](FineSpan when, Turn what, Replica* replica) {
      if (turn == Turn::kNothing || std::tie(when, what) < std::tie(at, turn)) {
        std::tie(at, turn, who) = std::tie(when, what, replica);
      }
    };
    if (const auto event = desk_.next_event(); event && !failed_at_) {
      offer(std::max(*event, now_), Turn::kClient, nullptr);
    }
    for (const auto& replica : replicas_) {
      if (replica->awake) {
        EngineLoop& loop = replica->loop();
        offer(loop.next_at(), loop.pipeline_full() ? Turn::kResults : Turn::kSchedule,
              replica.get());
      }
    }
    now_ = std::max(now_, at);
    switch (turn) {
      case Turn::kNothing:
        return false;
      case Turn::kClient:
        hear_client(at);
        return true;
      case Turn::kResults:
        who->loop().take_results();
        break;
      case Turn::kSchedule:
        schedule(*who);
        break;
    }
    if (!passes(*who)) {
      who->awake = false;
    }
    return true;
  }

  void schedule(Replica& replica) {
    replica.hear(desk_);
    if (replica.engine().idle()) {
      replica.sleep();
    } else if (options_.step_by_step || !replica.loop().jump(horizon(replica))) {
      if (!replica.loop().schedule_round() && !replica.loop().failure()) {
        replica.sleep();
      }
    }
  }

  // Nothing can reach the replica before: others reach it through clients that wait.
  [[nodiscard]] std::optional<FineSpan> horizon(const Replica& replica) {
    std::optional<FineSpan> until = desk_.next_event();
    for (const auto& other : replicas_) {
      if (other.get() != &replica && other->awake && desk_.is_closed_loop()) {
        const FineSpan at = other->loop().next_at();
        until = until ? std::min(*until, at) : at;
      }
    }
    return until;
  }

  // --- step by step together

  // One batch of every replica that has requests, all as long as the longest; those without take
  // part with a batch of nothing, which holds no KV.
  bool step_together() {
    for (auto due = desk_.next_event(); due && *due <= now_; due = desk_.next_event()) {
      hear_client(now_);
    }
    std::vector<Replica*> launched;
    FineSpan end = now_;
    for (const auto& replica : replicas_) {
      EngineLoop& loop = replica->loop();
      replica->hear(desk_);
      if (replica->engine().idle()) {
        replica->sleep();
        continue;
      }
      replica->wake(now_);
      if (loop.schedule_round()) {
        launched.push_back(replica.get());
        end = std::max(end, loop.last_end());
      } else if (!passes(*replica)) {
        return false;
      }
    }
    if (launched.empty()) {
      return wait();
    }
    for (Replica* replica : launched) {
      replica->loop().stretch(end);
      if (replica->loop().pipeline_full()) {
        replica->loop().take_results();
        now_ = std::max(now_, replica->loop().now());
      }
      if (!passes(*replica)) {
        return false;
      }
    }
    return true;
  }

  // Nothing happens until clients do something. False if they will not.
  bool wait() {
    for (const auto& replica : replicas_) {
      replica->sleep();
    }
    const auto due = desk_.next_event();
    now_ = due ? std::max(now_, *due) : now_;
    return due.has_value();
  }

  // --- the end

  // False when the replica died. Those that step with it cannot go on; others finish what they
  // have, and no more requests come. The first to die is the run's outcome.
  bool passes(Replica& replica) {
    const std::optional<Outcome>& failure = replica.loop().failure();
    const FineSpan at = replica.loop().now();
    if (failure && (!failed_at_ || at < *failed_at_)) {
      failed_at_ = at;
      record_.outcome = *failure;
      record_.outcome.rank = replica.first_rank() + failure->rank.value_or(0);
    }
    return !failure;
  }

  void finish() {
    for (const auto& replica : replicas_) {
      if (record_.outcome.fits() && !replica->loop().failure() && !replica->engine().idle()) {
        record_.outcome = replica->engine().stall_outcome();
        record_.outcome.phase = "runtime";
        record_.outcome.rank = replica->first_rank();
      }
    }
    desk_.close();
    RunTotals& totals = record_.totals;
    for (const auto& replica : replicas_) {
      const LoopTotals& loop = replica->loop().totals();
      totals.steps += loop.steps;
      totals.preemptions += replica->engine().preemptions();
      totals.prefix_hit_tokens += replica->engine().prefix_hit_tokens();
      if (loop.kv_peak >= totals.kv_peak) {
        totals.kv_pool = replica->loop().pool_bytes();
        totals.kv_peak = loop.kv_peak;
        totals.kv_peak_at = loop.kv_peak_at;
      }
      std::vector<RankRecord> ranks = replica->loop().finish();
      digest_.add_word(replica->digest().value());
      for (RankRecord& rank : ranks) {
        rank.rank += replica->first_rank();
        rank.alike = std::min(rank.alike, cards_);
        record_.ranks.push_back(std::move(rank));
      }
    }
    record_.outcome_json = outcome_json(record_.outcome);
    digest_.add(name_of(record_.outcome.kind));
    record_.digest = digest_.hex();
  }

  const ReplayOptions& options_;
  RunRecord& record_;
  Digest digest_;
  RequestDesk desk_;
  int cards_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  bool together_ = false;
  std::size_t turn_ = 0;
  FineSpan now_;
  std::optional<FineSpan> failed_at_;
};

}  // namespace

void replay_replicas(const Plan& plan, const StepTimeModel& model, workloads::RequestStream& stream,
                     RequestSink& sink, const ReplayOptions& options, RunRecord& record) {
  Replicas(plan, model, stream, sink, options, record).run();
}

}  // namespace oomcast
