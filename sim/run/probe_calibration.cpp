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
  // What a plan takes without; nullptr: depends on the engine.
  double (*preset)(const models::GpuSpec& gpu);
  double (*most)(const models::GpuSpec& gpu);  // that a card of this make can have
};

Bytes whole_bytes(double value) { return Bytes{std::llround(value)}; }

double total_mib(const models::GpuSpec& gpu) { return to_mib(gpu.device_total); }
double total_kib(const models::GpuSpec& gpu) { return total_mib(gpu) * kMebi / kKibi; }
double most_total_mib(const models::GpuSpec& gpu) { return total_mib(gpu) * kMostOfTotal; }
double most_gb_s(const models::GpuSpec& gpu) { return most_reached(gpu.bandwidth) * 1e-9; }
double most_tflops(const models::GpuSpec& gpu) { return most_reached(gpu.bf16.peak_flops) * 1e-12; }

constexpr std::array<Taken, 8> kTaken = {{
    {"device_total_mib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.device_total = whole_bytes(value * kMebi); },
     total_mib, most_total_mib},
    {"context_mib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.context = whole_bytes(value * kMebi); },
     [](const models::GpuSpec& gpu) { return to_mib(gpu.context_bytes); }, total_mib},
    {"graph_executable_kib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.graph_executable = whole_bytes(value * kKibi); },
     nullptr, total_kib},
    {"graph_node_kib", ProbeSection::kMemory,
     [](Calibration& out, double value) { out.graph_node = whole_bytes(value * kKibi); }, nullptr,
     total_kib},
    {"gemm_gb_s_1", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_bandwidth_1 = value * 1e9; },
     [](const models::GpuSpec& gpu) {
       return gpu.bandwidth * gpu.bf16.bandwidth_share_large * 1e-9;
     },
     most_gb_s},
    {"gemm_tflops_256", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_flops_256 = value * 1e12; },
     [](const models::GpuSpec& gpu) {
       return gpu.bf16.peak_flops * gpu.bf16.flops_share_256 * 1e-12;
     },
     most_tflops},
    {"gemm_tflops_2048", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_flops_2048 = value * 1e12; },
     [](const models::GpuSpec& gpu) {
       return gpu.bf16.peak_flops * gpu.bf16.flops_share_2048 * 1e-12;
     },
     most_tflops},
    {"gemm_tflops_8192", ProbeSection::kRates,
     [](Calibration& out, double value) { out.rates.gemm_flops_8192 = value * 1e12; },
     [](const models::GpuSpec& gpu) {
       return gpu.bf16.peak_flops * gpu.bf16.flops_share_8192 * 1e-12;
     },
     most_tflops},
}};

const Taken* find_taken(std::string_view name) {
  const auto* const at = std::find_if(kTaken.begin(), kTaken.end(),
                                      [&](const Taken& taken) { return taken.name == name; });
  return at == kTaken.end() ? nullptr : at;
}

// A card has something of each, and no more than it can: what came out elsewhere is no measurement
// of it. `kLeast` is what a file still says in its digits.
void refuse_impossible(fit::ProbeFit& fit, const models::GpuSpec& gpu) {
  constexpr double kLeast = 1e-3;
  const auto is_possible = [&](const fit::ProbeCoefficient& coefficient) {
    const Taken* taken = find_taken(coefficient.name);
    return taken == nullptr ||
           (coefficient.estimate.value >= kLeast && coefficient.estimate.value <= taken->most(gpu));
  };
  for (const fit::ProbeCoefficient& coefficient : fit.coefficients) {
    if (!is_possible(coefficient)) {
      fit.refused.push_back({{coefficient.name},
                             fmt::format("{:.4g} {} is nothing that a {} has, {} to {:.4g}",
                                         coefficient.estimate.value, coefficient.unit, gpu.name,
                                         kLeast, find_taken(coefficient.name)->most(gpu)),
                             ""});
    }
  }
  std::erase_if(fit.coefficients,
                [&](const auto& coefficient) { return !is_possible(coefficient); });
}

// The name says what the rest must be.
void check_make(const fit::ProbeSamples& run, const models::GpuSpec& gpu, Problems& problems) {
  const auto check = [&](const char* place, const std::string& found, const std::string& expected) {
    if (found != expected) {
      problems.add({run.source, place, found, expected, "as a " + gpu.name + " has"});
    }
  };
  check("card.compute_capability", run.card.compute_capability,
        fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor));
  if (!run.card.mig) {
    check("card.sm_count", std::to_string(run.card.sm_count), std::to_string(gpu.sm_count));
    check("card.threads_per_sm", std::to_string(run.card.threads_per_sm),
          std::to_string(gpu.threads_per_sm));
  }
}

void check_alone(const fit::ProbeSamples& run, Problems& problems) {
  constexpr const char* kHint = "--allow-shared takes them all the same";
  if (run.card.mig) {
    problems.add({run.source, "card.mig", "true", "samples of a whole card", kHint});
  }
  if (run.card.other_processes > 0) {
    problems.add({run.source, "card.other_processes", std::to_string(run.card.other_processes),
                  "samples of a card that nothing else used", kHint});
  }
}

void check_cards(const std::vector<fit::ProbeSamples>& runs, const models::GpuSpec& gpu,
                 bool allow_shared) {
  Problems problems;
  for (const fit::ProbeSamples& run : runs) {
    check_make(run, gpu, problems);
    if (!allow_shared) {
      check_alone(run, problems);
    }
  }
  problems.raise_if_any();
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

ProbeCalibration calibrate_from_probes(std::vector<fit::ProbeSamples> runs, bool allow_shared) {
  ProbeCalibration out;
  out.fit = fit::fit_probes(runs);
  const models::GpuSpec gpu = models::find_gpu(runs.front().card.gpu);
  check_cards(runs, gpu, allow_shared);
  refuse_impossible(out.fit, gpu);
  std::sort(runs.begin(), runs.end(), [](const auto& left, const auto& right) {
    return std::pair(left.date, left.source) > std::pair(right.date, right.source);
  });
  out.runs = std::move(runs);
  refuse_nothing_fitted(out);
  const fit::ProbeSamples& newest = out.runs.front();
  out.calibration.source = newest.source;
  out.calibration.gpu = gpu.name;
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
