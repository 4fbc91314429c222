#include "sim/fit/probe_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::fit {
namespace {

constexpr double kKibi = 1024;
constexpr double kMebi = 1048576;

// One coefficient of a form: value = factor * a, or factor / a of a time per amount.
struct Name {
  const char* name;  // nullptr: of no interest
  const char* unit = "";
  double factor = 1;
  bool reciprocal = false;
};
constexpr Name kUnnamed{nullptr};

struct Alternative {
  Form form;
  std::vector<Name> names;  // one a coefficient
};

struct Row {
  const char* probe;
  const char* value;
  std::vector<const char*> variables;
  std::vector<std::pair<const char*, std::int64_t>> where;  // settings that samples must have
  std::vector<Alternative> alternatives;
};

Form constant(double floor) { return {Shape::kConstant, 1, floor}; }
Form affine(double floor) { return {Shape::kAffine, 1, floor}; }
Form two(double floor) { return {Shape::kTwoVariables, 1, floor}; }
Form tiles(double tile, double floor) { return {Shape::kTiles, tile, floor}; }

// Counters of device memory move by 2 MiB: below ten of them an error is one of the counter.
constexpr double kGranule = 2 * kMebi;
constexpr double kCounted = 10 * kGranule;
// Clocks of events tick every half microsecond.
constexpr double kTimed = 5e-6;

// validation/README.md says what each probe does and what its coefficients stand for.
const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"card", "total_bytes", {}, {}, {{constant(0), {{"device_total_mib", "MiB", 1 / kMebi}}}}},
      {"context",
       "bytes",
       {"kernels"},
       {{"eager", 0}},
       {{affine(kCounted),
         {{"context_mib", "MiB", 1 / kMebi}, {"context_kernel_kib", "KiB", 1 / kKibi}}}}},
      {"context",
       "bytes",
       {},
       {{"eager", 1}},
       {{constant(kCounted), {{"context_eager_mib", "MiB", 1 / kMebi}}}}},
      {"malloc",
       "bytes",
       {"request"},
       {},
       {{tiles(64 * kKibi, kGranule), {kUnnamed, {"malloc_granule_mib", "MiB", 1 / kMebi}}},
        {tiles(512 * kKibi, kGranule), {kUnnamed, {"malloc_granule_mib", "MiB", 1 / kMebi}}},
        {tiles(2 * kMebi, kGranule), {kUnnamed, {"malloc_granule_mib", "MiB", 1 / kMebi}}}}},
      {"vmm", "granule_bytes", {}, {}, {{constant(0), {{"vmm_granule_mib", "MiB", 1 / kMebi}}}}},
      {"pinned",
       "bytes",
       {"registered"},
       {},
       {{affine(kCounted), {kUnnamed, {"pinned_mib_per_gib", "MiB/GiB", 1024}}}}},
      {"peer",
       "bytes",
       {"peers"},
       {},
       {{affine(kCounted), {kUnnamed, {"peer_mapping_mib", "MiB", 1 / kMebi}}}}},
      {"cublas",
       "handle_bytes",
       {},
       {},
       {{constant(kCounted), {{"cublas_handle_mib", "MiB", 1 / kMebi}}}}},
      {"cublas",
       "first_gemm_bytes",
       {},
       {},
       {{constant(kCounted), {{"cublas_first_gemm_mib", "MiB", 1 / kMebi}}}}},
      {"decode_attention",
       "bytes",
       {"token_splits"},
       {},
       {{affine(kKibi), {kUnnamed, {"decode_split_bytes", "B"}}}}},
      {"prefill_attention",
       "bytes",
       {"tokens"},
       {},
       {{affine(kKibi), {kUnnamed, {"prefill_token_bytes", "B"}}}}},
      {"permute", "bytes", {"rows"}, {}, {{affine(kKibi), {kUnnamed, {"permute_row_bytes", "B"}}}}},
      {"grouped_gemm",
       "bytes",
       {"rows"},
       {},
       {{affine(kKibi), {kUnnamed, {"expert_row_bytes", "B"}}}}},
      {"quantise",
       "bytes",
       {"rows"},
       {},
       {{affine(kKibi), {kUnnamed, {"quantised_row_bytes", "B"}}},
        {tiles(128, kKibi), {kUnnamed, {"quantised_row_bytes", "B", 1.0 / 128}}}}},
      {"graph",
       "bytes",
       {"nodes", "copies"},
       {},
       {{two(64 * kKibi),
         {{"graph_executable_kib", "KiB", 1 / kKibi},
          {"graph_node_kib", "KiB", 1 / kKibi},
          {"graph_copy_kib", "KiB", 1 / kKibi}}}}},
      {"graph_pool",
       "bytes",
       {"graphs"},
       {},
       {{affine(kCounted),
         {{"graph_pool_mib", "MiB", 1 / kMebi}, {"graph_pool_each_mib", "MiB", 1 / kMebi}}}}},
      {"nccl",
       "bytes",
       {"channels"},
       {},
       {{affine(kCounted),
         {{"nccl_fixed_mib", "MiB", 1 / kMebi}, {"nccl_channel_mib", "MiB", 1 / kMebi}}}}},
      {"hbm",
       "seconds",
       {"bytes"},
       {},
       {{affine(kTimed), {kUnnamed, {"hbm_gb_s", "GB/s", 1e-9, true}}}}},
      {"gemm",
       "bytes_per_second",
       {},
       {{"rows", 1}},
       {{constant(0), {{"gemm_gb_s_1", "GB/s", 1e-9}}}}},
      {"gemm",
       "flops_per_second",
       {},
       {{"rows", 256}},
       {{constant(0), {{"gemm_tflops_256", "TFLOP/s", 1e-12}}}}},
      {"gemm",
       "flops_per_second",
       {},
       {{"rows", 2048}},
       {{constant(0), {{"gemm_tflops_2048", "TFLOP/s", 1e-12}}}}},
      {"gemm",
       "flops_per_second",
       {},
       {{"rows", 8192}},
       {{constant(0), {{"gemm_tflops_8192", "TFLOP/s", 1e-12}}}}},
      {"dispatch",
       "bytes",
       {"tokens"},
       {},
       {{affine(kCounted), {kUnnamed, {"dispatch_token_bytes", "B"}}}}},
      {"dispatch", "overlap", {}, {}, {{constant(0.1), {{"dispatch_overlap", "share"}}}}},
      {"transfer",
       "seconds",
       {"bytes"},
       {},
       {{affine(kTimed),
         {{"transfer_start_us", "us", 1e6}, {"transfer_gb_s", "GB/s", 1e-9, true}}}}},
      {"transfer", "overlap", {}, {}, {{constant(0.1), {{"transfer_overlap", "share"}}}}},
  };
  return kRows;
}

