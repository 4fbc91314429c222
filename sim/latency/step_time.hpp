// How long one engine step takes.
//
// A step's time is affine in the context its decodes attend to: time = fixed + per_context_token *
// context. The scheduler's fast-forward uses that to pass n decode steps in closed form. Source of
// the terms: the step equation and efficiencies of the roofline in the project's step-time notes
// (medians over public op-latency tables; vLLM, H100, A100, B200, L40S, RTX 4090).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/latency/fine_time.hpp"

namespace oomcast {

// What the latency model needs to know of one step. All tokens of all requests of the step.
struct StepShape {
  Tokens tokens;                       // scheduled in total
  std::int64_t requests = 0;           // scheduled requests
  std::int64_t sampled_rows = 0;       // rows that get logits
  std::int64_t decode_requests = 0;    // requests with one token over cached context
  Tokens decode_context;               // sum of the decodes' context lengths
  std::int64_t prefill_requests = 0;   // requests that still compute their prompt
  Tokens prefill_tokens;               // their tokens
  std::int64_t prefill_attention = 0;  // sum over pieces of n*c + n(n+1)/2, n new over c cached
};

// time = fixed + per_context_token * context, valid for contexts of
// [valid_from_context, valid_to_context].
struct StepTime {
  FineSpan fixed;
  FineSpan per_context_token;
  std::int64_t valid_from_context = 0;
  std::int64_t valid_to_context = std::numeric_limits<std::int64_t>::max();

  [[nodiscard]] FineSpan at(Tokens context) const {
    return fixed + per_context_token * context.count();
  }
};

class StepTimeModel {
 public:
  virtual ~StepTimeModel() = default;
  // `shape.tokens` >= 1. The returned function is exact for this shape's decode_context and for all
  // contexts within its limits, everything else of the shape being equal.
  [[nodiscard]] virtual StepTime time_of(const StepShape& shape) const = 0;
};

// Keys of attention with a window: reads stop growing at the window.
struct AttentionReads {
  double kv_bytes_per_token = 0;  // of all layers of this kind on one rank
  std::int64_t window = 0;        // tokens; 0 = full attention
};

// Datasheet and architecture terms, per rank. Bytes, FLOP, FLOP/s, bytes/s, seconds.
struct RooflineTerms {
  // model
  double layers = 0;
  double hidden = 0;
  double mlp_width_per_rank = 0;  // intermediate size / tp
  double linear_bytes = 0;        // weights of all linear layers as stored
  double linear_parameters = 0;
  // Experts are read as far as tokens pick them: E (1 - (1 - k/E)^tokens) of E, and multiplied with
  // the k that each token picks.
  double expert_bytes = 0;  // of all experts of the rank
  double expert_parameters = 0;
  double picked_share = 1;  // k / E
  double head_bytes = 0;    // output head
  double head_parameters = 0;
  double query_width_per_rank = 0;  // query heads / tp * head dim
  double element_bytes = 2;
  std::vector<AttentionReads> attention;
  // card
  double bandwidth = 0;              // HBM
  double peak_flops = 0;             // dense, of the dtype that linear layers multiply in
  double attention_peak_flops = 0;   // of prefill attention: 16 bits
  double memory_efficiency = 0.8;    // linear layers and element-wise kernels, share of bandwidth
  double compute_efficiency = 0.7;   // linear layers, share of peak
  double kv_read_efficiency = 0.7;   // decode attention, share of bandwidth
  double prefill_efficiency = 0.45;  // prefill attention, share of peak
  // engine
  double step_seconds = 0;                // host and launch floor of a step
  double layer_seconds = 0;               // floor of a layer
  double request_seconds = 0;             // per scheduled request
  double mixed_step_layer_seconds = 0;    // extra per layer of a step that holds a prompt
  double allreduce_latency_seconds = 0;   // one all-reduce of nothing
  double allreduce_bytes_per_second = 0;  // 0 = no tensor parallelism
  double allreduces_per_layer = 0;
  double tensor_parallel = 1;
  double pipeline_stages = 1;  // a step passes all stages one after another
};

std::unique_ptr<StepTimeModel> make_roofline(const RooflineTerms& terms);

// Coefficients measured on a deployment, absolute. Seconds.
struct MeasuredCoefficients {
  double step = 0;               // per step
  double per_context_token = 0;  // per token that decodes attend to
  double per_prefill_token = 0;
  double per_prompt_step = 0;  // extra of a step that holds a prompt
  double per_request = 0;
};

std::unique_ptr<StepTimeModel> make_measured(const MeasuredCoefficients& coefficients);

// Sum of `steps` step times, the first at `context` and each next at `growth` tokens more.
// Requires that the last context is within the function's limit.
FineSpan sum_of_steps(const StepTime& time, Tokens context, Tokens growth, std::int64_t steps);

// Largest n <= limit for which the n-th step still starts before `available` has passed, i.e.
// sum_of_steps(n - 1) < available; at least 1 when limit >= 1.
std::int64_t steps_starting_within(const StepTime& time, Tokens context, Tokens growth,
                                   std::int64_t limit, FineSpan available);

}  // namespace oomcast
