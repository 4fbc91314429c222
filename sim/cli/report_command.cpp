#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "sim/cli/command.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/report/finished_run.hpp"
#include "sim/report/perfetto.hpp"
#include "sim/report/report_page.hpp"
#include "sim/report/tables.hpp"

namespace oomcast::cli {
namespace {

namespace fs = std::filesystem;

struct ReportRequest {
  std::string record;
  std::string format;
  std::optional<std::string> compare;
  std::optional<std::string> out;
  bool replace = false;
};

ReportRequest request_of(const po::variables_map& values) {
  ReportRequest request;
  Problems problems;
  request.format = values["format"].as<std::string>();
  if (values.count("record") == 0) {
    problems.add({"command line", "RECORD", "", "the folder of a replay, or its record.json", ""});
  } else {
    request.record = values["record"].as<std::string>();
  }
  if (values.count("compare") != 0) {
    request.compare = values["compare"].as<std::string>();
    if (request.format != "html") {
      problems.add({"command line", "--compare", *request.compare, "--format html with it", ""});
    }
  }
  if (values.count("out") != 0) {
    request.out = values["out"].as<std::string>();
  }
  request.replace = values["replace"].as<bool>();
  problems.raise_if_any();
  return request;
}

fs::path folder_of(const std::string& record) {
  std::error_code error;
  return fs::is_directory(record, error) ? fs::path(record) : fs::path(record).parent_path() / ".";
}

// --out as a file name: within it where it is a folder, `name` here where nothing is given.
std::string file_to_write(const ReportRequest& request, const std::string& name) {
  fs::path path = request.out.value_or(name);
  std::error_code error;
  if (fs::is_directory(path, error) || path.filename().empty()) {
    path /= name;
  }
  if (!request.replace && fs::exists(fs::symlink_status(path, error))) {
    throw ConfigError(Problem{path.string(), "", "", "a name that is not taken",
                              "name another with --out, or write over it with --replace"});
  }
  return path.string();
}

std::string write_html(const ReportRequest& request, const report::FinishedRun& run,
                       const std::optional<report::FinishedRun>& other) {
  const std::string path = file_to_write(request, other ? "comparison.html" : "report.html");
  write_file_atomically(path,
                        other ? report::comparison_page(run, *other) : report::report_page(run));
  return path;
}

std::string write_trace(const ReportRequest& request, const report::FinishedRun& run) {
  const std::string path = file_to_write(request, "trace.pftrace");
  AtomicFile trace(path);
  report::write_perfetto(run, trace.file());
  trace.commit();
  return path;
}

// Snapshots may be larger than memory.
void copy_into(const fs::path& from, CheckedFile& to) {
  std::ifstream in(from, std::ios::binary);
  std::string chunk(std::size_t{1} << 18, '\0');
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0) {
    to.append(std::string_view(chunk.data(), static_cast<std::size_t>(in.gcount())));
  }
  if (!in.eof()) {
    throw ConfigError(Problem{from.string(), "", "", "a readable file", ""});
  }
}

void copy_into(const fs::path& from, const OutputFolder& folder) {
  CheckedFile to(folder.staged(from.filename().string()));
  copy_into(from, to);
  to.close();
}

// What the allocator's depth left, a file a rank that differs.
std::string write_snapshots(const ReportRequest& request) {
  std::vector<fs::path> snapshots;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_of(request.record), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("snapshot") && name.ends_with(".pickle")) {
      snapshots.push_back(entry.path());
    }
  }
  if (snapshots.empty()) {
    throw ConfigError(Problem{request.record, "snapshot.pickle", "", "the allocator's history",
                              "this replay kept none; run it again with --detail allocator"});
  }
  std::sort(snapshots.begin(), snapshots.end());
  if (snapshots.size() == 1) {
    const std::string path = file_to_write(request, "snapshot.pickle");
    AtomicFile target(path);
    copy_into(snapshots.front(), target.file());
    target.commit();
    return path;
  }
  OutputFolder folder(request.out.value_or("snapshots"));
  for (const fs::path& snapshot : snapshots) {
    copy_into(snapshot, folder);
  }
  folder.commit();
  return folder.path();
}

std::string write_tables(const ReportRequest& request, const report::FinishedRun& run) {
  OutputFolder folder(request.out.value_or("tables"));
  folder.write("startup.csv", report::startup_csv(run));
  folder.write("peaks.csv", report::peaks_csv(run));
  for (const char* name : {"timeline.csv", "requests.csv"}) {
    copy_into(folder_of(request.record) / name, folder);
  }
  folder.commit();
  return folder.path();
}

po::options_description options() {
  po::options_description options("Report");
  options.add_options()("record", po::value<std::string>()->value_name("FILE"),
                        "folder of a replay, or its record.json")(
      "format",
      po::value<std::string>()->default_value("html")->value_name("html|perfetto|memory_viz|csv"),
      "html; perfetto: a trace for ui.perfetto.dev; memory_viz: the allocator's history for "
      "PyTorch's viewer; csv: a folder of tables")(
      "compare", po::value<std::string>()->value_name("FILE"),
      "a second replay: one page with both and what differs")(
      "out", po::value<std::string>()->value_name("FILE"),
      "file or folder to write; default: here, by the format")(
      "replace", po::bool_switch(), "write over a file that is there")("help,h", po::bool_switch(),
                                                                       "show this help");
  return options;
}

int run(const po::variables_map& values) {
  const ReportRequest request = request_of(values);
  const report::FinishedRun run = report::read_run(request.record);
  std::optional<report::FinishedRun> other;
  if (request.compare) {
    other = report::read_run(*request.compare);
  }
  const std::string written = request.format == "html"         ? write_html(request, run, other)
                              : request.format == "perfetto"   ? write_trace(request, run)
                              : request.format == "memory_viz" ? write_snapshots(request)
                                                               : write_tables(request, run);
  std::cout << written << "\n";
  const bool fits = run.outcome.fits && (!other || other->outcome.fits);
  return fits ? kFits : kDoesNotFit;
}

}  // namespace

Command report_command() {
  return {
      .name = "report",
      .purpose = "a finished replay as HTML, Perfetto trace, CSV",
      .synopsis = "oomcast report RECORD [OPTION...]",
      .about =
          "A finished replay, named by its folder or its record.json, as something to\n"
          "look at.",
      .examples = {{"A page to open in a browser", "oomcast report results/RUN --out report.html"},
                   {"Two replays side by side",
                    "oomcast report results/A --compare results/B --out compared.html"},
                   {"A trace for ui.perfetto.dev",
                    "oomcast report results/RUN --format perfetto --out run.pftrace"}},
      .options = options,
      .word = "record",
      .most_words = 1,
      .run = run};
}

}  // namespace oomcast::cli
