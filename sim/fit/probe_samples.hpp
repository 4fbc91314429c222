// What the probes of validation/ measured on a card, as they measured it: one JSON document a run.
//
// {"schema": "oomcast.probe_samples/1", "origin": "measured", "about": "",
//  "card": {"gpu": "NVIDIA H100 80GB HBM3", "sm_count": 132, "threads_per_sm": 2048,
//           "compute_capability": "9.0", "total_bytes": N, "free_bytes": N, "mig": false,
//           "other_processes": 0},
//  "driver": "570.86.15", "cuda": "13.0", "date": "2026-11-30T07:35:00Z",
//  "probes": {"context": 1, ...},                 version of each probe
//  "left_out": ["nccl: one GPU"],
//  "samples": [{"probe": "graph", "settings": {"nodes": 64}, "repeat": 0, "status": "done",
//               "values": {"bytes": N}, "free_before": N, "free_after": N, "disturbed": false}],
//  "checksum": "..."}
// `origin` "synthetic" is a made-up device, for tests and for trying things out without a GPU.
// Status: done; out_of_memory, unsupported, failed, skipped with a `note` that says why.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/core/units.hpp"

namespace oomcast::fit {

enum class SampleStatus : std::uint8_t { kDone, kOutOfMemory, kUnsupported, kFailed, kSkipped };
std::string_view to_string(SampleStatus status);

struct ProbeSample {
  std::string probe;
  std::map<std::string, std::int64_t> settings;
  std::int64_t repeat = 0;
  SampleStatus status = SampleStatus::kDone;
  std::string note;
  std::map<std::string, double> values;  // "bytes", "seconds", ...
  Bytes free_before;                     // of the card, around this repeat
  Bytes free_after;
  bool disturbed = false;  // something else used the card meanwhile: not to be fitted
};

struct ProbedCard {
  std::string gpu;
  std::int64_t sm_count = 0;
  std::int64_t threads_per_sm = 0;
  std::string compute_capability;
  Bytes total;
  Bytes free;
  bool mig = false;
  std::int64_t other_processes = 0;
};

struct ProbeSamples {
  std::string source;  // path, for messages
  bool synthetic = false;
  std::string about;
  ProbedCard card;
  std::string driver;
  std::string cuda;
  std::string date;  // UTC, ISO 8601: later ones compare greater
  std::map<std::string, std::int64_t> versions;
  std::vector<std::string> left_out;
  std::vector<ProbeSample> samples;
};

// Throws ConfigError for what is no such document, with everything that is wrong.
ProbeSamples read_probe_samples(const std::string& path);
ProbeSamples parse_probe_samples(std::string_view text, const std::string& source);

// The document, checksum included.
OrderedJson probe_samples_json(const ProbeSamples& samples);

// "graph nodes=64, repeat 2"
std::string label_of(const ProbeSample& sample);

}  // namespace oomcast::fit
