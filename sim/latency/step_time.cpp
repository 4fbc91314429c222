#include "sim/latency/step_time.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

constexpr double kNanosPerSecond = 1e9;

// Measured kernels cross over softly between memory- and compute-bound; exponent 2.5 fits the
// recorded crossover of a 4090's gate_up GEMM (247 and 182 us give 314 us at 128 tokens).
double smooth_max(double left, double right) {
  constexpr double kSharpness = 2.5;
  const double larger = std::max(left, right);
  if (larger <= 0) {
    return 0;
  }
  const double ratio = std::min(left, right) / larger;
  return larger * std::pow(1.0 + std::pow(ratio, kSharpness), 1.0 / kSharpness);
}

FineSpan from_seconds(double seconds) { return FineSpan::from_nanos(seconds * kNanosPerSecond); }

class Roofline final : public StepTimeModel {
 public:
  explicit Roofline(const RooflineTerms& terms) : terms_(terms) {
    OOMCAST_CHECK(terms.bandwidth > 0 && terms.peak_flops > 0 && terms.attention_peak_flops > 0,
                  "bandwidth {} flops {} and {}", terms.bandwidth, terms.peak_flops,
                  terms.attention_peak_flops);
    for (std::size_t rows = 1; rows < head_seconds_.size(); ++rows) {
      head_seconds_[rows] = head_seconds(static_cast<double>(rows));
    }
  }

  [[nodiscard]] StepTime time_of(const StepShape& shape) const override {
    const double tokens = static_cast<double>(shape.tokens.count());
    const double rows = static_cast<double>(shape.sampled_rows);
    const double memory_rate = terms_.memory_efficiency * terms_.bandwidth;
    const double compute_rate = terms_.compute_efficiency * terms_.peak_flops;

    double seconds = terms_.step_seconds + terms_.layers * terms_.layer_seconds +
                     static_cast<double>(shape.requests) * terms_.request_seconds;
    double read_bytes = terms_.linear_bytes;
    if (terms_.expert_bytes > 0) {
      read_bytes += (1 - std::pow(1 - terms_.picked_share, tokens)) * terms_.expert_bytes;
    }
    const double multiplied =
        terms_.linear_parameters + terms_.picked_share * terms_.expert_parameters;
    seconds += smooth_max(read_bytes / memory_rate, 2 * multiplied * tokens / compute_rate);
    if (shape.sampled_rows > 0) {
      const auto known = static_cast<std::size_t>(shape.sampled_rows);
      seconds += known < head_seconds_.size() ? head_seconds_[known] : head_seconds(rows);
    }
    // Norms, residuals, rotary embedding, activation: about 10 H + 4 I elements moved per token.
    seconds += tokens * (10 * terms_.hidden + 4 * terms_.mlp_width_per_rank) *
               terms_.element_bytes * terms_.layers / memory_rate;
    seconds += 4 * terms_.query_width_per_rank * terms_.layers *
               static_cast<double>(shape.prefill_attention) /
               (terms_.prefill_efficiency * terms_.attention_peak_flops);
    if (shape.prefill_requests > 0) {
      seconds += terms_.layers * terms_.mixed_step_layer_seconds;
    }
    if (terms_.allreduce_bytes_per_second > 0) {
      const double bytes = tokens * terms_.hidden * terms_.element_bytes;
      const double share = 2 * (terms_.tensor_parallel - 1) / terms_.tensor_parallel;
      seconds +=
          terms_.layers * terms_.allreduces_per_layer *
          (terms_.allreduce_latency_seconds + share * bytes / terms_.allreduce_bytes_per_second);
    }
    return with_attention(shape, seconds);
  }

 private:
  [[nodiscard]] double head_seconds(double rows) const {
    return smooth_max(
        terms_.head_bytes / (terms_.memory_efficiency * terms_.bandwidth),
        2 * terms_.head_parameters * rows / (terms_.compute_efficiency * terms_.peak_flops));
  }

  // A windowed layer reads at most window tokens a request. The sum of minima is taken as the
  // minimum of the sums (exact when all requests are on the same side of the window).
  [[nodiscard]] StepTime with_attention(const StepShape& shape, double seconds) const {
    const double rate = terms_.kv_read_efficiency * terms_.bandwidth;
    StepTime out;
    double slope = 0;
    for (const AttentionReads& reads : terms_.attention) {
      const std::int64_t most = reads.window == 0 ? std::numeric_limits<std::int64_t>::max()
                                                  : reads.window * shape.decode_requests;
      if (shape.decode_context.count() >= most) {
        seconds += static_cast<double>(most) * reads.kv_bytes_per_token / rate;
        out.valid_from_context = std::max(out.valid_from_context, most);
      } else {
        slope += reads.kv_bytes_per_token / rate;
        out.valid_to_context = std::min(out.valid_to_context, most);
      }
    }
    out.fixed = from_seconds(seconds * terms_.pipeline_stages);
    out.per_context_token = from_seconds(slope * terms_.pipeline_stages);
    return out;
  }

  RooflineTerms terms_;
  std::array<double, 256> head_seconds_{};  // by rows: most steps have few
};

class Measured final : public StepTimeModel {
 public:
  explicit Measured(const MeasuredCoefficients& coefficients) : measured_(coefficients) {}

  [[nodiscard]] StepTime time_of(const StepShape& shape) const override {
    double seconds =
        measured_.step + static_cast<double>(shape.requests) * measured_.per_request +
        static_cast<double>(shape.prefill_tokens.count()) * measured_.per_prefill_token;
    if (shape.prefill_requests > 0) {
      seconds += measured_.per_prompt_step;
    }
    StepTime out;
    out.fixed = from_seconds(seconds);
    out.per_context_token = from_seconds(measured_.per_context_token);
    return out;
  }

 private:
  MeasuredCoefficients measured_;
};

}  // namespace

FineSpan FineSpan::from_nanos(double nanos) {
  OOMCAST_CHECK(std::isfinite(nanos) && nanos >= 0 && nanos <= 9e18, "a span of {} ns", nanos);
  // Split so that llround never sees more than 63 bits.
  const double whole = std::floor(nanos);
  const double fraction = nanos - whole;
  return from_ticks((Ticks{static_cast<std::int64_t>(whole)} << kFractionBits) +
                    std::llround(std::ldexp(fraction, kFractionBits)));
}

std::unique_ptr<StepTimeModel> make_roofline(const RooflineTerms& terms) {
  return std::make_unique<Roofline>(terms);
}

std::unique_ptr<StepTimeModel> make_measured(const MeasuredCoefficients& coefficients) {
  return std::make_unique<Measured>(coefficients);
}

FineSpan sum_of_steps(const StepTime& time, Tokens context, Tokens growth, std::int64_t steps) {
  using Ticks = FineSpan::Ticks;
  const Ticks contexts =
      Ticks{steps} * context.count() + Ticks{growth.count()} * (Ticks{steps} * (steps - 1) / 2);
  return FineSpan::from_ticks(time.fixed.ticks() * steps +
                              time.per_context_token.ticks() * contexts);
}

std::int64_t steps_starting_within(const StepTime& time, Tokens context, Tokens growth,
                                   std::int64_t limit, FineSpan available) {
  if (limit > 1 && sum_of_steps(time, context, growth, limit - 1) < available) {
    return limit;
  }
  // Step n starts after n - 1 steps; the sum grows with n, so bisect.
  std::int64_t low = std::min<std::int64_t>(1, limit);
  std::int64_t high = std::max(low, limit - 1);
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (sum_of_steps(time, context, growth, middle - 1) < available) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace oomcast
