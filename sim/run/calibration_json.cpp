#include "sim/run/calibration_json.hpp"

#include <cmath>
#include <filesystem>

#include "sim/core/error.hpp"
#include "sim/fit/guarded_file.hpp"

namespace oomcast {
namespace {

// Nothing is never -0.
double rounded(double value) { return std::round(value * 1e4) / 1e4 + 0.0; }

OrderedJson mebi_json(Bytes bytes) { return rounded(to_mib(bytes)); }

OrderedJson coefficient_json(const Coefficient& coefficient) {
  OrderedJson json;
  json["name"] = coefficient.name;
  json["unit"] = "MiB";
  json["preset"] = mebi_json(coefficient.preset);
  json["value"] = mebi_json(coefficient.value);
  json["fitted"] = coefficient.fitted;
  json["residual"] = coefficient.fitted ? mebi_json(coefficient.residual) : OrderedJson(nullptr);
  json["figures"] = coefficient.figures;
  json["logs"] = OrderedJson::array();
  for (const LogPlace& place : coefficient.places) {
    json["logs"].push_back({{"log", place.log}, {"line", place.line}});
  }
  if (!coefficient.fitted) {
    json["note"] = coefficient.figures == 0
                       ? "no figure of the logs depends on it: left at its preset"
                       : "too few data to tell it from the others: left at its preset";
  }
  return json;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

OrderedJson evidence_json(const fit::ProbeEvidence& evidence) {
  OrderedJson json;
  json["probe"] = evidence.probe;
  json["version"] = evidence.version;
  json["driver"] = evidence.driver;
  json["cuda"] = evidence.cuda;
  json["date"] = evidence.date;
  json["form"] = evidence.form;
  json["scatter_percent"] = rounded(evidence.rms_share * 100);
  json["outliers"] = evidence.outliers;
  json["files"] = OrderedJson::array();
  for (const std::string& file : evidence.files) {
    json["files"].push_back(file_name(file));
  }
  return json;
}

OrderedJson coefficient_json(const fit::ProbeCoefficient& coefficient, const models::GpuSpec& gpu) {
  OrderedJson json;
  const auto preset = probe_preset(coefficient.name, gpu);
  json["name"] = coefficient.name;
  json["unit"] = coefficient.unit;
  json["preset"] = preset ? OrderedJson(rounded(*preset)) : OrderedJson(nullptr);
  json["value"] = rounded(coefficient.estimate.value);
  json["low"] = rounded(coefficient.estimate.low);
  json["high"] = rounded(coefficient.estimate.high);
  json["fitted"] = true;
  json["residual"] = nullptr;
  json["figures"] = coefficient.evidence.samples;
  json["logs"] = OrderedJson::array();
  json["evidence"] = evidence_json(coefficient.evidence);
  const bool taken = probe_section(coefficient.name) != ProbeSection::kNone;
  json["note"] = taken ? "measured by a probe" : "measured by a probe; no plan takes it yet";
  return json;
}

// What plans take, in its section.
void add_probes(const ProbeCalibration& probes, OrderedJson& json) {
  const models::GpuSpec gpu = models::find_gpu(probes.calibration.gpu);
  for (const fit::ProbeCoefficient& coefficient : probes.fit.coefficients) {
    const ProbeSection section = probe_section(coefficient.name);
    if (section != ProbeSection::kNone) {
      json[section == ProbeSection::kMemory ? "memory" : "rates"][coefficient.name] =
          rounded(coefficient.estimate.value);
    }
    json["coefficients"].push_back(coefficient_json(coefficient, gpu));
  }
}

void add_logs(const CalibrationFit& fit, OrderedJson& json) {
  for (const Coefficient& coefficient : fit.coefficients) {
    if (coefficient.fitted) {
      json["memory"][coefficient.name] = mebi_json(coefficient.value);
    }
    json["coefficients"].push_back(coefficient_json(coefficient));
  }
}

// What the probes ran on; of several runs the newest.
void add_conditions(const ProbeCalibration& probes, OrderedJson& json) {
  const fit::ProbeSamples& run = probes.runs.front();
  json["origin"] = run.synthetic ? "synthetic" : "measured";
  json["driver"] = run.driver;
  json["cuda"] = run.cuda;
  json["date"] = run.date;
  json["probes"] = OrderedJson::object();
  for (const auto& [name, version] : run.versions) {
    json["probes"][name] = version;
  }
}

OrderedJson runs_json(const std::vector<fit::ProbeSamples>& runs) {
  OrderedJson json = OrderedJson::array();
  for (const fit::ProbeSamples& run : runs) {
    json.push_back({{"file", file_name(run.source)},
                    {"date", run.date},
                    {"driver", run.driver},
                    {"samples", run.samples.size()},
                    {"checksum", fit::probe_samples_json(run).at("checksum")}});
  }
  return json;
}

OrderedJson starts_json(const std::vector<CalibrationSample>& samples) {
  OrderedJson json = OrderedJson::array();
  for (const CalibrationSample& sample : samples) {
    json.push_back({{"log", sample.log},
                    {"first_line", sample.run->first_line},
                    {"last_line", sample.run->last_line},
                    {"launch", sample.input.launch_line}});
  }
  return json;
}

}  // namespace

OrderedJson calibration_json(const CalibrationEvidence& evidence) {
  OOMCAST_CHECK(evidence.logs != nullptr || evidence.probes != nullptr, "nothing was fitted");
  const Calibration& calibration =
      evidence.logs != nullptr ? evidence.logs->calibration : evidence.probes->calibration;
  OrderedJson json;
  json["schema"] = "oomcast.calibration/1";
  json["gpu"] = calibration.gpu;
  if (evidence.logs != nullptr) {
    json["engine"] = launch::to_string(*calibration.engine);
    json["engine_version"] = calibration.engine_version;
    json["engine_version_range"] = {to_string(calibration.engine_versions->first),
                                    to_string(calibration.engine_versions->second)};
  }
  if (evidence.probes != nullptr) {
    add_conditions(*evidence.probes, json);
  }
  json["memory"] = OrderedJson::object();
  json["rates"] = OrderedJson::object();
  json["coefficients"] = OrderedJson::array();
  std::vector<std::string> notes;
  if (evidence.probes != nullptr) {
    add_probes(*evidence.probes, json);
    notes = evidence.probes->fit.notes;
    for (const fit::RefusedFit& refused : evidence.probes->fit.refused) {
      notes.push_back(refused_note(refused));
    }
  }
  if (evidence.logs != nullptr) {
    add_logs(*evidence.logs, json);
    notes.insert(notes.end(), evidence.logs->notes.begin(), evidence.logs->notes.end());
  }
  json["samples"] =
      evidence.probes != nullptr ? runs_json(evidence.probes->runs) : OrderedJson::array();
  json["logs"] =
      evidence.samples != nullptr ? starts_json(*evidence.samples) : OrderedJson::array();
  json["notes"] = notes;
  json["checksum"] = fit::file_checksum(Json::parse(json.dump()));
  return json;
}

}  // namespace oomcast
