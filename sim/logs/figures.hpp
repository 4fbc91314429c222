// What engines' logs tell: figures, and the texts that identify a run. Names are those of
// `explain --json`; bytes get "_gib" behind them there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oomcast::logs {

enum class Figure : std::uint8_t {
  // Memory of the card and of the process, bytes.
  kTotal,
  kFreeAtStart,  // at the engine's first measurement, before loading
  kRequested,    // vLLM: total x utilization
  kContextUse,   // SGLang: what process groups took
  kWeights,
  kDraftWeights,
  kActivationPeak,  // vLLM from 0.27 on: the graph estimate included
  kNonTorch,
  kConsumed,    // vLLM from 0.27 on: weights and everything else that stays
  kNonKvTotal,  // vLLM: all that is subtracted
  kFreeAfterProfile,
  kGraphs,  // free memory lost during capture
  kGraphEstimate,
  kGraphPool,  // the part of the graphs that the engine calls their pool
  kAvailableKv,
  kKvInUse,
  kKvNeeded,        // by one request of full length
  kKvMemoryAdvice,  // vLLM: --kv-cache-memory that fits the request
  // Pools, bytes.
  kKeys,
  kValues,
  kMoreKv,  // K and V of further pools: sliding windows, drafts
  kConvState,
  kSsmState,
  kIntermediateState,
  kStatePool,  // convolution and recurrent state
  kMultimodalReserve,
  kTemporaryKv,  // TensorRT-LLM: the dry run's
  kKvPerToken,
  // SGLang: free memory after each stage, bytes.
  kFreeAfterLoad,
  kFreeAfterPool,
  kFreeBeforeCapture,
  kFreeAfterCapture,
  kFreeWhenReady,
  // TensorRT-LLM, bytes.
  kWeightsOutsideTorch,
  kPeak,
  kFreeForKv,
  kSchedulerReserve,  // context-MLA attention workspace
  kFreeBeforeStage,
  kFreeAfterStage,
  // Counts.
  kKvTokens,
  kKvBlocks,
  kBlockSize,
  kMaxRunning,
  kSwaTokens,
  kStateSlots,
  kStateBlocks,
  kMaxModelLen,
  kEstimatedMaxModelLen,
  kBatchTokens,
  kMaxNumSeqs,
  kKvFactor,  // vLLM: context-parallel ranks that share one request's KV
  kPiecewiseGraphs,
  kPiecewiseLargest,
  kFullGraphs,
  kFullLargest,
  kRetracted,
  kPreemptions,
  // Ratios.
  kMaxConcurrency,
  kUtilization,  // vLLM: of the total; SGLang: mem_fraction_static; TensorRT-LLM: of what is free
  kKvUsage,      // highest share of the pool in use while serving
};
inline constexpr std::size_t kFigureCount = static_cast<std::size_t>(Figure::kKvUsage) + 1;

enum class Measure : std::uint8_t { kBytes, kCount, kRatio };

// "weights", "kv_tokens"
std::string_view name_of(Figure figure);
Measure measure_of(Figure figure);
// The key in JSON: "weights_gib", "kv_tokens".
std::string key_of(Figure figure);

// Words that identify a run.
enum class Text : std::uint8_t {
  kVersion,
  kModel,
  kGpu,
  kArguments,  // flags as given, a Python dict or call
  kConfig,     // resolved settings
  kLaunchLine,
  kStage,  // TensorRT-LLM: the component that could not be made
};
inline constexpr std::size_t kTextCount = static_cast<std::size_t>(Text::kStage) + 1;

// Startup phases in order, as plans name them; `runtime` is serving.
enum class Phase : std::uint8_t {
  kContext,
  kCommunicators,
  kLoad,
  kProfile,
  kKv,
  kCapture,
  kWarmup,
  kReady,
  kRuntime,
};
inline constexpr std::size_t kPhaseCount = static_cast<std::size_t>(Phase::kRuntime) + 1;
std::string_view name_of(Phase phase);

enum class FailureKind : std::uint8_t {
  kStartupOom,
  kKvTooSmall,
  kConfigRejected,
  kRuntimeOom,
  kEngineError,  // died for another reason
};
std::string_view name_of(FailureKind kind);

}  // namespace oomcast::logs
