// The serving half of a run: requests of a stream through vLLM's scheduler, step by step or, where
// steps are alike, many at once.
//
// Order of events at one instant: output of the batch that ends, then arrivals in trace order, then
// the next scheduling. Nothing else competes, so a run is the same on every machine.
#pragma once

#include <functional>
#include <vector>

#include "sim/engines/vllm/startup.hpp"
#include "sim/latency/step_time.hpp"
#include "sim/run/record.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

struct ReplayOptions {
  bool step_by_step = false;  // no fast-forward; the same record, byte for byte
  // Called now and then with the number of requests offered so far; may be empty.
  std::function<void(std::int64_t)> progress;
};

// Fills ranks, totals, outcome and digest of the record. A startup that failed is recorded as it
// ended; no request of the stream is then taken.
void replay(const vllm::Deployment& deployment, vllm::Startup startup, const StepTimeModel& model,
            workloads::RequestStream& stream, RequestSink& sink, const ReplayOptions& options,
            RunRecord& record);

}  // namespace oomcast