// Runs whose samples may be taken together.
using Conditions = std::array<std::string, 3>;  // driver, CUDA, version of the probe

std::int64_t version_of(const ProbeSamples& run, const std::string& probe) {
  const auto at = run.versions.find(probe);
  return at == run.versions.end() ? 0 : at->second;
}

Conditions conditions_of(const ProbeSamples& run, const std::string& probe) {
  return {run.driver, run.cuda, std::to_string(version_of(run, probe))};
}

std::optional<Observation> observe(const Row& row, const ProbeSample& sample) {
  if (sample.probe != row.probe || sample.status != SampleStatus::kDone || sample.disturbed) {
    return std::nullopt;
  }
  for (const auto& [name, value] : row.where) {
    const auto at = sample.settings.find(name);
    if (at == sample.settings.end() || at->second != value) {
      return std::nullopt;
    }
  }
  const auto value = sample.values.find(row.value);
  if (value == sample.values.end()) {
    return std::nullopt;
  }
  Observation out{{}, value->second, label_of(sample)};
  for (std::size_t i = 0; i < row.variables.size(); ++i) {
    const auto at = sample.settings.find(row.variables[i]);
    if (at == sample.settings.end()) {
      return std::nullopt;
    }
    out.at[i] = static_cast<double>(at->second);
  }
  return out;
}

struct Gathered {
  std::vector<Observation> observations;
  ProbeEvidence evidence;
};

// From the newest run that has any, and those of the same conditions.
Gathered gather(const Row& row, const std::vector<const ProbeSamples*>& newest_first) {
  Gathered out;
  std::optional<Conditions> conditions;
  for (const ProbeSamples* run : newest_first) {
    const Conditions own = conditions_of(*run, row.probe);
    if (conditions && *conditions != own) {
      continue;
    }
    const std::size_t before = out.observations.size();
    for (const ProbeSample& sample : run->samples) {
      if (auto observation = observe(row, sample)) {
        out.observations.push_back(*std::move(observation));
      }
    }
    if (out.observations.size() == before) {
      continue;
    }
    if (!conditions) {
      conditions = own;
      out.evidence = {.probe = row.probe,
                      .version = version_of(*run, row.probe),
                      .driver = run->driver,
                      .cuda = run->cuda,
                      .date = run->date,
                      .files = {},
                      .form = "",
                      .rms_share = 0,
                      .samples = 0,
                      .outliers = 0};
    }
    out.evidence.files.push_back(run->source);
  }
  return out;
}

