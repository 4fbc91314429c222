#include "sim/logs/figures.hpp"

#include <array>

#include "sim/core/error.hpp"

namespace oomcast::logs {
namespace {

struct Row {
  Figure figure;
  std::string_view name;
  Measure measure;
};

constexpr std::array<Row, kFigureCount> kRows = {{
    {Figure::kTotal, "total", Measure::kBytes},
    {Figure::kFreeAtStart, "free_at_start", Measure::kBytes},
    {Figure::kRequested, "requested", Measure::kBytes},
    {Figure::kContextUse, "context_use", Measure::kBytes},
    {Figure::kWeights, "weights", Measure::kBytes},
    {Figure::kDraftWeights, "draft_weights", Measure::kBytes},
    {Figure::kActivationPeak, "activation_peak", Measure::kBytes},
    {Figure::kNonTorch, "non_torch", Measure::kBytes},
    {Figure::kConsumed, "consumed", Measure::kBytes},
    {Figure::kNonKvTotal, "non_kv_total", Measure::kBytes},
    {Figure::kFreeAfterProfile, "free_after_profile", Measure::kBytes},
    {Figure::kGraphs, "cudagraph", Measure::kBytes},
    {Figure::kGraphEstimate, "cudagraph_estimate", Measure::kBytes},
    {Figure::kGraphPool, "cudagraph_pool", Measure::kBytes},
    {Figure::kAvailableKv, "available_kv", Measure::kBytes},
    {Figure::kKvInUse, "kv_in_use", Measure::kBytes},
    {Figure::kKvNeeded, "kv_needed", Measure::kBytes},
    {Figure::kKvMemoryAdvice, "kv_memory_advice", Measure::kBytes},
    {Figure::kKeys, "keys", Measure::kBytes},
    {Figure::kValues, "values", Measure::kBytes},
    {Figure::kMoreKv, "more_kv", Measure::kBytes},
    {Figure::kConvState, "conv_state", Measure::kBytes},
    {Figure::kSsmState, "ssm_state", Measure::kBytes},
    {Figure::kIntermediateState, "intermediate_state", Measure::kBytes},
    {Figure::kStatePool, "state_pool", Measure::kBytes},
    {Figure::kMultimodalReserve, "multimodal_reserve", Measure::kBytes},
    {Figure::kTemporaryKv, "temporary_kv", Measure::kBytes},
    {Figure::kKvPerToken, "kv_per_token", Measure::kBytes},
    {Figure::kFreeAfterLoad, "avail_after_load", Measure::kBytes},
    {Figure::kFreeAfterPool, "avail_after_pool", Measure::kBytes},
    {Figure::kFreeBeforeCapture, "avail_before_capture", Measure::kBytes},
    {Figure::kFreeAfterCapture, "avail_after_capture", Measure::kBytes},
    {Figure::kFreeWhenReady, "avail_mem_after", Measure::kBytes},
    {Figure::kWeightsOutsideTorch, "weights_outside_torch", Measure::kBytes},
    {Figure::kPeak, "peak", Measure::kBytes},
    {Figure::kFreeForKv, "free_for_kv", Measure::kBytes},
    {Figure::kSchedulerReserve, "attention_reserve", Measure::kBytes},
    {Figure::kFreeBeforeStage, "free_before_stage", Measure::kBytes},
    {Figure::kFreeAfterStage, "free_after_stage", Measure::kBytes},
    {Figure::kKvTokens, "kv_tokens", Measure::kCount},
    {Figure::kKvBlocks, "kv_blocks", Measure::kCount},
    {Figure::kBlockSize, "block_size", Measure::kCount},
    {Figure::kMaxRunning, "max_running_requests", Measure::kCount},
    {Figure::kSwaTokens, "swa_tokens", Measure::kCount},
    {Figure::kStateSlots, "state_slots", Measure::kCount},
    {Figure::kStateBlocks, "state_blocks", Measure::kCount},
    {Figure::kMaxModelLen, "max_model_len", Measure::kCount},
    {Figure::kEstimatedMaxModelLen, "est_max_model_len", Measure::kCount},
    {Figure::kBatchTokens, "batch_tokens", Measure::kCount},
    {Figure::kMaxNumSeqs, "max_num_seqs", Measure::kCount},
    {Figure::kKvFactor, "kv_factor", Measure::kCount},
    {Figure::kPiecewiseGraphs, "piecewise_graphs", Measure::kCount},
    {Figure::kPiecewiseLargest, "piecewise_largest", Measure::kCount},
    {Figure::kFullGraphs, "full_graphs", Measure::kCount},
    {Figure::kFullLargest, "full_largest", Measure::kCount},
    {Figure::kRetracted, "retracted_requests", Measure::kCount},
    {Figure::kPreemptions, "preemptions", Measure::kCount},
    {Figure::kMaxConcurrency, "max_concurrency", Measure::kRatio},
    {Figure::kUtilization, "utilization", Measure::kRatio},
    {Figure::kKvUsage, "kv_usage", Measure::kRatio},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].figure) != i) {
      return false;
    }
  }
  return true;
}
static_assert(in_order(), "one row a figure, in the order of the enumeration");

const Row& row_of(Figure figure) { return kRows[static_cast<std::size_t>(figure)]; }

}  // namespace

std::string_view name_of(Figure figure) { return row_of(figure).name; }

Measure measure_of(Figure figure) { return row_of(figure).measure; }

std::string key_of(Figure figure) {
  return std::string(name_of(figure)) + (measure_of(figure) == Measure::kBytes ? "_gib" : "");
}

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhaseCount> kNames = {
      "context", "communicators", "load", "profile", "kv", "capture", "warmup", "ready", "runtime"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view name_of(FailureKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {
      "startup_oom", "kv_too_small", "config_rejected", "runtime_oom", "engine_error"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace oomcast::logs
