// Samples -> coefficients: which run decides, what is left out, what is refused.
#include "sim/fit/probe_fit.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"

namespace oomcast::fit {
namespace {

constexpr double kKibi = 1024;

ProbeSamples run_of(const char* date, const char* driver) {
  ProbeSamples run;
  run.source = std::string("folder/") + date + ".json";
  run.card.gpu = "NVIDIA H100 80GB HBM3";
  run.driver = driver;
  run.cuda = "13.0";
  run.date = date;
  run.versions = {{"graph", 1}, {"hbm", 1}, {"card", 1}};
  return run;
}

void add_graphs(ProbeSamples& run, double node_kib) {
  for (const std::int64_t nodes : {16, 64, 256}) {
    for (const std::int64_t copies : {0, 16}) {
      run.samples.push_back({.probe = "graph",
                             .settings = {{"nodes", nodes}, {"copies", copies}},
                             .repeat = 0,
                             .status = SampleStatus::kDone,
                             .note = "",
                             .values = {{"bytes", (128 + node_kib * static_cast<double>(nodes) +
                                                   2 * static_cast<double>(copies)) *
                                                      kKibi}},
                             .free_before = Bytes{0},
                             .free_after = Bytes{0},
                             .disturbed = false});
    }
  }
}

const ProbeCoefficient* find(const ProbeFit& fit, const std::string& name) {
  for (const ProbeCoefficient& coefficient : fit.coefficients) {
    if (coefficient.name == name) {
      return &coefficient;
    }
  }
  return nullptr;
}

TEST(ProbeFit, TwoVariablesInTheirUnits) {
  ProbeSamples run = run_of("2026-11-01T00:00:00Z", "570.1");
  add_graphs(run, 7.5);
  const ProbeFit fit = fit_probes({run});
  ASSERT_NE(find(fit, "graph_node_kib"), nullptr);
  EXPECT_NEAR(find(fit, "graph_node_kib")->estimate.value, 7.5, 1e-6);
  EXPECT_NEAR(find(fit, "graph_executable_kib")->estimate.value, 128, 1e-6);
  EXPECT_NEAR(find(fit, "graph_copy_kib")->estimate.value, 2, 1e-6);
  EXPECT_EQ(find(fit, "graph_node_kib")->evidence.samples, 6);
  EXPECT_EQ(find(fit, "hbm_gb_s"), nullptr);
}

TEST(ProbeFit, TheNewestRunDecidesAndAgreeingRunsAreTakenTogether) {
  ProbeSamples old = run_of("2026-11-01T00:00:00Z", "570.1");
  ProbeSamples middle = run_of("2026-11-02T00:00:00Z", "580.2");
  ProbeSamples last = run_of("2026-11-03T00:00:00Z", "580.2");
  add_graphs(old, 6);
  add_graphs(middle, 8);
  add_graphs(last, 8);
  ProbeSample total{.probe = "card",
                    .settings = {},
                    .repeat = 0,
                    .status = SampleStatus::kDone,
                    .note = "",
                    .values = {{"total_bytes", 1048576.0 * 81'000}},
                    .free_before = Bytes{0},
                    .free_after = Bytes{0},
                    .disturbed = false};
  old.samples.push_back(total);
  for (const auto& runs : {std::vector{old, middle, last}, std::vector{last, old, middle}}) {
    const ProbeFit fit = fit_probes(runs);
    const ProbeCoefficient* node = find(fit, "graph_node_kib");
    ASSERT_NE(node, nullptr);
    EXPECT_NEAR(node->estimate.value, 8, 1e-6);
    EXPECT_EQ(node->evidence.driver, "580.2");
    EXPECT_EQ(node->evidence.samples, 12);
    EXPECT_EQ(node->evidence.files, (std::vector<std::string>{last.source, middle.source}));
    // Only the oldest has it.
    ASSERT_NE(find(fit, "device_total_mib"), nullptr);
    EXPECT_EQ(find(fit, "device_total_mib")->estimate.value, 81'000);
    EXPECT_EQ(find(fit, "device_total_mib")->evidence.driver, "570.1");
  }
}

TEST(ProbeFit, LeavesOutWhatWasDisturbedOrNotDone) {
  ProbeSamples run = run_of("2026-11-01T00:00:00Z", "570.1");
  add_graphs(run, 7.5);
  ProbeSample wrong = run.samples.front();
  wrong.values["bytes"] *= 1.4;
  wrong.disturbed = true;
  run.samples.push_back(wrong);
  wrong.disturbed = false;
  wrong.status = SampleStatus::kOutOfMemory;
  wrong.note = "cudaMalloc";
  run.samples.push_back(wrong);
  const ProbeFit fit = fit_probes({run});
  EXPECT_EQ(find(fit, "graph_node_kib")->evidence.samples, 6);
  ASSERT_EQ(fit.notes.size(), 2U);
  EXPECT_EQ(fit.notes[0], "2026-11-01T00:00:00Z.json: graph: out_of_memory: cudaMalloc");
  EXPECT_EQ(fit.notes[1],
            "2026-11-01T00:00:00Z.json: 1 samples left out: something else used the card");
}

TEST(ProbeFit, ARateIsTheInverseOfATimePerByte) {
  ProbeSamples run = run_of("2026-11-01T00:00:00Z", "570.1");
  for (const std::int64_t mebi : {256, 512, 1024}) {
    const std::int64_t bytes = mebi << 20;
    run.samples.push_back({.probe = "hbm",
                           .settings = {{"bytes", bytes}},
                           .repeat = 0,
                           .status = SampleStatus::kDone,
                           .note = "",
                           .values = {{"seconds", 3e-6 + static_cast<double>(bytes) / 2.5e12}},
                           .free_before = Bytes{0},
                           .free_after = Bytes{0},
                           .disturbed = false});
  }
  EXPECT_NEAR(find(fit_probes({run}), "hbm_gb_s")->estimate.value, 2500, 1e-3);
  // Times that fall with the bytes tell no bandwidth.
  for (ProbeSample& sample : run.samples) {
    sample.values["seconds"] = 1 + 1e-12 / static_cast<double>(sample.settings["bytes"]);
  }
  const ProbeFit flat = fit_probes({run});
  EXPECT_EQ(find(flat, "hbm_gb_s"), nullptr);
  ASSERT_EQ(flat.refused.size(), 1U);
  EXPECT_EQ(flat.refused.front().names, std::vector<std::string>{"hbm_gb_s"});
}

TEST(ProbeFit, RefusesOneFormAndKeepsTheOthers) {
  ProbeSamples run = run_of("2026-11-01T00:00:00Z", "570.1");
  add_graphs(run, 7.5);
  for (const double mebi : {2.0, 400.0, 3.0, 900.0, 5.0}) {
    run.samples.push_back({.probe = "cublas",
                           .settings = {},
                           .repeat = 0,
                           .status = SampleStatus::kDone,
                           .note = "",
                           .values = {{"handle_bytes", mebi * 1048576}},
                           .free_before = Bytes{0},
                           .free_after = Bytes{0},
                           .disturbed = false});
  }
  const ProbeFit fit = fit_probes({run});
  EXPECT_NE(find(fit, "graph_node_kib"), nullptr);
  EXPECT_EQ(find(fit, "cublas_handle_mib"), nullptr);
  ASSERT_EQ(fit.refused.size(), 1U);
  EXPECT_NE(fit.refused.front().residuals.find("repeat 0"), std::string::npos);
}

TEST(ProbeFit, OneCardAndOneOrigin) {
  ProbeSamples one = run_of("2026-11-01T00:00:00Z", "570.1");
  ProbeSamples other = run_of("2026-11-02T00:00:00Z", "570.1");
  other.card.gpu = "NVIDIA L40S";
  other.synthetic = true;
  try {
    fit_probes({one, other});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 2U);
  }
}

}  // namespace
}  // namespace oomcast::fit
