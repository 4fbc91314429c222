// The serving half of a run: requests of a stream through the engine's scheduler, step by step or,
// where steps are alike, many at once.
//
// Order of events at one instant: output of the batch that ends, then arrivals in trace order, then
// the next scheduling. Nothing else competes, so a run is the same on every machine.
#pragma once

#include <csignal>
#include <functional>
#include <stdexcept>

#include "sim/latency/step_time.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/record.hpp"
#include "sim/run/step_memory.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

// Thrown out of a replay that was told to stop.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

struct ReplayOptions {
  Detail detail = Detail::kClasses;
  bool step_by_step = false;  // no fast-forward; the same record, byte for byte
  // At the allocator's depth: steps known from the same state are looked up; the same record.
  bool remembers_steps = true;
  // Called now and then with the number of requests offered so far; may be empty.
  std::function<void(std::int64_t)> progress;
  // Looked at between steps: not 0 stops the run with Interrupted. May be null.
  const volatile std::sig_atomic_t* stop = nullptr;
};

// Fills ranks, totals, outcome and digest of the record. A startup that failed is recorded as it
// ended; no request of the stream is then served. Throws ConfigError for deployments that can be
// planned but not replayed (see check_replay()).
void replay(Plan plan, const StepTimeModel& model, workloads::RequestStream& stream,
            RequestSink& sink, const ReplayOptions& options, RunRecord& record);

}  // namespace oomcast
