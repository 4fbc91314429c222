// What a made-up card is, its probes find again; and the way on into calibrations and plans.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "sim/core/error.hpp"
#include "sim/run/calibration_json.hpp"
#include "sim/run/plan_changes.hpp"
#include "validation/schedule/schedule.hpp"
#include "validation/schedule/synthetic_device.hpp"

namespace oomcast::validation {
namespace {

constexpr double kKibi = 1024;
constexpr double kMebi = 1048576;

fit::ProbeSamples samples_of(std::uint64_t seed, double noise, const SyntheticTruth& truth = {}) {
  SyntheticDevice device(truth, seed, noise);
  fit::ProbeSamples run =
      run_measurements(device, measurements_for(device.card()), {.date = "2026-11-30T00:00:00Z"});
  run.synthetic = true;
  run.source = "synthetic.json";
  return run;
}

// The coefficients that plans take and that scatter, and those that show the other forms.
std::map<std::string, double> truths() {
  const SyntheticTruth truth;
  return {{"context_mib", to_mib(truth.context)},
          {"context_eager_mib", to_mib(truth.context_eager)},
          {"graph_executable_kib", truth.graph_executable / kKibi},
          {"graph_node_kib", truth.graph_node / kKibi},
          {"gemm_gb_s_1", truth.gemm_bandwidth_1 * 1e-9},
          {"gemm_tflops_256", truth.gemm_flops_256 * 1e-12},
          {"gemm_tflops_2048", truth.gemm_flops_2048 * 1e-12},
          {"gemm_tflops_8192", truth.gemm_flops_8192 * 1e-12},
          {"hbm_gb_s", truth.hbm_bandwidth * 1e-9},
          {"transfer_gb_s", truth.transfer_bandwidth * 1e-9},
          {"cublas_handle_mib", to_mib(truth.cublas_handle)}};
}

const fit::ProbeCoefficient& find(const fit::ProbeFit& fit, const std::string& name) {
  for (const fit::ProbeCoefficient& coefficient : fit.coefficients) {
    if (coefficient.name == name) {
      return coefficient;
    }
  }
  for (const fit::RefusedFit& refused : fit.refused) {
    if (refused.names.front() == name) {
      throw std::runtime_error(name + ": " + refused.reason + "\n" + refused.residuals);
    }
  }
  throw std::runtime_error("not fitted: " + name);
}

TEST(Recovery, WithoutNoiseAllIsExact) {
  const SyntheticTruth truth;
  const fit::ProbeFit fit = fit::fit_probes({samples_of(1, 0)});
  EXPECT_TRUE(fit.refused.empty());
  for (const auto& [name, value] : truths()) {
    EXPECT_NEAR(find(fit, name).estimate.value / value, 1, 1e-6) << name;
  }
  EXPECT_NEAR(find(fit, "device_total_mib").estimate.value, to_mib(truth.total), 1e-9);
  EXPECT_NEAR(find(fit, "malloc_granule_mib").estimate.value, 2, 1e-9);
  EXPECT_NE(find(fit, "malloc_granule_mib").evidence.form.find("2097152"), std::string::npos);
  EXPECT_NEAR(find(fit, "quantised_row_bytes").estimate.value, 2048 + 64, 1e-9);
  EXPECT_NE(find(fit, "quantised_row_bytes").evidence.form.find("ceil"), std::string::npos);
  EXPECT_NEAR(find(fit, "context_kernel_kib").estimate.value, truth.context_kernel / kKibi, 1e-3);
  EXPECT_NEAR(find(fit, "graph_pool_mib").estimate.value, 32, 1e-6);
}

// 2 % of noise: coefficients within 3 % and intervals that hold the truth in 95 of 100.
TEST(Recovery, AThousandNoisyRuns) {
  constexpr int kTrials = 1000;
  std::map<std::string, int> near;
  std::map<std::string, int> covered;
  for (std::uint64_t seed = 1; seed <= kTrials; ++seed) {
    const fit::ProbeFit fit = fit::fit_probes({samples_of(seed, 0.02)});
    for (const auto& [name, value] : truths()) {
      const fit::Estimate& found = find(fit, name).estimate;
      near[name] += std::abs(found.value / value - 1) <= 0.03 ? 1 : 0;
      covered[name] += found.low <= value && value <= found.high ? 1 : 0;
    }
  }
  for (const auto& [name, value] : truths()) {
    EXPECT_GE(near[name], 0.99 * kTrials) << name;
    EXPECT_GE(covered[name], 0.925 * kTrials) << name;
    EXPECT_LE(covered[name], 0.975 * kTrials) << name;
  }
}

TEST(Recovery, BytesRepeatWithinAPercent) {
  const fit::ProbeFit one = fit::fit_probes({samples_of(1, 0.005)});
  const fit::ProbeFit two = fit::fit_probes({samples_of(2, 0.005)});
  for (const char* name : {"device_total_mib", "context_mib", "graph_node_kib"}) {
    EXPECT_NEAR(find(one, name).estimate.value / find(two, name).estimate.value, 1, 0.01) << name;
  }
}

DeploymentInput input_of(const std::string& launch, const std::string& gpu) {
  DeploymentInput input;
  input.launch_line = launch;
  input.gpu = gpu;
  return input;
}

std::string file_of(const ProbeCalibration& probes) {
  return calibration_json({.logs = nullptr, .samples = nullptr, .probes = &probes}).dump(2);
}

TEST(ProbeCalibration, ChangesPlansOfEveryEngineByClass) {
  const ProbeCalibration probes = calibrate_from_probes({samples_of(3, 0)});
  const Calibration read = parse_calibration(file_of(probes), "c.json");
  EXPECT_FALSE(read.engine);
  EXPECT_TRUE(read.synthetic);
  const SyntheticTruth truth;
  for (const char* launch :
       {"vllm serve Qwen/Qwen3-8B", "python -m sglang.launch_server --model-path Qwen/Qwen3-8B",
        "trtllm-serve Qwen/Qwen3-8B"}) {
    SCOPED_TRACE(launch);
    const AnyDeployment presets = resolve_input(input_of(launch, "H100"));
    AnyDeployment calibrated = presets;
    apply(read, calibrated.common());
    EXPECT_EQ(calibrated.common().gpu.device_total, truth.total);
    EXPECT_EQ(calibrated.common().gpu.context_bytes, truth.context);
    EXPECT_NEAR(calibrated.common().gpu.bf16.flops_share_2048, 791.0 / 989.0, 1e-6);
    const OrderedJson changes =
        plan_changes_json(start(presets), start(std::move(calibrated)), "c.json");
    const OrderedJson& context = changes.at("classes").at("system.context");
    // In whole granules on both sides.
    EXPECT_NEAR(context.at(1).get<double>() - context.at(0).get<double>(),
                static_cast<double>((truth.context - presets.common().gpu.context_bytes).count()),
                2 * kMebi);
    EXPECT_NE(plan_changes_text(changes).find("system.context"), std::string::npos);
  }
}

// Driver memory of full graphs: executable and 12 nodes a layer, together in whole 2 MiB.
TEST(ProbeCalibration, GraphsFollowTheirNodes) {
  const AnyDeployment presets = resolve_input(
      input_of("vllm serve Qwen/Qwen3-8B --compilation-config "
               R"('{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,2,4]}')",
               "H100"));
  SyntheticTruth truth;
  truth.graph_node = 40 * kKibi;
  truth.graph_executable = 1000 * kKibi;
  AnyDeployment calibrated = presets;
  apply(calibrate_from_probes({samples_of(3, 0, truth)}).calibration, calibrated.common());
  const OrderedJson changes =
      plan_changes_json(start(presets), start(std::move(calibrated)), "c.json");
  const OrderedJson& graphs = changes.at("classes").at("graph.pool");
  // 36 layers: three times 432 nodes of 11 KiB and 104 KiB take 16 MiB; of 40 KiB and 1000 KiB, 54.
  EXPECT_EQ(graphs.at(1).get<std::int64_t>() - graphs.at(0).get<std::int64_t>(),
            static_cast<std::int64_t>(38 * kMebi));
}

TEST(ProbeCalibration, TheSameBytesWhateverTheOrderAndPlaceOfFiles) {
  fit::ProbeSamples one = samples_of(1, 0.005);
  fit::ProbeSamples two = samples_of(2, 0.005);
  one.source = "a/one.json";
  two.source = "a/two.json";
  const std::string text = file_of(calibrate_from_probes({one, two}));
  one.source = "b/c/one.json";
  two.source = "two.json";
  EXPECT_EQ(file_of(calibrate_from_probes({two, one})), text);
  EXPECT_EQ(text.find("b/c"), std::string::npos);
}

TEST(ProbeCalibration, CardsAlikeTakeWhatTheDriverDoes) {
  const ProbeCalibration probes = calibrate_from_probes({samples_of(3, 0)});
  AnyDeployment alike = resolve_input(input_of("vllm serve Qwen/Qwen3-8B", "H200"));
  const models::GpuSpec before = alike.common().gpu;
  apply(probes.calibration, alike.common());
  EXPECT_EQ(alike.common().gpu.context_bytes, *probes.calibration.context);
  EXPECT_EQ(alike.common().gpu.device_total, before.device_total);
  EXPECT_EQ(alike.common().gpu.bf16.flops_share_2048, before.bf16.flops_share_2048);
  EXPECT_EQ(alike.common().graph_costs.node, probes.calibration.graph_node);
  EXPECT_GE(alike.common().warnings.size(), 2U);  // another card; a made-up one
  AnyDeployment other = resolve_input(input_of("vllm serve Qwen/Qwen3-8B", "A100-80GB"));
  EXPECT_THROW(apply(probes.calibration, other.common()), ConfigError);
}

// A name is a promise: of its multiprocessors, and of being the whole card, alone.
TEST(ProbeCalibration, CardsThatAreNotWhatTheirNameSaysAreRefused) {
  const auto refused = [](void (*change)(fit::ProbedCard&), bool allow_shared) {
    fit::ProbeSamples run = samples_of(1, 0);
    change(run.card);
    try {
      calibrate_from_probes({run}, allow_shared);
    } catch (const ConfigError&) {
      return true;
    }
    return false;
  };
  for (const bool allow : {false, true}) {
    EXPECT_TRUE(refused([](fit::ProbedCard& card) { card.sm_count = 3; }, allow));
    EXPECT_TRUE(refused([](fit::ProbedCard& card) { card.compute_capability = "8.0"; }, allow));
  }
  const auto slice = [](fit::ProbedCard& card) {
    card.mig = true;
    card.sm_count = 16;
  };
  const auto busy = [](fit::ProbedCard& card) { card.other_processes = 3; };
  EXPECT_TRUE(refused(slice, false));
  EXPECT_TRUE(refused(busy, false));
  EXPECT_FALSE(refused(slice, true));
  EXPECT_FALSE(refused(busy, true));
}

TEST(ProbeCalibration, ValuesThatNoCardHasStayAtTheirPresets) {
  const auto calibrated = [](double factor) {
    fit::ProbeSamples run = samples_of(1, 0);
    for (fit::ProbeSample& sample : run.samples) {
      if (sample.probe == "gemm" || sample.probe == "context") {
        for (auto& [name, value] : sample.values) {
          value *= factor;
        }
      }
    }
    return calibrate_from_probes({run});
  };
  for (const double factor : {-1.0, 1e-13, 200.0}) {
    const ProbeCalibration probes = calibrated(factor);
    EXPECT_FALSE(probes.calibration.context) << factor;
    EXPECT_FALSE(probes.calibration.rates.gemm_flops_2048) << factor;
    EXPECT_TRUE(probes.calibration.device_total) << factor;
    // What is written is read again.
    EXPECT_NO_THROW(parse_calibration(file_of(probes), "c.json")) << factor;
  }
  EXPECT_TRUE(calibrated(1).calibration.context);
}

// The same of files written by hand.
TEST(ProbeCalibration, PlansRefuseWhatNoCardHas) {
  const auto apply_text = [](const std::string& section) {
    AnyDeployment deployment = resolve_input(input_of("vllm serve Qwen/Qwen3-8B", "H100"));
    apply(parse_calibration(R"({"schema": "oomcast.calibration/1",
                               "gpu": "NVIDIA H100 80GB HBM3", )" +
                                section + "}",
                            "c.json"),
          deployment.common());
    return deployment.common().warnings;
  };
  for (
      const char* section :
      {R"("memory": {"context_mib": 500000})", R"("memory": {"device_total_mib": 100000})",
       R"("memory": {"load_residual_mib": -1000000})", R"("memory": {"graphs_mib": 1000000})",
       R"("rates": {"gemm_gb_s_1": 1e6})", R"("rates": {"gemm_tflops_256": 99999})",
       R"("engine": "vllm", "engine_version": "abc")", R"("engine": "vllm")",
       R"("engine_version": "0.19.0")", R"("origin": "dreamt")",
       R"("engine": "vllm", "engine_version": "0.20.0", "engine_version_range": ["0.18.0", "0.19.0"])"}) {
    EXPECT_THROW(apply_text(section), ConfigError) << section;
  }
  EXPECT_TRUE(apply_text(R"("memory": {"device_total_mib": 81000})").empty());
  EXPECT_EQ(apply_text(R"("memory": {"device_total_mib": 40000})").size(), 1U);
}

TEST(ProbeCalibration, RefusesWhatHasNoFormWithItsResiduals) {
  fit::ProbeSamples run = samples_of(1, 0);
  std::erase_if(run.samples, [](const auto& sample) { return sample.probe != "graph"; });
  for (std::size_t i = 0; i < run.samples.size(); ++i) {
    run.samples[i].values["bytes"] *= i % 2 == 0 ? 3 : 1;
  }
  try {
    calibrate_from_probes({run});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("a + b x + c z"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("graph copies=64 nodes=1024"), std::string::npos);
  }
}

// The files that the repository carries are what the made-up device answers.
TEST(Samples, AreThoseOfTheMadeUpDevice) {
  const std::filesystem::path folder =
      std::filesystem::path(OOMCAST_SOURCE_DIR) / "validation" / "samples";
  std::uint64_t seed = 1;
  for (const char* name : {"h100_synthetic_1.json", "h100_synthetic_2.json"}) {
    const fit::ProbeSamples read = fit::read_probe_samples((folder / name).string());
    EXPECT_TRUE(read.synthetic);
    const fit::ProbeSamples made = samples_of(seed++, 0.005);
    ASSERT_EQ(read.samples.size(), made.samples.size());
    for (std::size_t i = 0; i < made.samples.size(); ++i) {
      EXPECT_EQ(read.samples[i].settings, made.samples[i].settings);
      for (const auto& [value, number] : made.samples[i].values) {
        EXPECT_NEAR(read.samples[i].values.at(value) / number, 1, 1e-9)
            << label_of(made.samples[i]);
      }
    }
  }
}

}  // namespace
}  // namespace oomcast::validation
