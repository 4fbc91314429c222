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

FinishedRun whole_record(const Json& record, const std::string& name) {
  Problems problems;
  FinishedRun run = read_record(record, name, problems);
  problems.raise_if_any();
  return run;
}

void add_requests(FinishedRun& run, FinishedRequests requests, const std::string& name) {
  run.requests = std::move(requests);
  if (run.requests.total != run.totals.requests) {
    throw ConfigError(Problem{name, "", fmt::format("{} rows", run.requests.total),
                              fmt::format("{}, as record.json counts", run.totals.requests),
                              "is the file of the same run, and whole?"});
  }
}

void add_requests(FinishedRun& run, std::unique_ptr<workloads::LineReader> lines) {
  const std::string name = lines->name();
  add_requests(run, read_requests(std::move(lines)), name);
}

struct Paths {
  std::string record;
  std::string timeline;
  std::string requests;
};

Paths paths_of(const std::string& path) {
  std::error_code error;
  const fs::path given(path);
  const bool is_folder = fs::is_directory(given, error);
  const fs::path record = is_folder ? given / "record.json" : given;
  const fs::path folder = is_folder ? given : given.parent_path();
  if (!fs::exists(record, error)) {
    throw ConfigError(Problem{path, "", "", "the folder of a replay, or its record.json", ""});
  }
  return {record.string(), (folder / "timeline.csv").string(), (folder / "requests.csv").string()};
}

}  // namespace

FinishedRun read_run(const std::string& path) {
  const Paths paths = paths_of(path);
  FinishedRun run = whole_record(read_json_file(paths.record), paths.record);
  read_timeline(std::make_unique<workloads::LineReader>(paths.timeline), run.ranks);
  add_requests(run, std::make_unique<workloads::LineReader>(paths.requests));
  return run;
}

FinishedRun read_run(const std::string& path, std::vector<RankRecord> ranks,
                     FinishedRequests requests) {
  const Paths paths = paths_of(path);
  FinishedRun run = whole_record(read_json_file(paths.record), paths.record);
  take_timeline(std::move(ranks), run.ranks);
  add_requests(run, std::move(requests), paths.requests);
  return run;
}

FinishedRun read_run(const RunTexts& texts) {
  FinishedRun run = whole_record(parse_json(texts.record, "record.json"), "record.json");
  read_timeline(std::make_unique<workloads::LineReader>(texts.timeline, "timeline.csv"), run.ranks);
  add_requests(run, std::make_unique<workloads::LineReader>(texts.requests, "requests.csv"));
  return run;
}

}  // namespace oomcast::report
