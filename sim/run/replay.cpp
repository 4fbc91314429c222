#include "sim/run/replay.hpp"

#include <memory>
#include <utility>

#include "sim/core/digest.hpp"
#include "sim/run/engine_loop.hpp"
#include "sim/run/replicas.hpp"
#include "sim/run/request_desk.hpp"

namespace oomcast {
namespace {

class Serving {
 public:
  Serving(ServingEngine& engine, const StepTimeModel& model, workloads::RequestStream& stream,
          RequestSink& sink, const ReplayOptions& options, RunRecord& record)
      : engine_(engine),
        options_(options),
        record_(record),
        desk_(stream, sink, options, record.totals, digest_),
        listener_(desk_, engine.deployment().max_model_len),
        loop_(engine, model, engine.open_books(options.detail, options.remembers_steps), listener_,
              digest_) {
    record_.totals.kv_pool = loop_.pool_bytes();
    record_.outcome = engine.startup();
  }

  void run() {
    while (engine_.startup().fits() && !loop_.failure()) {
      if (options_.stop != nullptr && *options_.stop != 0) {
        throw Interrupted();
      }
      hear_clients();
      if (engine_.idle()) {
        if (!wait()) {
          break;
        }
        continue;
      }
      if ((options_.step_by_step || !loop_.jump(desk_.next_event())) && !step()) {
        break;
      }
    }
    finish();
  }

 private:
  void hear_clients() {
    for (auto due = desk_.next_event(); due && *due <= loop_.now(); due = desk_.next_event()) {
      if (desk_.gives_up_next()) {
        give_up(engine_, desk_, desk_.take_hang_up(), instant(loop_.now()));
        continue;
      }
      const workloads::TraceRequest& request = desk_.take();
      if (const auto refusal = engine_.add(request, static_cast<RequestId>(request.index))) {
        desk_.refuse(request.index, *refusal, instant(loop_.now()));
      }
    }
  }

  // One round of the engine: schedule a batch, and once the pipeline is full take the output of the
  // oldest. False when nothing can ever happen again.
  bool step() {
    if (!loop_.schedule_round()) {
      return !loop_.failure() && wait();
    }
    if (loop_.pipeline_full()) {
      loop_.take_results();
    }
    return true;
  }

  // Nothing happens until clients do something or a copy ends. False if neither will.
  bool wait() {
    loop_.sleep();
    auto due = desk_.next_event();
    if (const auto copy = loop_.next_copy_end(); copy && (!due || *copy < *due)) {
      due = copy;
    }
    if (due) {
      loop_.wake(*due);
    }
    return due.has_value();
  }

  void finish() {
    if (engine_.startup().fits() && !loop_.failure() && !engine_.idle()) {
      loop_.fail(engine_.stall_outcome());
    }
    if (loop_.failure()) {
      record_.outcome = *loop_.failure();
    }
    desk_.close();
    record_.totals.steps = loop_.totals().steps;
    record_.totals.kv_peak = loop_.totals().kv_peak;
    record_.totals.kv_peak_at = loop_.totals().kv_peak_at;
    record_.totals.preemptions = engine_.preemptions();
    record_.totals.prefix_hit_tokens = engine_.prefix_hit_tokens();
    if (const HostCopies* copies = engine_.host_copies()) {
      record_.totals.host_tier = copies->totals();
      add_to_digest(digest_, copies->totals());
    }
    record_.ranks = loop_.finish();
    record_.outcome_json = outcome_json(record_.outcome);
    digest_.add(name_of(record_.outcome.kind));
    record_.digest = digest_.hex();
  }

  ServingEngine& engine_;
  const ReplayOptions& options_;
  RunRecord& record_;
  Digest digest_;
  RequestDesk desk_;
  DeskListener listener_;
  EngineLoop loop_;
};

}  // namespace

void replay(Plan plan, const StepTimeModel& model, workloads::RequestStream& stream,
            RequestSink& sink, const ReplayOptions& options, RunRecord& record) {
  if (plan.deployment().replicas() > 1) {
    replay_replicas(plan, model, stream, sink, options, record);
    return;
  }
  const std::unique_ptr<ServingEngine> engine = make_serving_engine(std::move(plan));
  Serving(*engine, model, stream, sink, options, record).run();
}

}  // namespace oomcast
