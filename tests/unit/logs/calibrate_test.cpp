// Logs -> coefficients -> plans: what a machine takes beyond the presets comes back.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/calibration_json.hpp"
#include "sim/run/explain_identity.hpp"
#include "tests/unit/logs/printed_log.hpp"

namespace oomcast {
namespace {

constexpr const char* kGpu = "NVIDIA H100 80GB HBM3";

DeploymentInput input_of(const std::string& launch, const std::string& version) {
  DeploymentInput input;
  input.launch_line = launch;
  input.gpu = kGpu;
  input.engine_version = version;
  return input;
}

Bytes mib(double value) { return Bytes{std::llround(value * 1048576.0)}; }

// A machine that differs from the presets.
Plan real_start(const DeploymentInput& input) {
  AnyDeployment deployment = resolve_input(input);
  EngineDeployment& common = deployment.common();
  common.gpu.device_total += mib(22);
  common.assumed.residuals = {.load = mib(37),
                              .activation = mib(-11),
                              .non_torch = mib(64),
                              .collectives = mib(180),
                              .graph = mib(0.75)};
  return start(std::move(deployment));
}

struct Logs {
  std::vector<logs::EngineLog> logs;
  std::vector<CalibrationSample> samples;
};

using Print = std::string (*)(const Plan&, const std::string&);

Logs logs_of(const std::vector<DeploymentInput>& inputs, Print print = printed_vllm_log) {
  Logs out;
  out.logs.reserve(inputs.size());
  for (const DeploymentInput& input : inputs) {
    out.logs.push_back(logs::read_log_text(print(real_start(input), input.launch_line),
                                           "log" + std::to_string(out.logs.size())));
    ExplainOptions options;
    if (print != printed_vllm_log) {  // these logs tell less of themselves
      options.gpu = input.gpu;
      options.engine_version = input.engine_version;
    }
    const Identity identity = identify(out.logs.back().runs.front(), options);
    EXPECT_TRUE(identity.missing.empty());
    CalibrationSample sample{out.logs.back().name, &out.logs.back().runs.front(), identity.input};
    sample.input.card = {};  // to be fitted, not given
    out.samples.push_back(sample);
  }
  return out;
}

// Plans again with the file as the user would give it.
Plan calibrated(const CalibrationFit& fit, const std::vector<CalibrationSample>& samples,
                const DeploymentInput& input) {
  const Calibration read =
      parse_calibration(calibration_json({.logs = &fit, .samples = &samples}).dump(2), "c.json");
  AnyDeployment deployment = resolve_input(input);
  apply(read, deployment.common());
  return start(std::move(deployment));
}

void expect_near(const std::optional<Bytes>& got, const std::optional<Bytes>& want, double gib,
                 const char* what) {
  ASSERT_EQ(got.has_value(), want.has_value()) << what;
  if (got) {
    EXPECT_NEAR(to_gib(*got), to_gib(*want), gib) << what;
  }
}

struct RoundTrip {
  EngineReport real;
  EngineReport again;  // planned with what its log calibrates
};

RoundTrip round_trip(const DeploymentInput& input, Print print) {
  const Logs logs = logs_of({input}, print);
  const CalibrationFit fit = fit_calibration(logs.samples);
  return {real_start(input).report(), calibrated(fit, logs.samples, input).report()};
}

TEST(Calibrate, RoundTripReproducesTheLog) {
  for (const char* version : {"0.12.0", "0.17.0", "0.19.0", "0.20.0", "0.27.0", "0.33.0"}) {
    SCOPED_TRACE(version);
    const DeploymentInput input =
        input_of("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192", version);
    const auto [real, again] = round_trip(input, printed_vllm_log);
    expect_near(again.total, real.total, 0.01, "total");
    expect_near(again.weights, real.weights, 0.01, "weights");
    expect_near(again.activation_peak, real.activation_peak, 0.01, "activation");
    expect_near(again.non_torch, real.non_torch, 0.01, "non-torch");
    expect_near(again.consumed, real.consumed, 0.01, "consumed");
    expect_near(again.cudagraph, real.cudagraph, 0.01, "graphs");
    expect_near(again.available_kv, real.available_kv, 0.01, "KV");
  }
}

TEST(Calibrate, RoundTripReproducesSglangsLog) {
  for (const char* version : {"0.4.9", "0.5.8", "0.5.23"}) {
    for (const char* flags : {"", " --tp 2", " --disable-cuda-graph"}) {
      SCOPED_TRACE(std::string(version) + flags);
      const DeploymentInput input =
          input_of(std::string("python -m sglang.launch_server --model-path "
                               "meta-llama/Llama-3.1-8B-Instruct --context-length 8192") +
                       flags,
                   version);
      const auto [real, again] = round_trip(input, printed_sglang_log);
      expect_near(again.weights, real.weights, 0.01, "weights");
      expect_near(again.available_after_load, real.available_after_load, 0.01, "after loading");
      expect_near(again.available_after_pool, real.available_after_pool, 0.01, "after the pools");
      expect_near(again.available_at_end, real.available_at_end, 0.01, "ready");
      expect_near(again.cudagraph, real.cudagraph, 0.01, "graphs");
      expect_near(again.available_kv, real.available_kv, 0.01, "KV");
    }
  }
}

TEST(Calibrate, RoundTripReproducesTrtllmsLog) {
  for (const char* flags : {"", " --tp_size 2"}) {
    SCOPED_TRACE(flags);
    const DeploymentInput input = input_of(
        std::string("trtllm-serve meta-llama/Llama-3.1-8B-Instruct --max_seq_len 8192") + flags,
        "1.1.0");
    const auto [real, again] = round_trip(input, printed_trtllm_log);
    expect_near(again.weights, real.weights, 0.01, "weights");
    expect_near(again.activation_peak, real.activation_peak, 0.01, "activation");
    expect_near(again.non_torch, real.non_torch, 0.01, "outside PyTorch");
    expect_near(again.available_kv, real.available_kv, 0.01, "KV");
  }
}

TEST(Calibrate, FiguresThatDoNotAgreeStayNearThePresets) {
  // The pool is 100 MiB smaller than the free memory around it tells: no coefficient runs away.
  const DeploymentInput input = input_of(
      "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct", "0.5.20");
  const Plan real = real_start(input);
  std::string text = printed_sglang_log(real, input.launch_line);
  const std::string free =
      fmt::format("Memory pool end. avail mem={:.2f}", to_gib(*real.report().available_after_pool));
  ASSERT_NE(text.find(free), std::string::npos);
  text.replace(text.find(free), free.size(),
               fmt::format("Memory pool end. avail mem={:.2f}",
                           to_gib(*real.report().available_after_pool) + 0.1));
  const logs::EngineLog log = logs::read_log_text(text, "log");
  const CalibrationFit fit = fit_calibration({{"log", &log.runs.front(), input}});
  for (const Coefficient& coefficient : fit.coefficients) {
    EXPECT_LT(std::abs(to_mib(coefficient.value) - to_mib(coefficient.preset)), 512)
        << coefficient.name;
    EXPECT_GE(coefficient.name == "context_mib" ? to_mib(coefficient.value) : 0.0, 0.0);
  }
}

TEST(Calibrate, OneLogCarriesOverToOtherLaunches) {
  const Logs logs = logs_of({input_of("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "0.19.0")});
  const CalibrationFit fit = fit_calibration(logs.samples);
  for (const char* launch : {"vllm serve Qwen/Qwen2.5-7B-Instruct --max-num-seqs 128",
                             "vllm serve meta-llama/Llama-3.1-8B-Instruct --enforce-eager",
                             "vllm serve Qwen/Qwen3-0.6B --kv-cache-dtype fp8"}) {
    const DeploymentInput other = input_of(launch, "0.19.0");
    const double got = to_gib(*calibrated(fit, logs.samples, other).report().available_kv);
    const double want = to_gib(*real_start(other).report().available_kv);
    EXPECT_LT(std::abs(got / want - 1), 0.001) << launch;
  }
}

TEST(Calibrate, SeveralLogsTellCoefficientsApart) {
  const std::vector<DeploymentInput> inputs = {
      input_of("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "0.19.0"),
      input_of("vllm serve Qwen/Qwen3-8B --max-model-len 8192 -tp 2", "0.19.0"),
      input_of("vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 4096", "0.19.0")};
  const Logs logs = logs_of(inputs);
  const CalibrationFit fit = fit_calibration(logs.samples);
  const Residuals& found = fit.calibration.residuals;
  EXPECT_NEAR(to_mib(found.load), 37, 6);
  EXPECT_NEAR(to_mib(found.activation), -11, 6);
  EXPECT_NEAR(to_mib(found.non_torch), 64, 6);
  EXPECT_NEAR(to_mib(found.collectives), 180, 12);
  for (const Coefficient& coefficient : fit.coefficients) {
    if (coefficient.fitted) {
      EXPECT_GT(coefficient.figures, 0) << coefficient.name;
      EXPECT_FALSE(coefficient.places.empty()) << coefficient.name;
      EXPECT_LT(to_mib(coefficient.residual), 6) << coefficient.name;
    }
  }
}

TEST(Calibrate, TooFewDataLeavePresets) {
  const Logs logs = logs_of({input_of("vllm serve Qwen/Qwen3-8B --enforce-eager", "0.19.0")});
  const CalibrationFit fit = fit_calibration(logs.samples);
  for (const Coefficient& coefficient : fit.coefficients) {
    const bool unseen = coefficient.name == "collectives_residual_mib" ||
                        coefficient.name == "graph_residual_mib" ||
                        coefficient.name == "context_mib";
    EXPECT_EQ(coefficient.fitted, !unseen) << coefficient.name;
    if (unseen) {
      EXPECT_EQ(coefficient.value, coefficient.preset) << coefficient.name;
    }
  }
  const OrderedJson json = calibration_json({.logs = &fit, .samples = &logs.samples});
  EXPECT_FALSE(json["memory"].contains("graph_residual_mib"));
}

TEST(Calibrate, FilesAreGuarded) {
  const DeploymentInput input = input_of("vllm serve Qwen/Qwen3-8B --enforce-eager", "0.19.0");
  const Logs logs = logs_of({input});
  const CalibrationFit fit = fit_calibration(logs.samples);
  OrderedJson json = calibration_json({.logs = &fit, .samples = &logs.samples});
  EXPECT_NO_THROW(parse_calibration(json.dump(2), "c.json"));
  json["memory"]["load_residual_mib"] = 1.5;
  EXPECT_THROW(parse_calibration(json.dump(2), "c.json"), ConfigError);
  json.erase("checksum");
  const Calibration edited = parse_calibration(json.dump(2), "c.json");
  EXPECT_EQ(edited.residuals.load, mib(1.5));

  DeploymentInput on_other_card = input;
  on_other_card.gpu = "NVIDIA L40S";
  AnyDeployment other_card = resolve_input(on_other_card);
  EXPECT_THROW(apply(edited, other_card.common()), ConfigError);
  AnyDeployment near = resolve_input(input_of(input.launch_line, "0.22.0"));
  apply(edited, near.common());
  EXPECT_FALSE(near.common().warnings.empty());
  AnyDeployment far = resolve_input(input_of(input.launch_line, "0.33.0"));
  EXPECT_THROW(apply(edited, far.common()), ConfigError);
}

TEST(Calibrate, DifferentCardsAreRefused) {
  Logs logs = logs_of({input_of("vllm serve Qwen/Qwen3-8B", "0.19.0"),
                       input_of("vllm serve Qwen/Qwen3-8B", "0.19.0")});
  logs.samples[1].input.gpu = "NVIDIA L40S";
  EXPECT_THROW(fit_calibration(logs.samples), ConfigError);
}

}  // namespace
}  // namespace oomcast
