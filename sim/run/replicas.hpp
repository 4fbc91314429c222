// Data-parallel replicas of one deployment as one run: each has its scheduler and its KV cache, a
// front end hands every request to one of them, and those that exchange tokens with experts step
// together (vLLM: v1/engine/core.py DPEngineCoreProc, core_client.py DPLBAsyncMPClient; SGLang:
// managers/data_parallel_controller.py, --enable-dp-attention).
//
// Order of events at one instant as for one engine: results, by replica; arrivals in trace order;
// the next scheduling, by replica. Loads are looked at when a request arrives; a front end that
// hears of them now and then would choose otherwise at times.
#pragma once

#include "sim/run/replay.hpp"

namespace oomcast {

// Fills the record as replay() does; ranks count on from replica to replica, and the KV cache in
// the totals is that of the replica that was fullest.
void replay_replicas(const Plan& plan, const StepTimeModel& model, workloads::RequestStream& stream,
                     RequestSink& sink, const ReplayOptions& options, RunRecord& record);

}  // namespace oomcast
