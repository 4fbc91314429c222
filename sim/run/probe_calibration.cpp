#include "sim/run/probe_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

// A coefficient that plans take.
struct Taken {
  std::string_view name;
  ProbeSection section = ProbeSection::kNone;
  void (*put)(Calibration& out, double value);
  double (*preset)(const models::GpuSpec& gpu);  // nullptr: depends on the engine
};

Bytes whole_bytes(double value) { return Bytes{std::llround(value)}; }

constexpr std::array<Taken, 8> kTaken = {{
    {"device_total_mib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.device_total = whole_bytes(value * kMebi); },
     [](const models::GpuSpec& gpu) { return to_mib(gpu.device_total); }},
    {"context_mib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.context = whole_bytes(value * kMebi); },
     [](const models::GpuSpec& gpu) { return to_mib(gpu.context_bytes); }},
    {"graph_executable_kib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.graph_executable = whole_bytes(value * kKibi); },
     nullptr},
    {"graph_node_kib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.graph_node = whole_bytes(value * kKibi); }, nullptr},
    {"gemm_gb_s_1", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_bandwidth_1 = value * 1e9; },
     [](const models::GpuSpec& gpu) {
       return gpu.bandwidth * gpu.bf16.bandwidth_share_large * 1e-9;
     }},
    {"gemm_tflops_256", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_flops_256 = value * 1e12; },
     [](const models::GpuSpec& gpu) {
       return gpu.bf16.peak_flops * gpu.bf16.flops_share_256 * 1e-12;
     }},
    {"gemm_tflops_2048", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_flops_2048 = value * 1e12; },
     [](const models::GpuSpec& gpu) {
       return gpu.bf16.peak_flops * gpu.bf16.flops_share_2048 * 1e-12;
     }},
    {"gemm_tflops_8192", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_flops_8192 = value * 1e12; },
     [](const models::GpuSpec& gpu) {
       return gpu.bf16.peak_flops * gpu.bf16.flops_share_8192 * 1e-12;
     }},
}};

const Taken* find_taken(std::string_view name) {
  const auto* const at = std::find_if(kTaken.begin(), kTaken.end(),
                                      [&](const Taken& taken) { return taken.name == name; });
  return at == kTaken.end() ? nullptr : at;
}

// A card has something of each: what came out at nothing or below is no measurement of it.
void refuse_nothings(fit::ProbeFit& fit) {
  const auto is_nothing = [](const fit::ProbeCoefficient& coefficient) {
    return find_taken(coefficient.name) != nullptr && !(coefficient.estimate.value > 0);
  };
  for (const fit::ProbeCoefficient& coefficient : fit.coefficients) {
    if (is_nothing(coefficient)) {
      fit.refused.push_back({{coefficient.name},
                             fmt::format("{:.4g} {} is nothing a card has",
                                         coefficient.estimate.value, coefficient.unit),
                             ""});
    }
  }
  std::erase_if(fit.coefficients, is_nothing);
}

void refuse_nothing_fitted(const ProbeCalibration& found) {
  if (!found.fit.coefficients.empty()) {
    return;
  }
  Problems problems;
  for (const fit::RefusedFit& refused : found.fit.refused) {
    problems.add({found.runs.front().source, fmt::format("{}", fmt::join(refused.names, ", ")), "",
                  "samples of the declared form", refused.reason + "\n" + refused.residuals});
  }
  if (problems.empty()) {
    problems.add({found.runs.front().source, "samples", "nothing that was done",
                  "samples that a coefficient can be fitted to",
                  found.fit.notes.empty() ? "" : found.fit.notes.front()});
  }
  problems.raise_if_any();
}

// Two digits, and nothing is never -0.
std::string two_digits(double value) {
  return fmt::format("{:.2f}", std::round(value * 100) / 100 + 0.0);
}

}  // namespace

ProbeCalibration calibrate_from_probes(std::vector<fit::ProbeSamples> runs) {
  ProbeCalibration out;
  out.fit = fit::fit_probes(runs);
  refuse_nothings(out.fit);
  std::sort(runs.begin(), runs.end(), [](const auto& left, const auto& right) {
    return std::pair(left.date, left.source) > std::pair(right.date, right.source);
  });
  out.runs = std::move(runs);
  refuse_nothing_fitted(out);
  const fit::ProbeSamples& newest = out.runs.front();
  out.calibration.source = newest.source;
  out.calibration.gpu = models::find_gpu(newest.card.gpu).name;
  out.calibration.synthetic = newest.synthetic;
  for (const fit::ProbeCoefficient& coefficient : out.fit.coefficients) {
    if (const Taken* taken = find_taken(coefficient.name)) {
      taken->put(out.calibration, coefficient.estimate.value);
    }
  }
  return out;
}

ProbeSection probe_section(std::string_view coefficient) {
  const Taken* taken = find_taken(coefficient);
  return taken == nullptr ? ProbeSection::kNone : taken->section;
}

std::optional<double> probe_preset(std::string_view coefficient, const models::GpuSpec& gpu) {
  const Taken* taken = find_taken(coefficient);
  return taken == nullptr || taken->preset == nullptr ? std::nullopt
                                                      : std::optional(taken->preset(gpu));
}

std::string refused_note(const fit::RefusedFit& refused) {
  return fmt::format("{}: {}: left at the preset", fmt::join(refused.names, ", "), refused.reason);
}

std::string probe_table(const ProbeCalibration& calibration) {
  const models::GpuSpec gpu = models::find_gpu(calibration.calibration.gpu);
  std::string out = fmt::format("  {:<24}{:>9}{:>12}{:>12}{:>26}{:>9}{:>9}\n", "coefficient",
                                "unit", "preset", "value", "95 % interval", "scatter", "samples");
  for (const fit::ProbeCoefficient& coefficient : calibration.fit.coefficients) {
    const auto preset = probe_preset(coefficient.name, gpu);
    const fit::Estimate& estimate = coefficient.estimate;
    out += fmt::format(
        "  {:<24}{:>9}{:>12}{:>12}{:>26}{:>8.2f}%{:>9}{}{}\n", coefficient.name, coefficient.unit,
        preset ? two_digits(*preset) : "-", two_digits(estimate.value),
        two_digits(estimate.low) + " to " + two_digits(estimate.high),
        coefficient.evidence.rms_share * 100, coefficient.evidence.samples,
        coefficient.evidence.outliers > 0
            ? fmt::format("  {} outliers", coefficient.evidence.outliers)
            : "",
        probe_section(coefficient.name) == ProbeSection::kNone ? "  no plan takes it yet" : "");
  }
  for (const fit::RefusedFit& refused : calibration.fit.refused) {
    out += fmt::format("\n{}\n{}", refused_note(refused), refused.residuals);
  }
  return out;
}

}  // namespace oomcast