Estimate in_unit(const Estimate& found, const Name& name) {
  if (!name.reciprocal) {
    return {found.value * name.factor, found.low * name.factor, found.high * name.factor};
  }
  return {name.factor / found.value, name.factor / found.high, name.factor / found.low};
}

std::string describe(const Form& form, const Row& row) {
  std::string out = to_string(form);
  constexpr std::array<const char*, 2> kLetters = {"x", "z"};
  for (std::size_t i = 0; i < row.variables.size(); ++i) {
    out += fmt::format(", {} {}", kLetters[i], row.variables[i]);
  }
  return out;
}

// A time per amount whose interval reaches nothing tells no rate.
bool tells(const Estimate& found, const Name& name) { return !name.reciprocal || found.low > 0; }

void fit_row(const Row& row, const std::vector<const ProbeSamples*>& runs, ProbeFit& out) {
  Gathered gathered = gather(row, runs);
  if (gathered.observations.empty()) {
    return;
  }
  std::vector<Form> forms;
  for (const Alternative& alternative : row.alternatives) {
    forms.push_back(alternative.form);
  }
  const FormFit fit = choose_form(forms, gathered.observations);
  const auto chosen = std::find_if(
      row.alternatives.begin(), row.alternatives.end(), [&](const Alternative& alternative) {
        return alternative.form.shape == fit.form.shape && alternative.form.tile == fit.form.tile;
      });
  RefusedFit refused;
  ProbeEvidence& evidence = gathered.evidence;
  evidence.form = describe(fit.form, row);
  evidence.rms_share = fit.rms_share;
  evidence.samples = static_cast<std::int64_t>(gathered.observations.size());
  evidence.outliers = fit.outliers();
  for (std::size_t i = 0; i < chosen->names.size(); ++i) {
    const Name& name = chosen->names[i];
    if (name.name == nullptr) {
      continue;
    }
    if (!fit.refusal.empty() || !tells(fit.coefficients[i], name)) {
      refused.names.emplace_back(name.name);
      continue;
    }
    out.coefficients.push_back(
        {name.name, name.unit, in_unit(fit.coefficients[i], name), evidence});
  }
  if (!refused.names.empty()) {
    refused.reason = fit.refusal.empty() ? "the samples tell no rate" : fit.refusal;
    refused.residuals = residual_table(fit);
    out.refused.push_back(std::move(refused));
  }
}

void check_same(const std::vector<ProbeSamples>& runs) {
  Problems problems;
  for (const ProbeSamples& run : runs) {
    if (run.card.gpu != runs.front().card.gpu) {
      problems.add({run.source, "card.gpu", run.card.gpu, runs.front().card.gpu,
                    "calibrate each card by itself"});
    }
    if (run.synthetic != runs.front().synthetic) {
      problems.add({run.source, "origin", run.synthetic ? "synthetic" : "measured",
                    runs.front().synthetic ? "synthetic" : "measured",
                    "a made-up device says nothing of a real one"});
    }
  }
  problems.raise_if_any();
}

// Files by name alone: notes go into calibrations, which must not depend on where files lie.
void add_notes(const ProbeSamples& run, ProbeFit& out) {
  const std::string file = std::filesystem::path(run.source).filename().string();
  for (const std::string& left_out : run.left_out) {
    out.notes.push_back(fmt::format("{}: not measured: {}", file, left_out));
  }
  std::set<std::string> said;
  std::int64_t disturbed = 0;
  for (const ProbeSample& sample : run.samples) {
    disturbed += sample.disturbed ? 1 : 0;
    if (sample.status == SampleStatus::kDone) {
      continue;
    }
    const std::string why =
        fmt::format("{}: {}: {}{}{}", file, sample.probe, to_string(sample.status),
                    sample.note.empty() ? "" : ": ", sample.note);
    if (said.insert(why).second) {
      out.notes.push_back(why);
    }
  }
  if (disturbed > 0) {
    out.notes.push_back(
        fmt::format("{}: {} samples left out: something else used the card", file, disturbed));
  }
}

}  // namespace

ProbeFit fit_probes(const std::vector<ProbeSamples>& runs) {
  OOMCAST_CHECK(!runs.empty(), "no samples to fit");
  check_same(runs);
  std::vector<const ProbeSamples*> newest_first;
  for (const ProbeSamples& run : runs) {
    newest_first.push_back(&run);
  }
  // The order in which files were named must not matter.
  std::sort(newest_first.begin(), newest_first.end(), [](const auto* left, const auto* right) {
    return std::pair(left->date, left->source) > std::pair(right->date, right->source);
  });
  ProbeFit out;
  for (const Row& row : rows()) {
    fit_row(row, newest_first, out);
  }
  for (const ProbeSamples* run : newest_first) {
    add_notes(*run, out);
  }
  return out;
}

}  // namespace oomcast::fit
