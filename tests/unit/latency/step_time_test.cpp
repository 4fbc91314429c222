#include "sim/latency/step_time.hpp"

#include <gtest/gtest.h>

#include "sim/core/random.hpp"

namespace oomcast {
namespace {

double millis(FineSpan span) { return static_cast<double>(span.floor().count()) * 1e-6; }

// Llama-3.1-8B on an RTX 4090, bf16.
RooflineTerms llama_on_4090() {
  RooflineTerms terms;
  terms.layers = 32;
  terms.hidden = 4096;
  terms.mlp_width_per_rank = 14336;
  terms.linear_parameters =
      32.0 * (4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336);
  terms.linear_bytes = 2 * terms.linear_parameters;
  terms.head_parameters = 4096.0 * 128256;
  terms.head_bytes = 2 * terms.head_parameters;
  terms.query_width_per_rank = 4096;
  terms.attention = {{131072.0, 0}};
  terms.bandwidth = 1008e9;
  terms.peak_flops = 165e12;
  terms.attention_peak_flops = 165e12;
  terms.memory_efficiency = 0.92;
  terms.compute_efficiency = 0.99;
  terms.kv_read_efficiency = 0.80;
  terms.prefill_efficiency = 0.70;
  return terms;
}

StepShape decode(std::int64_t requests, std::int64_t context) {
  StepShape shape;
  shape.tokens = Tokens{requests};
  shape.requests = shape.sampled_rows = shape.decode_requests = requests;
  shape.decode_context = Tokens{context};
  return shape;
}

TEST(Roofline, DecodeIsWeightsOverBandwidth) {
  const auto model = make_roofline(llama_on_4090());
  // (13.96e9 + 1.05e9) B / (0.92 x 1008e9 B/s) = 16.19 ms: the measured share of weights and head
  // of a step of this run is 16.2 ms.
  EXPECT_NEAR(millis(model->time_of(decode(1, 0)).at(Tokens{0})), 16.2, 0.1);
  // 40,000 tokens of KV: 40,000 x 131,072 B / (0.8 x 1008e9) = 6.50 ms more.
  const StepTime time = model->time_of(decode(32, 40'000));
  EXPECT_NEAR(millis(time.at(Tokens{40'000})) - millis(time.at(Tokens{0})), 6.50, 0.01);
}

TEST(Roofline, PrefillIsComputeBound) {
  const auto model = make_roofline(llama_on_4090());
  StepShape shape;
  shape.tokens = shape.prefill_tokens = Tokens{2048};
  shape.requests = shape.prefill_requests = shape.sampled_rows = 1;
  shape.prefill_attention = 2048 * 2049 / 2;
  // Linear layers 2 x 6.98e9 x 2048 / (0.99 x 165e12) = 175.0 ms; element-wise 2048 x (10 x 4096 +
  // 4 x 14336) x 2 B x 32 / (0.92 x 1008e9) = 13.9; attention 4 x 4096 x 32 x 2.1e6 / (0.7 x
  // 165e12) = 9.5; head 1.1.
  EXPECT_NEAR(millis(model->time_of(shape).at(Tokens{0})), 199.5, 1.0);
}

TEST(Roofline, ExpertsAreReadAsTokensPickThem) {
  RooflineTerms terms = llama_on_4090();
  terms.linear_bytes = terms.linear_parameters = terms.head_bytes = terms.head_parameters = 0;
  terms.hidden = terms.mlp_width_per_rank = 0;
  terms.expert_bytes = 0.92 * 1008e9 / 10;  // 100 ms if all are read
  terms.picked_share = 8.0 / 256;
  const auto model = make_roofline(terms);
  // 1 token: 8 of 256, 3.125 ms; 64: 1 - (31/32)^64 = 86.9 %; thousands: all.
  EXPECT_NEAR(millis(model->time_of(decode(1, 0)).at(Tokens{0})), 3.125, 1e-3);
  EXPECT_NEAR(millis(model->time_of(decode(64, 0)).at(Tokens{0})), 86.89, 0.01);
  EXPECT_NEAR(millis(model->time_of(decode(4096, 0)).at(Tokens{0})), 100, 1e-3);
}

TEST(Roofline, WindowedLayersStopGrowing) {
  RooflineTerms terms = llama_on_4090();
  terms.attention = {{65536.0, 0}, {65536.0, 1024}};
  const auto model = make_roofline(terms);
  const StepTime below = model->time_of(decode(4, 4000));
  EXPECT_EQ(below.valid_to_context, 4 * 1024);
  const StepTime above = model->time_of(decode(4, 4096));
  EXPECT_EQ(below.at(Tokens{4096}).floor(), above.at(Tokens{4096}).floor());
  EXPECT_LT(above.per_context_token, below.per_context_token);
}

TEST(SumOfSteps, EqualsSingleStepsExactly) {
  const auto model = make_roofline(llama_on_4090());
  RandomStream stream = random_stream(3, "steps");
  for (int round = 0; round < 1000; ++round) {
    const std::int64_t requests = uniform_int(stream, 1, 512);
    const std::int64_t context = uniform_int(stream, 0, 1'000'000);
    const std::int64_t steps = uniform_int(stream, 0, 500);
    const StepTime time = model->time_of(decode(requests, context));
    FineSpan single;
    for (std::int64_t i = 0; i < steps; ++i) {
      single = single + time.at(Tokens{context + i * requests});
    }
    ASSERT_EQ(single, sum_of_steps(time, Tokens{context}, Tokens{requests}, steps));
  }
}

TEST(StepsStartingWithin, IsTight) {
  const auto model = make_roofline(llama_on_4090());
  const StepTime time = model->time_of(decode(8, 5000));
  const FineSpan three = sum_of_steps(time, Tokens{5000}, Tokens{8}, 3);
  const auto within = [&](FineSpan available) {
    return steps_starting_within(time, Tokens{5000}, Tokens{8}, 100, available);
  };
  // The fourth step starts exactly when three have passed.
  EXPECT_EQ(within(three), 3);
  EXPECT_EQ(within(three + FineSpan::from_ticks(1)), 4);
  EXPECT_EQ(within(FineSpan{}), 1);
  EXPECT_EQ(within(FineSpan{kSecond * 1000}), 100);
}

TEST(Measured, IsLinearInItsCoefficients) {
  const auto model = make_measured({.step = 14.1e-3,
                                    .per_context_token = 0.285e-6,
                                    .per_prefill_token = 85.4e-6,
                                    .per_prompt_step = 0,
                                    .per_request = 0});
  StepShape shape = decode(2, 10'000);
  EXPECT_NEAR(millis(model->time_of(shape).at(Tokens{10'000})), 14.1 + 2.85, 1e-3);
  shape.prefill_tokens = Tokens{1000};
  EXPECT_NEAR(millis(model->time_of(shape).at(Tokens{10'000})), 14.1 + 2.85 + 85.4, 1e-3);
}

}  // namespace
}  // namespace oomcast
