#include "sim/report/finished_run.hpp"

#include <filesystem>
#include <memory>

#include "sim/core/json.hpp"
#include "sim/report/record_reader.hpp"
#include "sim/report/requests_reader.hpp"
#include "sim/report/timeline_reader.hpp"
#include "workloads/byte_source.hpp"

namespace oomcast::report {
namespace {

namespace fs = std::filesystem;

struct Sources {
  std::string record_name;
  Json record;
  std::unique_ptr<workloads::LineReader> timeline;
  std::unique_ptr<workloads::LineReader> requests;
};

FinishedRun read_sources(Sources sources) {
  Problems problems;
  FinishedRun run = read_record(sources.record, sources.record_name, problems);
  problems.raise_if_any();
  read_timeline(std::move(sources.timeline), run.ranks);
  const std::string requests_name = sources.requests->name();
  run.requests = read_requests(std::move(sources.requests));
  if (run.requests.total != run.totals.requests) {
    throw ConfigError(Problem{requests_name, "", fmt::format("{} rows", run.requests.total),
                              fmt::format("{}, as record.json counts", run.totals.requests),
                              "is the file of the same run, and whole?"});
  }
  return run;
}

}  // namespace

FinishedRun read_run(const std::string& path) {
  std::error_code error;
  const fs::path given(path);
  const bool is_folder = fs::is_directory(given, error);
  const fs::path record = is_folder ? given / "record.json" : given;
  const fs::path folder = is_folder ? given : given.parent_path();
  if (!fs::exists(record, error)) {
    throw ConfigError(Problem{path, "", "", "the folder of a replay, or its record.json", ""});
  }
  return read_sources(
      {record.string(), read_json_file(record.string()),
       std::make_unique<workloads::LineReader>((folder / "timeline.csv").string()),
       std::make_unique<workloads::LineReader>((folder / "requests.csv").string())});
}

FinishedRun read_run(const RunTexts& texts) {
  return read_sources({"record.json", parse_json(texts.record, "record.json"),
                       std::make_unique<workloads::LineReader>(texts.timeline, "timeline.csv"),
                       std::make_unique<workloads::LineReader>(texts.requests, "requests.csv")});
}

}  // namespace oomcast::report
